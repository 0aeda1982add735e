"""Parses a C4 model of a system's structure and draws its diagrams. Pure.

A model writes one YAML block with elements and relations. Code writes both the Mermaid diagrams and the Structurizr
workspace from it, so they always agree and hold nothing that reads files, runs scripts or calls an address.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from cdo.core.steps import InvalidReply
from cdo.formats import gbnf
from cdo.formats.blocks import Tolerant, validate
from cdo.formats.documents.worksheets import FILLED
from cdo.formats.fields import as_list, load, twice
from cdo.formats.sections import folded

WHAT = "The C4 model"
MAX_BYTES = 65_536
PROBLEMS = 8  # most problems that are reported at once
Level = Literal["person", "system", "container", "component"]
_PARENT: dict[str, str] = {"container": "system", "component": "container"}
_LETTER = {"person": "p", "system": "s", "container": "c", "component": "k"}
Identifier = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,31}$")]
Words = Annotated[str, Field(max_length=300), BeforeValidator(lambda value: "" if value is None else value)]
Name = Annotated[str, Field(min_length=1, max_length=100)]


class Element(Tolerant):
    """A person, a system, a container (what runs or stores separately) or a component.

    `inside` is the id of the system of a container, or of the container of a component. An `external` element is not
    part of what is being decided on.
    """

    id: Identifier
    level: Level
    name: Name
    text: Words = ""
    technology: Words = ""
    inside: Words = ""
    external: bool = False
    store: bool = False

    @property
    def alias(self) -> str:
        """Its identifier in a diagram; a prefix keeps it from being a keyword."""
        return f"{_LETTER[self.level]}_{self.id}"


class Relation(Tolerant):
    """A use of one element by another: what it does and by which technology."""

    source: Annotated[Identifier, Field(alias="from")]
    target: Annotated[Identifier, Field(alias="to")]
    text: Annotated[str, Field(min_length=1, max_length=300)]
    technology: Words = ""


class C4Model(Tolerant):
    """All elements and relations of a structure."""

    elements: Annotated[tuple[Element, ...], BeforeValidator(as_list), Field(max_length=64), FILLED]
    relations: Annotated[tuple[Relation, ...], BeforeValidator(as_list), Field(max_length=128)] = ()

    def element(self, ident: str) -> Element | None:
        """Return the element with this id, or None."""
        return next((item for item in self.elements if item.id == ident), None)

    def around(self, ident: str) -> list[Element]:
        """Return the element with this id and the elements that it is inside of, innermost first; at most four."""
        found: list[Element] = []
        while len(found) < len(_LETTER) and (item := self.element(ident)):
            found.append(item)
            ident = item.inside
        return found


def c4(text: str, above: int = 0) -> C4Model:
    """Parse a model; raise `InvalidReply` with at most 8 problems. `above` is the number of lines before `text`."""
    model = validate(C4Model, load(text, above, WHAT, MAX_BYTES), WHAT)
    if problems := [*_problems(model)]:
        raise InvalidReply(problems[:PROBLEMS])
    return model


def _problems(model: C4Model) -> Iterator[str]:
    yield from twice([item.id for item in model.elements], f"{WHAT}: the id")
    yield from twice([folded(item.name) for item in model.elements], f"{WHAT}: the name")
    if not any(item.level == "system" and not item.external for item in model.elements):
        yield f"{WHAT}: no element is a system that is not `external`: name the one that the result is about."
    for item in model.elements:
        wanted, around = _PARENT.get(item.level), model.element(item.inside)
        if wanted and (around is None or around.level != wanted):
            yield f"{WHAT}: {item.level} `{item.id}` needs `inside`, the id of a {wanted}."
        elif wanted and around and around.external:
            yield f"{WHAT}: `{around.id}` is external, so leave out what is inside it (`{item.id}`)."
        elif not wanted and item.inside:
            yield f"{WHAT}: {item.level} `{item.id}` cannot be `inside` another element."
    for relation in model.relations:
        for end in (relation.source, relation.target):
            if model.element(end) is None:
                yield f"{WHAT}: a relation names `{end}`, which is the id of no element."
        source, target = ([item.id for item in model.around(end)] for end in (relation.source, relation.target))
        if relation.source in target or relation.target in source:
            yield f"{WHAT}: `{relation.source}` and `{relation.target}` are one inside the other: relate its parts."


# -- drawing ---------------------------------------------------------------------------------------


def drawings(model: C4Model) -> str:
    """Return the page with all diagrams: Mermaid for each level that has elements, then Structurizr."""
    parts = ["# Diagrams", "Made from the model in C4.md. Change it there; `cdo resume` draws again."]
    parts += ["## System Context", _fenced("mermaid", mermaid(model, "C4Context"))]
    if any(item.level == "container" for item in model.elements):
        parts += ["## Containers", _fenced("mermaid", mermaid(model, "C4Container"))]
    if any(item.level == "component" for item in model.elements):
        parts += ["## Components", _fenced("mermaid", mermaid(model, "C4Component"))]
    parts += ["## Structurizr Workspace", _fenced("structurizr", structurizr(model))]
    return "\n\n".join(parts) + "\n"


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"


_SHOWN: dict[str, tuple[Level, ...]] = {
    "C4Context": ("person", "system"),
    "C4Container": ("person", "system", "container"),
    "C4Component": ("person", "system", "container", "component"),
}


def mermaid(model: C4Model, kind: str) -> str:
    """Return a Mermaid diagram: C4Context, C4Container or C4Component.

    A relation of an element that the diagram leaves out is drawn at the element around it.
    """
    levels = _SHOWN[kind]
    lines = [kind, *_boxes(model, "", levels, 1)]
    seen = set[tuple[str, str]]()
    for relation in model.relations:
        source, target = (
            next(item.alias for item in model.around(end) if item.level in levels)
            for end in (relation.source, relation.target)
        )
        if source != target and (source, target) not in seen:
            seen.add((source, target))
            lines.append(f"  Rel({source}, {target}, {_texts(_entities, relation.text, relation.technology)})")
    return "\n".join(lines)


def _boxes(model: C4Model, inside: str, levels: Sequence[Level], depth: int) -> Iterator[str]:
    """Yield the boxes of the elements inside another one, or of the outermost elements for ""."""
    for item in (item for item in model.elements if item.inside == inside and item.level in levels):
        blanks, name = "  " * depth, item.level.capitalize()
        within = [*_boxes(model, item.id, levels, depth + 1)]
        if within:
            yield f"{blanks}{name}_Boundary({item.alias}, {_texts(_entities, item.name)}) {{"
            yield from within
            yield f"{blanks}}}"
        else:
            box = f"{name}{'Db' if item.store and item.level != 'person' else ''}{'_Ext' if item.external else ''}"
            told = [item.technology] if item.level in ("container", "component") else []
            yield f"{blanks}{box}({item.alias}, {_texts(_entities, item.name, *told, item.text, keep=1 + len(told))})"


def structurizr(model: C4Model) -> str:
    """Return a Structurizr workspace with views of each own system, and of each container with components."""
    own = [item for item in model.elements if item.level == "system" and not item.external]
    lines = [f"workspace {_texts(_plain, own[0].name)} {{", "  model {", *_modelled(model, "", 2)]
    for relation in model.relations:
        source, target = (model.around(end)[0].alias for end in (relation.source, relation.target))
        told = _texts(_plain, relation.text, relation.technology, between=" ")
        lines.append(f"    {source} -> {target} {told}")
    lines += ["  }", "  views {"]
    shown = [("systemContext", item) for item in own]
    shown += [("container", item) for item in own if _parts(model, item)]
    shown += [("component", item) for item in model.elements if item.level == "container" and _parts(model, item)]
    for kind, item in shown:
        lines += [f"    {kind} {item.alias} {{", "      include *", "      autoLayout lr", "    }"]
    return "\n".join([*lines, "  }", "}"])


def _modelled(model: C4Model, inside: str, depth: int) -> Iterator[str]:
    keywords = {"person": "person", "system": "softwareSystem", "container": "container", "component": "component"}
    for item in (item for item in model.elements if item.inside == inside):
        blanks = "  " * depth
        told = [item.name, item.text]
        told += [item.technology] if item.level in ("container", "component") else []
        tags = ",".join([*(["External"] if item.external else []), *(["Store"] if item.store else [])])
        words = _texts(_plain, *told, tags, between=" ", keep=len(told) if tags else 1)
        within = [*_modelled(model, item.id, depth + 1)]
        yield f"{blanks}{item.alias} = {keywords[item.level]} {words}{' {' if within else ''}"
        yield from within
        if within:
            yield f"{blanks}}}"


def _parts(model: C4Model, item: Element) -> bool:
    return any(other.inside == item.id for other in model.elements)


def _texts(form: Callable[[str], str], *texts: str, between: str = ", ", keep: int = 1) -> str:
    """Return texts between double quotes, without the empty ones at the end, but at least `keep` of them."""
    shown = [*texts]
    while len(shown) > keep and not shown[-1]:
        shown.pop()
    return between.join(f'"{form(text)}"' for text in shown)


def _entities(text: str) -> str:
    """Escape text for a Mermaid diagram: characters with a meaning there become entity codes."""
    codes = {"#": 35, ";": 59, "%": 37, '"': 34, "<": 60, ">": 62, "`": 96, "\\": 92}
    return "".join(f"#{codes[sign]};" if sign in codes else sign for sign in _one_line(text))


def _plain(text: str) -> str:
    """Return text for a Structurizr workspace, which cannot express double quotes, backslashes and `${`."""
    return _one_line(text).replace('"', "'").replace("\\", "/").replace("`", "'").replace("${", "$ {")


def _one_line(text: str) -> str:
    return " ".join(re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", text).split())


def c4_shape() -> str:
    """Return a grammar's expression for a small model, without its fence."""
    short = gbnf.quoted(8, 60)
    person = '"elements:\\n  - {id: user, level: person, name: User, text: " ' + short + ' "}\\n"'
    system = '"  - {id: system, level: system, name: System, text: " ' + short + ' "}\\n"'
    core = '"  - {id: core, level: container, inside: system, name: Core, text: " ' + short + ' "}\\n"'
    relation = '"relations:\\n  - {from: user, to: core, text: " ' + short + ' "}\\n"'
    return f"{person} {system} {core} {relation}"
