"""Architecture diagrams: what they are made of, and the part of Mermaid's C4 that documents may use. Pure.

The parser knows what it accepts and refuses the rest, so that a diagram that passes is drawn by the real tool, and
holds nothing that reads files, runs scripts or calls an address when somebody draws it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from cdo import gbnf
from cdo.strict_yaml import shown
from cdo.types import InvalidReply

PROBLEMS = 8  # of one block that are told at once
SHORT = gbnf.quoted(8, 60)  # what a small model writes into a box or on an arrow


@dataclass(frozen=True)
class Element:
    """A box: its identifier ("" where it has none), its level (person, system, container, component), its name."""

    id: str
    kind: str
    name: str


@dataclass(frozen=True)
class Relation:
    """An arrow between two identifiers, with what is written on it."""

    source: str
    target: str
    text: str


@dataclass(frozen=True)
class Diagram:
    """A Mermaid diagram of `kind` C4Context, C4Container or C4Component; `boundaries` are names of frames."""

    kind: str
    elements: tuple[Element, ...]
    boundaries: tuple[str, ...]
    relations: tuple[Relation, ...]


@dataclass(frozen=True)
class Workspace:
    """A Structurizr workspace: its model, and its views as (kind, identifier of what is shown or "")."""

    elements: tuple[Element, ...]
    relations: tuple[Relation, ...]
    views: tuple[tuple[str, str], ...]


class Wrong(ValueError):
    """A line cannot be read; the text says why."""


def differences(diagrams: Sequence[Diagram], workspace: Workspace) -> list[str]:
    """Sentences on the elements that only the diagrams, or only the workspace, speak of; names are compared."""

    def names(found: Sequence[str]) -> dict[str, str]:
        return {" ".join(name.casefold().split()): name for name in found}

    drawn = names([element.name for diagram in diagrams for element in diagram.elements])
    framed = names([name for diagram in diagrams for name in diagram.boundaries])
    modelled = names([element.name for element in workspace.elements])
    only_drawn = [f"`{shown(drawn[key])}`" for key in drawn if key not in modelled]
    only_modelled = [f"`{shown(modelled[key])}`" for key in modelled if key not in drawn | framed]
    return [
        *(
            [f"Put {', '.join(only_drawn)} into the Structurizr workspace too, by the same name."]
            if only_drawn
            else []
        ),
        *([f"Put {', '.join(only_modelled)} into a Mermaid diagram too, by the same name."] if only_modelled else []),
    ]


# -- Mermaid ---------------------------------------------------------------------------------------

_LEVELS = ("person", "system", "container", "component")
DRAWN = {"C4Context": _LEVELS[:2], "C4Container": _LEVELS[:3], "C4Component": _LEVELS}  # which boxes a kind may show
_BOXES = {
    f"{base}{store}{outside}": base.lower()
    for base in ("Person", "System", "Container", "Component")
    for store in ("", "Db", "Queue")
    for outside in ("", "_Ext")
    if base != "Person" or not store
}
_FRAMES = ("Boundary", "Enterprise_Boundary", "System_Boundary", "Container_Boundary")
_SIDES = ("_U", "_Up", "_D", "_Down", "_L", "_Left", "_R", "_Right", "_Back")
_ARROWS = ("Rel", "BiRel", *(f"Rel{side}" for side in _SIDES))
_STYLES = {"UpdateElementStyle": 1, "UpdateRelStyle": 2, "UpdateLayoutConfig": 0}  # how many aliases each begins with
_NAMED = frozenset({"label", "techn", "descr", "type", "tags"})
_STYLE_KEYS = re.compile(r"(bg|font|border|text|line)Color|offset[XY]|c4(Shape|Boundary)InRow")
_ALIAS = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_CALL = re.compile(r"([A-Za-z]\w*)\(")
_PIECE = re.compile(r'"[^"]*"|[^"(),]+|[",()]')
_HEAD = re.compile(r"title[ \t]+[^#;]+|acc(Title|Descr)[ \t]*:.+")
_NAMED_VALUE = re.compile(r'\$([A-Za-z0-9]+)="[^"]+"')


def mermaid(text: str, above: int = 0, kinds: Sequence[str] = tuple(DRAWN)) -> Diagram:
    """Parse one C4 diagram of one of `kinds`; raise `InvalidReply` naming each line that is wrong.

    `above` is how many lines of the reply stand before `text`: lines are counted from the reply's first.
    """
    return _Mermaid(above, kinds).read(text.split("\n"))


@dataclass
class _Mermaid:
    """What has been read of a diagram so far."""

    above: int
    kinds: Sequence[str]
    kind: str = ""
    elements: dict[str, Element] = field(default_factory=dict)
    frames: dict[str, str] = field(default_factory=dict)
    relations: list[Relation] = field(default_factory=list)
    used: list[tuple[int, str]] = field(default_factory=list)
    open: list[int] = field(default_factory=list)
    empty: bool = False  # whether the line before opened a boundary
    problems: list[str] = field(default_factory=list)

    def read(self, lines: Sequence[str]) -> Diagram:
        """Take the lines one by one, then see whether what they refer to is there."""
        for number, line in enumerate((line.strip() for line in lines), self.above + 1):
            if not line or (line.startswith("%%") and not line.startswith("%%{")):
                continue
            try:
                self._line(number, line)
            except Wrong as wrong:
                self.problems.append(f"The Mermaid diagram, line {number}: {wrong}.")
        known = {*self.elements, *self.frames}
        self.problems += [
            f"The Mermaid diagram, line {number}: `{alias}` is not declared by any element or boundary."
            for number, alias in self.used
            if alias not in known
        ]
        self.problems += [f"The Mermaid diagram: the {{ of line {number} is never closed." for number in self.open]
        if not self.problems and not (self.elements and self.relations):
            self.problems.append("The Mermaid diagram must have elements and at least one Rel between them.")
        if self.problems:
            raise InvalidReply(self.problems[:PROBLEMS])
        frames = tuple(self.frames.values())
        return Diagram(self.kind, tuple(self.elements.values()), frames, tuple(self.relations))

    def _line(self, number: int, line: str) -> None:
        empty, self.empty = self.empty, line.endswith("{") and line.partition("(")[0] in _FRAMES
        if not self.kind:
            self.kind = line if line in DRAWN else self.kinds[0]
            if line not in self.kinds:
                raise Wrong(f"it must begin with {' or '.join(self.kinds)}, not with `{shown(line)}`")
        elif line == "}":
            if not self.open:
                raise Wrong("this } closes nothing")
            self.open.pop()
            if empty:
                raise Wrong("there must be an element in each boundary")
        elif not _HEAD.fullmatch(line):
            self._call(number, line)

    def _call(self, number: int, line: str) -> None:
        name, values, opens = _called(line)
        if opens:
            self.open.append(number)  # also where the rest is wrong: its } must find it
        if opens != (name in _FRAMES):
            raise Wrong(f"`{name}` {'cannot have' if opens else 'must end with'} a {{")
        if name in _BOXES:
            self._box(name, values)
        elif name in _FRAMES:
            alias, label = _aliases(name, values, 1, 2)[0], values[1]
            self._free(alias)
            self.frames[alias] = label
        elif name in _ARROWS:
            source, target = _aliases(name, values, 2, 3)
            self.relations.append(Relation(source, target, values[2]))
            self.used += [(number, source), (number, target)]
        elif name in _STYLES:
            self.used += [(number, alias) for alias in _aliases(name, values, _STYLES[name], _STYLES[name])]
        else:
            raise Wrong(f"`{shown(name)}` is not known; use Person, System, Container, Component, Boundary and Rel")

    def _box(self, name: str, values: Sequence[str]) -> None:
        (alias,) = _aliases(name, values, 1, 2)
        if _BOXES[name] not in DRAWN[self.kind]:
            raise Wrong(f"a {self.kind} diagram shows no {_BOXES[name]}: leave `{name}` to a deeper level")
        self._free(alias)
        self.elements[alias] = Element(alias, _BOXES[name], values[1])

    def _free(self, alias: str) -> None:
        if alias in self.elements or alias in self.frames:
            raise Wrong(f"the alias `{alias}` is used twice")


def _called(line: str) -> tuple[str, list[str], bool]:
    """A statement such as `System(a, "A") {` as (its name, its values in order, whether a frame opens)."""
    head = _CALL.match(line)
    if not head:
        raise Wrong(f'`{shown(line)}` is not a statement such as System(alias, "Name", "what it does")')
    pieces = _PIECE.findall(line[head.end() :])
    if '"' in pieces:
        raise Wrong("a double quote is not closed")
    if ")" not in pieces:
        raise Wrong("the parenthesis is not closed")
    end = pieces.index(")")
    if "(" in pieces[:end]:
        raise Wrong("put text that holds parentheses between double quotes")
    rest = "".join(pieces[end + 1 :]).strip()
    if rest not in ("", "{"):
        raise Wrong(f"nothing but {{ can follow the closing parenthesis, not `{shown(rest)}`")
    if end == 0 or not pieces[end - 1].endswith('"'):
        raise Wrong("the last value must stand between double quotes, right before the closing parenthesis")
    texts = "".join(piece if piece != "," else "\n" for piece in pieces[:end]).split("\n")
    return head[1], [value for text in texts if (value := _value(head[1], text)) is not None], rest == "{"


def _value(call: str, text: str) -> str | None:
    """What stands between two commas, without its quotes; None for a named value, which no alias or label is."""
    plain = text.strip()
    if plain.startswith("$"):
        named = _NAMED_VALUE.fullmatch(plain)
        if named and (named[1] in _NAMED or (call in _STYLES and _STYLE_KEYS.fullmatch(named[1]))):
            return None
        raise Wrong(f"`{shown(plain)}` cannot be set")
    if '"' in plain and not re.fullmatch(r'[ \t]*"[^"]*"', text):
        raise Wrong(f"before and after the quotes of `{shown(plain)}` there must be a comma or a parenthesis")
    return plain.strip('"').strip()


def _aliases(call: str, values: Sequence[str], count: int, least: int) -> Sequence[str]:
    """The `count` aliases that a statement begins with; it must have `least` values that are not empty."""
    if len(values) < least or not all(values[:least]):
        wants = [*["alias", "other alias"][:count], *['"text"'] * (least - count)]
        raise Wrong(f"`{call}` needs at least ({', '.join(wants)})")
    for alias in values[:count]:
        if not _ALIAS.fullmatch(alias):
            raise Wrong(f"`{shown(alias)}` cannot be an alias: use letters, digits and _")
    return values[:count]


def mermaid_shape(kind: str = "C4Context") -> str:
    """A grammar's expression for a small diagram of `kind`, without its fence."""
    head = f'{gbnf.literal(kind)} "\\n" "Person(user, \\"User\\", " {SHORT} ")\\n"'
    if kind == "C4Context":
        return f'{head} "System(system, \\"System\\", " {SHORT} ")\\nRel(user, system, " {SHORT} ")\\n"'
    box = "Component" if kind == "C4Component" else "Container"
    return (
        f'{head} "System_Boundary(system, \\"System\\") {{\\n{box}(core, \\"Core\\", \\"Code\\", " {SHORT} ")\\n}}\\n'
        f'Rel(user, core, " {SHORT} ")\\n"'
    )
