"""The part of the Structurizr DSL that documents may use. Pure: text in, data out.

What is accepted is drawn by the real tool. Refused is what it does not know, and what reads files, runs scripts or
calls an address when somebody draws the workspace: `!include`, `!script`, `extends`, themes, icons.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from cdo.diagrams import PROBLEMS, SHORT, Element, Relation, Workspace, Wrong
from cdo.strict_yaml import shown
from cdo.types import InvalidReply

_KINDS = {"person": "person", "softwaresystem": "system", "container": "container", "component": "component"}
_INSIDE = {  # what may stand where; the innermost element decides
    "": ("person", "softwaresystem"), "person": (), "softwaresystem": ("container",), "container": ("component",),
    "component": (),
}  # fmt: skip
_DETAILS = ("description", "technology", "tags")
_VIEWS = {"systemlandscape": "", "systemcontext": "system", "container": "system", "component": "container"}
_IN_VIEWS = ("include", "exclude", "autolayout", "title", "description", "default")
_LOOKS = (
    "shape", "background", "color", "colour", "stroke", "strokewidth", "fontsize", "border", "opacity", "width",
    "height", "thickness", "dashed", "style", "routing", "position", "description", "metadata",
)  # fmt: skip
_SPELLED = {
    word.lower(): word for word in ("softwareSystem", "systemLandscape", "systemContext", "autoLayout", "fontSize")
}
_DEEPEST = 12  # braces within braces
_WORD = re.compile(r'[ \t]*(?:("(?:[^"\\]|\\.)*)"|([^\s"]+))(?=[ \t]|$)')
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_KEY = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class _Statement:
    """A line of the DSL: its words (quoted ones with their first quote), and what its braces hold, if any."""

    line: int
    words: tuple[str, ...]
    inside: list[_Statement] | None = None

    @property
    def keyword(self) -> str:
        return self.words[0].lower()


def structurizr(text: str, above: int = 0) -> Workspace:
    """Parse one workspace; raise `InvalidReply` naming each line that is wrong, counted as by `mermaid`."""
    problems: list[str] = []
    statements = _tree(text, above, problems)
    reader = _Structurizr(problems)
    if not problems:
        reader.workspace(statements)
    if problems:
        raise InvalidReply(problems[:PROBLEMS])
    return Workspace(tuple(reader.elements.values()), tuple(reader.relations), tuple(reader.views))


def _tree(text: str, above: int, problems: list[str]) -> list[_Statement]:
    """The statements with what their braces hold; comments are left out."""
    root: list[_Statement] = []
    open_: list[tuple[int, list[_Statement]]] = [(0, root)]
    comment = False
    for number, line in enumerate((line.strip() for line in text.split("\n")), above + 1):
        comment = comment or line.startswith("/*")
        if comment or not line or line.startswith(("//", "#")):
            comment = comment and not line.endswith("*/")
            continue
        try:
            words = _words(line)
        except Wrong as wrong:
            problems.append(_at(number, str(wrong)))
            surplus = line.count("{") - line.count("}")  # what is left open must find its }
            words = ["{"] if surplus > 0 else ["}"] if surplus else []
        if words == ["}"]:
            if len(open_) == 1:
                problems.append(_at(number, "this } closes nothing"))
            else:
                open_.pop()
        elif words and words[-1] == "{":
            if len(open_) > _DEEPEST:
                problems.append(_at(number, f"braces stand within braces more than {_DEEPEST} deep"))
                return root
            inside: list[_Statement] = []
            open_[-1][1].append(_Statement(number, (*words[:-1],) or ("",), inside))
            open_.append((number, inside))
        elif words:
            open_[-1][1].append(_Statement(number, tuple(words)))
    problems += [_at(number, "this { is never closed") for number, _ in open_[1:]]
    return root


def _words(line: str) -> list[str]:
    """The words of a line; quoted ones keep the quote they begin with. Braces stand where the DSL wants them."""
    words: list[str] = []
    place = 0
    while place < len(line):
        match = _WORD.match(line, place)
        if not match:
            unclosed = line.count('"', place) % 2
            raise Wrong("a double quote is not closed" if unclosed else "put blanks between the words and the quotes")
        words.append(match[1] or match[2])
        place = match.end()
    if ("}" in words and words != ["}"]) or "{" in words[:-1] or words == ["{"]:
        raise Wrong("{ must end the line of its statement, and } stand on a line of its own")
    return words


def _at(line: int, why: str) -> str:
    return f"The Structurizr workspace, line {line}: {why}."


def _spelled(keywords: Sequence[str]) -> str:
    return ", ".join(_SPELLED.get(word, word) for word in keywords)


def _plain(word: str) -> str:
    """A word without the quote that marks it."""
    return word.removeprefix('"').replace('\\"', '"').strip()


@dataclass
class _Structurizr:
    """What has been read of a workspace so far. Lines count in order: nothing is referred to before it is there.

    Elements are kept under their full identifier in lower case, anonymous ones under their line; `parents` leads
    from each to the one it stands in.
    """

    problems: list[str]
    elements: dict[str, Element] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)
    relations: list[Relation] = field(default_factory=list)
    views: list[tuple[str, str]] = field(default_factory=list)
    hierarchical: bool = False
    arrows: set[tuple[str, str, str]] = field(default_factory=set)
    names: set[tuple[str, str]] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)

    def workspace(self, statements: Sequence[_Statement]) -> None:
        """Read the one workspace, its model and its views."""
        if [item.keyword for item in statements] != ["workspace"] or statements[0].inside is None:
            self.problems.append(
                "The Structurizr workspace must be one `workspace { … }` with model and views in it."
            )
            return
        if any(word.lower() == "extends" for word in statements[0].words):
            self._wrong(statements[0], "a workspace that extends another one is not accepted")
        parts = {"model": self._model, "views": self._views}
        self._each(statements[0].inside, {**parts, "!identifiers": self._identifiers}, "name", "description")
        present = [item.keyword for item in statements[0].inside]
        for name in parts:
            if present.count(name) != 1:
                self.problems.append(f"The Structurizr workspace must have exactly one `{name} {{ … }}`.")
        if not self.problems and not (self.elements and self.views):
            self.problems.append("The Structurizr workspace must have at least one element and one view.")

    def _each(
        self, statements: Sequence[_Statement], readers: Mapping[str, Callable[[_Statement], None]], *plain: str
    ) -> None:
        """Hand each statement to the reader of its keyword; `plain` ones are a keyword with a value."""
        for item in statements:
            if reader := readers.get(item.keyword):
                reader(item)
            elif item.keyword not in plain:
                known = _spelled([*readers, *plain])
                self._wrong(item, f"`{shown(_plain(item.words[0]))}` is not accepted here; what is: {known}")
            elif len(item.words) < 2 and item.keyword not in ("autolayout", "default"):
                self._wrong(item, f"`{item.keyword}` needs a value")
            elif item.inside is not None:
                self._wrong(item, f"`{item.keyword}` cannot have a {{")

    def _wrong(self, item: _Statement, why: str) -> None:
        self.problems.append(_at(item.line, why))

    def _identifiers(self, item: _Statement) -> None:
        how = [word.lower() for word in item.words[1:]]
        if how not in (["flat"], ["hierarchical"]):
            self._wrong(item, "`!identifiers` must be flat or hierarchical")
        self.hierarchical = how == ["hierarchical"]

    # -- the model --

    def _model(self, item: _Statement) -> None:
        self._items(item.inside or (), "")

    def _items(self, statements: Sequence[_Statement], parent: str) -> None:
        """What stands in the model (`parent` is "") or in an element."""
        for item in statements:
            named = len(item.words) > 2 and item.words[1] == "="
            words = item.words[2:] if named else item.words
            keyword = words[0].lower()
            inside = _INSIDE[self._type(parent)]
            if "->" in words[:2]:
                self._relation(item, words, parent)
            elif keyword in inside:
                self._element(item, words, item.words[0] if named else "", parent)
            elif keyword == "group" and not named and len(words) == 2 and inside:
                self._items(item.inside or (), parent)
            elif keyword == "!identifiers" and not parent:
                self._identifiers(item)
            elif not (keyword in _DETAILS and parent and not named and len(words) > 1 and item.inside is None):
                here = f"in this {self.elements[parent].kind}" if parent else "in the model"
                known = _spelled([*inside, *(_DETAILS if parent else ["group"]), "a -> b"])
                self._wrong(item, f"`{shown(_plain(words[0]))}` is not accepted {here}; what is: {known}")

    def _type(self, key: str) -> str:
        """The DSL's keyword for an element; "" for the model itself."""
        return next((word for word, kind in _KINDS.items() if key and kind == self.elements[key].kind), "")

    def _element(self, item: _Statement, words: Sequence[str], name: str, parent: str) -> None:
        label = _plain(words[1]) if len(words) > 1 else ""
        if not label:
            self._wrong(item, f'`{words[0]}` needs a name: {words[0]} "Name" "what it does"')
            return
        if name and not _NAME.fullmatch(name):
            self._wrong(item, f"`{shown(_plain(name))}` cannot be an identifier: use letters, digits and _")
            return
        full = f"{parent}.{name}" if self.hierarchical and parent and name else name
        key = full.lower() or f"line {item.line}"
        if key in self.elements:
            self._wrong(item, f"the identifier `{full}` is used twice")
            return
        if (parent, label.casefold()) in self.names:
            self._wrong(item, f"the name `{shown(label)}` is used twice")
        self.names.add((parent, label.casefold()))
        self.elements[key] = Element(full, _KINDS[words[0].lower()], label)
        self.parents[key] = parent
        self._items(item.inside or (), key)

    def _relation(self, item: _Statement, words: Sequence[str], parent: str) -> None:
        first = words.index("->")
        if len(words) < first + 2 or (first == 0 and not parent):
            self._wrong(item, "`->` needs an identifier on each side")
            return
        source = self._find(item, words[0], parent) if first else parent
        target = self._find(item, words[first + 1], parent)
        if source and target:
            if source != target and (source in self._above(target) or target in self._above(source)):
                self._wrong(item, "a relation cannot lead from an element to one that it stands in, or holds")
            text = "".join(map(_plain, words[first + 2 : first + 3]))
            if (source, target, text) in self.arrows:
                self._wrong(item, "this relation is there already: give it another text, or leave it out")
            self.arrows.add((source, target, text))
            self.relations.append(Relation(self.elements[source].id, self.elements[target].id, text))
        self._each(item.inside or (), {}, *_DETAILS)

    def _above(self, key: str) -> list[str]:
        """The elements that one stands in, from the inside out."""
        found = []
        while key := self.parents[key]:
            found.append(key)
        return found

    def _find(self, item: _Statement, name: str, parent: str = "") -> str:
        """The key of the element that `name` means at this place; "" (and a problem) where there is none."""
        wanted = name.lower()
        if parent and wanted == "this":
            return parent
        scopes = [parent, *self._above(parent)] if parent and self.hierarchical else []
        for key in (*(f"{scope}.{wanted}" for scope in scopes), wanted):
            if key in self.elements:
                return key
        self._wrong(item, f"`{shown(_plain(name))}` is not declared above")
        return ""

    # -- the views --

    def _views(self, item: _Statement) -> None:
        self._each(
            item.inside or (), {**dict.fromkeys(_VIEWS, self._view), "styles": self._styles, "theme": self._theme}
        )

    def _view(self, item: _Statement) -> None:
        level, rest, shows = _VIEWS[item.keyword], item.words[1:], ""
        if level:
            shows = self._find(item, rest[0]) if rest else ""
            if not rest or (shows and self.elements[shows].kind != level):
                self._wrong(item, f"a {item.words[0]} view needs the identifier of a {level}")
            rest = rest[1:]
        key = _plain(rest[0]) if rest else ""
        if key and (not _KEY.fullmatch(key) or key in self.keys):
            self._wrong(
                item, f"the key `{shown(key)}` of a view must be used once, and be of letters, digits, _ and -"
            )
        self.keys.add(key)
        inside = item.inside or ()
        self._each(inside, {}, *_IN_VIEWS)
        if not any(part.keyword == "include" for part in inside):
            self._wrong(item, "a view needs `include *` (or identifiers) between its braces")
        for part in inside:
            if part.keyword in ("include", "exclude"):
                for word in part.words[1:]:
                    if word not in ("*", "*?"):
                        self._find(part, word.removeprefix("->").removesuffix("->"))
        self.views.append((item.keyword, self.elements[shows].id if shows else ""))

    def _styles(self, item: _Statement) -> None:
        for rule in item.inside or ():
            if rule.keyword not in ("element", "relationship") or len(rule.words) != 2:
                self._wrong(rule, 'styles hold `element "Tag" { … }` and `relationship "Tag" { … }`')
            self._each(rule.inside or (), {}, *_LOOKS)

    def _theme(self, item: _Statement) -> None:
        if [word.lower() for word in item.words[1:]] != ["default"]:
            self._wrong(item, "only `theme default` is accepted: nothing may be fetched")


def structurizr_shape() -> str:
    """A grammar's expression for a small workspace with the elements of `mermaid_shape`, without its fence."""
    return (
        f'"workspace {{\\nmodel {{\\nuser = person \\"User\\" " {SHORT} "\\nsystem = softwareSystem \\"System\\" " '
        f'{SHORT} " {{\\ncore = container \\"Core\\" " {SHORT} "\\n}}\\nuser -> core " {SHORT} "\\n}}\\n'
        'views {\\nsystemContext system {\\ninclude *\\n}\\ncontainer system {\\ninclude *\\n}\\n}\\n}\\n"'
    )
