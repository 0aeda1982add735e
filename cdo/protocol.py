"""How replies are written and checked (SPEC "Reply formats"). Pure: text in, validated data out.

Each format parses the text of one kind of reply into a frozen data block, or raises `InvalidReply` with
sentences that are sent back to the model as they are. Programs see these blocks and nothing else.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar, get_args

from frontmatter.default_handlers import YAMLHandler
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from cdo import gbnf, strict_yaml
from cdo.types import InvalidReply

MAX_REPLY_CHARS = 262_144
MAX_FRONT_MATTER = 65_536  # bytes
ROLE = re.compile(r"[a-z][a-z0-9-]{0,31}")
# Names that would collide with other files of a session, or with device names of some file systems.
RESERVED_ROLES = frozenset(
    ["synthesis", "plan", "human", "final", "input", "context", "con", "prn", "aux", "nul"]
    + [f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10)]
)
_FRONT_MATTER = YAMLHandler(re.compile(r"^---[ \t]*$", re.MULTILINE))
MODEL = TypeVar("MODEL", bound=BaseModel)


def role_problem(name: str) -> str | None:
    """Say what is wrong with `name` as the name of a role, or None when it can be one."""
    if not ROLE.fullmatch(name):
        return (
            f"`{strict_yaml.shown(name)}` cannot be a role: use a-z, 0-9 and -, a letter first, at most 32 characters"
        )
    if name in RESERVED_ROLES or name.endswith("-"):
        return f"`{name}` cannot be a role: the name is reserved or ends in -"
    return None


# -- data blocks ----------------------------------------------------------------------------------


def _as_list(value: Any) -> Any:
    return [] if value is None else [value] if isinstance(value, (str, int, float)) else value


def _role(value: str) -> str:
    problem = role_problem(value)
    if problem:
        raise ValueError(problem)
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


Text = Annotated[str, Field(min_length=1, max_length=4000)]
Line = Annotated[str, Field(min_length=1, max_length=600)]
Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$")]
Share = Annotated[float, BeforeValidator(_number), Field(ge=0, le=1, allow_inf_nan=False)]
Strings = Annotated[tuple[Text, ...], BeforeValidator(_as_list), Field(max_length=64)]
RoleName = Annotated[str, AfterValidator(_role)]


class _Block(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True, str_strip_whitespace=True)


class _Tolerant(_Block):
    model_config = ConfigDict(extra="ignore")


class Claim(_Tolerant):
    """One checkable statement of a voice, with what it rests on."""

    id: Id
    text: Text
    evidence: Strings = ()


class Objection(_Tolerant):
    """What a voice holds against the leading answer; `severity` 1 (quibble) to 10 (must not be done)."""

    id: Id
    text: Text
    severity: Annotated[int, BeforeValidator(_number), Field(ge=1, le=10)]


class AgentData(_Tolerant):
    """The front matter of a voice's reply. Keys it does not know are left out, not refused."""

    position: Line
    confidence: Share
    claims: Annotated[tuple[Claim, ...], BeforeValidator(_as_list), Field(max_length=64)] = ()
    objections: Annotated[tuple[Objection, ...], BeforeValidator(_as_list), Field(max_length=64)] = ()
    changed_because: Text | None = None


class RoleWish(_Block):
    """A role that the directive asks for: by name, or with a charge and skills of its own."""

    name: RoleName
    charge: Annotated[str, Field(max_length=1000)] = ""
    skills: Strings = ()


def _role_wish(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class TensionWish(_Block):
    """A disagreement as the synthesiser reports it this turn."""

    id: Id
    title: Line
    status: Literal["open", "resolved", "accepted"]


class Directive(_Block):
    """The fenced YAML block of a synthesis: what the next turn should be, and how sure it is."""

    width: Annotated[int, BeforeValidator(_number), Field(ge=1, le=256)]
    roles: Annotated[
        tuple[Annotated[RoleWish, BeforeValidator(_role_wish)], ...], BeforeValidator(_as_list), Field(max_length=256)
    ]
    skills: Strings = ()
    focus: Annotated[str, BeforeValidator(lambda value: "" if value is None else value), Field(max_length=2000)]
    confidence: Share
    exit_ready: bool
    agreement: Share | None = None
    tensions: Annotated[tuple[TensionWish, ...], BeforeValidator(_as_list), Field(max_length=64)] = ()
    gaps: Strings = ()


class FinalData(_Block):
    """Which sections FINAL.md has; its prose stays in the file."""

    sections: tuple[str, ...]


def _validate(model: type[MODEL], data: Any, what: str) -> MODEL:
    if not isinstance(data, dict):
        raise InvalidReply([f"{what} must be a YAML mapping with the keys {', '.join(model.model_fields)}."])
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise InvalidReply([_sentence(item, what, model) for item in error.errors()[:8]]) from None


def _sentence(item: Any, what: str, model: type[BaseModel]) -> str:
    """Word one of pydantic's findings for the model that has to mend it."""
    path = ".".join(strict_yaml.shown(str(part)) for part in item["loc"]) or what
    kind = item["type"]
    if kind == "missing":
        return f"{what}: `{path}` is missing."
    if kind == "extra_forbidden":
        return f"{what}: `{path}` is not a key; the keys are {', '.join(keys_at(model, item['loc'][:-1]))}."
    if kind == "model_type":
        return f"{what}: `{path}` must be a mapping with the keys {', '.join(keys_at(model, item['loc']))}."
    return f"{what}: `{path}`: {worded(item)}."


def worded(item: Any) -> str:
    """What is wrong with a value by one of pydantic's findings, without Python's names for it."""
    plain = {"tuple_type": "must be a list", "string_type": "must be text", "string_too_short": "must not be empty"}
    if item["type"] in ("bool_type", "bool_parsing"):
        return "must be true or false"
    message = (
        str(plain.get(item["type"]) or item["msg"]).removeprefix("Value error, ").replace(" after validation", "")
    )
    return re.sub(r"^(Input|String|Value|Tuple) should\b", "must", message)


def keys_at(model: type[BaseModel], place: Iterable[object]) -> list[str]:
    """The keys that a mapping at `place` (a path such as roles, 0) of `model` can have."""
    for part in place:
        if isinstance(part, str) and part in model.model_fields:
            model = _block_in(model.model_fields[part].annotation) or model
    return list(model.model_fields)


def _block_in(annotation: Any) -> type[BaseModel] | None:
    """The block that a field holds, or holds a list or mapping of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _block_in(part))), None)


# -- text ------------------------------------------------------------------------------------------


def unwrap(text: str) -> str:
    """Take off what chat models put around a document: a byte order mark, blank lines, one outer fence."""
    text = line_breaks(text).lstrip("\ufeff").strip()
    lines = text.split("\n")
    first = _FENCE.match(lines[0])
    if not first or len(lines) < 3 or lines[-1].strip() != first[1]:
        return text
    inner, language = lines[1:-1], _language(first)
    if language in ("yaml", "yml") and not inner[0].startswith("---"):
        return text  # a lone directive
    if language in ("", "markdown", "md", "yaml", "yml") and not any(_closes(line, first[1]) for line in inner):
        return "\n".join(inner).strip()
    # Fences of the same length inside: they are the document's own if they pair up, the first one with a language.
    own = fences(inner)
    nested = own and own[0].language and all(fence.closed for fence in own)
    return "\n".join(inner).strip() if nested and language in ("markdown", "md") else text


def line_breaks(text: str) -> str:
    """`text` with one kind of line break."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def split_front_matter(text: str) -> tuple[str | None, str]:
    """Return (the YAML between the two `---` lines, the body); (None, text) where there is none.

    The YAML starts at the end of the first `---`, so that its lines count as those of `text`.
    """
    if not _FRONT_MATTER.detect(text):
        return None, text
    try:
        block, body = _FRONT_MATTER.split(text)
    except ValueError:  # never closed
        return None, text
    return block, body.strip("\n")


def front_matter(text: str) -> tuple[dict[str, Any], str]:
    """Return (the keys a reply starts with, its body); all is body where no mapping stands between two `---`."""
    block, body = split_front_matter(text)
    try:
        meta = strict_yaml.load(block or "", max_bytes=MAX_FRONT_MATTER)
    except strict_yaml.YamlProblem:
        return {}, text
    return (dict(meta), body) if isinstance(meta, dict) else ({}, text)


_FENCE = re.compile(r"[ \t]{0,3}(`{3,}|~{3,})([^`]*)$")
_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(.*)$")


@dataclass(frozen=True)
class Fence:
    """Fenced code: its first line, the one after its last, its mark and language, and whether it is closed."""

    start: int
    end: int
    mark: str
    language: str
    closed: bool


def fences(lines: Sequence[str]) -> list[Fence]:
    """The fenced code in `lines`; what is never closed runs to the end."""
    found: list[Fence] = []
    start, opened = 0, None
    for number, line in enumerate(lines):
        if opened is None:
            start, opened = number, _FENCE.match(line)
        elif _closes(line, opened[1]):
            found.append(Fence(start, number + 1, opened[1], _language(opened), True))
            opened = None
    if opened:
        found.append(Fence(start, len(lines), opened[1], _language(opened), False))
    return found


def _closes(line: str, mark: str) -> bool:
    match = _FENCE.match(line)
    return bool(match and match[1].startswith(mark) and not match[2].strip())


def _language(mark: re.Match[str]) -> str:
    return next(iter(mark[2].lower().split()), "")


def fenced(text: str, languages: Sequence[str]) -> list[tuple[str, int]]:
    """The closed code fences whose language is one of `languages`: (content, how many lines stand above it)."""
    lines = text.split("\n")
    return [
        ("\n".join(lines[fence.start + 1 : fence.end - 1]), fence.start + 1)
        for fence in fences(lines)
        if fence.closed and fence.language in languages
    ]


def headings(lines: Sequence[str]) -> list[tuple[int, int, str]]:
    """The headings outside fenced code: (number of the line, after which line its section ends, key).

    A section reaches to the next heading of its own or a higher level: what stands under smaller ones is part of it.
    """
    code = {number for fence in fences(lines) for number in range(fence.start, fence.end)}
    marks = [
        (number, len(match[1]), heading_key(match[2]))
        for number, line in enumerate(lines)
        if number not in code and (match := _HEADING.match(line))
    ]
    later = range(len(marks))
    return [
        (number, next((marks[i][0] for i in later[index + 1 :] if marks[i][1] <= level), len(lines)), key)
        for index, (number, level, key) in enumerate(marks)
    ]


def sections(text: str) -> dict[str, str]:
    """Map each heading (its letters, lower case) to the text under it; fenced code is not searched."""
    return dict(_sections(text))


@lru_cache(maxsize=4)
def _sections(text: str) -> Mapping[str, str]:
    lines = text.split("\n")
    found: dict[str, list[str]] = {}
    for start, end, key in headings(lines):
        found.setdefault(key, []).extend(lines[start + 1 : end])
    return {key: "\n".join(under).strip() for key, under in found.items()}


def heading_key(heading: str) -> str:
    """The form in which headings are compared: numbers, signs and blanks do not count."""
    return re.sub(r"[^a-z]+", "", heading.lower())


def _closed(text: str) -> str:
    """`text` with its last code fence closed."""
    last = fences(text.split("\n"))[-1:]
    return text if not last or last[0].closed else f"{text}\n{last[0].mark}"


def _too_long(text: str) -> None:
    if len(text) > MAX_REPLY_CHARS:
        raise InvalidReply([f"The reply has {len(text)} characters; at most {MAX_REPLY_CHARS} are read."])


def _twice(ids: Sequence[str], what: str) -> list[str]:
    twice = sorted({item for item in ids if ids.count(item) > 1})
    return [f"{what} {', '.join(twice)} is used twice."] if twice else []


def _load(block: str, above: int, what: str, max_bytes: int) -> Any:
    """The YAML of a reply, where `above` lines stand before it: problems are told by the reply's lines."""
    try:
        return strict_yaml.load(block, max_bytes=max_bytes)
    except strict_yaml.YamlProblem as problem:
        where = f"line {problem.line + above}, column {problem.column}: {problem.why}"
        raise InvalidReply([f"{what} is not valid YAML: {where}. Put text values between double quotes."]) from None


# -- formats ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AgentFormat:
    """A voice's reply: YAML front matter (`AgentData`), then Markdown."""

    name: str = "agent"

    def parse(self, text: str) -> AgentData:
        """Return the front matter; raise `InvalidReply`."""
        _too_long(text)
        block, _ = split_front_matter(unwrap(text))
        if block is None:
            raise InvalidReply(["The reply must start with YAML front matter: a line `---`, the keys, a line `---`."])
        data = _validate(AgentData, _load(block, 0, "The front matter", MAX_FRONT_MATTER), "The front matter")
        problems = [
            *_twice([claim.id for claim in data.claims], "claims: the id"),
            *_twice([objection.id for objection in data.objections], "objections: the id"),
        ]
        if problems:
            raise InvalidReply(problems)
        return data

    def repair(self, text: str) -> tuple[str, tuple[str, ...]] | None:
        """Nothing: a voice whose reply cannot be read is a missing voice."""
        return None

    def grammar(self) -> str:
        """Front matter with one position, two claims and at most one objection, then short prose."""
        claim = '"  - id: c{0}\\n    text: " quoted "\\n    evidence: [" quoted "]\\n"'
        return gbnf.grammar(
            {
                "root": '"---\\nposition: " quoted "\\nconfidence: " number "\\nclaims:\\n" '
                f'{claim.format(1)} ({claim.format(2)})? objection? "---\\n\\n" prose',
                "objection": '"objections:\\n  - id: o1\\n    text: " quoted "\\n    severity: " [1-9] "\\n"',
                "quoted": gbnf.quoted(16, 120),
                "number": gbnf.number01(),
                "prose": gbnf.text(80, 500),
            }
        )


SYNTHESIS_SECTIONS = (
    "Common ground",
    "Tensions",
    "Gaps",
    "Surprises",
    "Anti-groupthink",
    "Next turn directive",
)


@dataclass(frozen=True)
class SynthesisFormat:
    """The synthesis: six sections, the last with exactly one fenced `yaml` block (`Directive`).

    `width` is the band the grammar holds a small model to; `roles` are names it may pick from.
    """

    width: tuple[int, int] = (1, 9)
    roles: tuple[str, ...] = ("architect", "critic")
    name: str = "synthesis"

    def parse(self, text: str) -> Directive:
        """Return the directive; raise `InvalidReply` with everything that is wrong."""
        _too_long(text)
        text = unwrap(text)
        problems: list[str] = []
        try:
            directive = self._directive(text)
        except InvalidReply as invalid:
            problems += invalid.problems
        problems += [f"The section `## {name}` is missing." for name in self._absent(text)]
        if problems:
            raise InvalidReply(problems)
        return directive

    def _directive(self, text: str) -> Directive:
        blocks = fenced(text, ("yaml", "yml"))
        if len(blocks) != 1:
            raise InvalidReply(
                [f"There must be exactly one fenced ```yaml block, closed by ```; {len(blocks)} were found."]
            )
        directive = _validate(Directive, _load(*blocks[0], "The directive", 8192), "The directive")
        problems = [
            *_twice([tension.id for tension in directive.tensions], "tensions: the id"),
            *_twice([role.name for role in directive.roles], "roles: the name"),
        ]
        if problems:
            raise InvalidReply(problems)
        return directive

    def _absent(self, text: str) -> list[str]:
        have = sections(text)
        return [name for name in SYNTHESIS_SECTIONS if heading_key(name) not in have]

    def repair(self, text: str) -> tuple[str, tuple[str, ...]] | None:
        """Put in the headings that are missing, where the directive itself is sound."""
        text = _closed(unwrap(text))
        absent = self._absent(text)
        mended = "\n\n".join([text, *(f"## {name}\n\n(Left out by the synthesiser.)" for name in absent)])
        try:
            self.parse(mended)
        except InvalidReply:
            return None
        return mended, tuple(f"section {name}" for name in absent)

    def grammar(self) -> str:
        """Every section with one or two short lines, and a directive within the band."""
        low, high = self.width
        heads = " ".join(f'"## {name}\\n\\n" points' for name in SYNTHESIS_SECTIONS[:-1])
        # Each place picks from names of its own, so that no role comes twice.
        places = min(max(low, 1), high, 3, len(self.roles))
        picks = ' ", " '.join(f"role-{number}" for number in range(places))
        return gbnf.grammar(
            {
                "root": f'{heads} "## Next turn directive\\n\\n```yaml\\n" directive "```\\n"',
                "points": 'point point? "\\n"',
                "point": f'"- " {gbnf.line(20, 140)} "\\n"',
                "directive": '"width: " width "\\nroles: [" roles "]\\nskills: []\\nfocus: " quoted '
                '"\\nconfidence: " number "\\nexit_ready: " bool "\\nagreement: " number '
                '"\\ntensions: [" tension? "]\\ngaps: [" quoted? "]\\n"',
                "width": gbnf.choice([str(n) for n in range(low, min(high, low + 8) + 1)]),
                "roles": picks,
                **{f"role-{number}": gbnf.choice(self.roles[number::places]) for number in range(places)},
                "bool": gbnf.choice(["true", "false"]),
                "tension": '"{id: T1, title: " quoted ", status: " status "}"',
                "status": gbnf.choice(["open", "resolved", "accepted"]),
                "quoted": gbnf.quoted(12, 100),
                "number": gbnf.number01(),
            }
        )


FINAL_SECTIONS = ("Decision", "Confidence", "Key Tensions", "Minority Reports", "Action Items")
_FINAL_NAMES = {
    "Decision": ("decision", "decisionanswer", "answer", "thedecision"),
    "Confidence": ("confidence",),
    "Key Tensions": ("keytensions", "tensions", "keytension"),
    "Minority Reports": ("minorityreports", "minorityreport", "dissent", "dissents"),
    "Action Items": ("actionitems", "actions", "nextsteps", "actionitem"),
}


def final_section(text: str, name: str) -> str | None:
    """The text under one of FINAL.md's headings (also under its other usual names), or None."""
    found = _sections(text)
    return next((found[key] for key in _FINAL_NAMES[name] if key in found), None)


def add_to_section(text: str, name: str, added: str, *, first: bool = False) -> str:
    """`text` with `added` as the last (or first) lines under one of FINAL.md's headings, which must be there."""
    lines = text.split("\n")
    found = {key: (start, end) for start, end, key in reversed(headings(lines))}
    start, end = next(found[key] for key in _FINAL_NAMES[name] if key in found)
    if first:
        after = "\n".join(lines[start + 1 :]).strip("\n")
        return "\n".join([*lines[: start + 1], "", added, *(["", after] if after else [])])
    while not lines[end - 1].strip():
        end -= 1
    return "\n".join([*lines[:end], *([""] if end == start + 1 else []), added, *lines[end:]])


@dataclass(frozen=True)
class Dissent:
    """An objection recorded in the last turn: it must have its minority report."""

    id: str
    role: str
    text: str
    severity: int


@dataclass(frozen=True)
class FinalFormat:
    """FINAL.md as the model writes it: five sections, no tension and no dissent left out.

    `tensions` are (id, title, status) of the whole ledger; `dissents` those of the last turn.
    """

    tensions: tuple[tuple[str, str, str], ...] = ()
    dissents: tuple[Dissent, ...] = ()
    name: str = "final"

    def parse(self, text: str) -> FinalData:
        """Return which sections are there; raise `InvalidReply` naming each thing left out."""
        _too_long(text)
        body = front_matter(unwrap(text))[1]
        problems = [
            f"The section `## {name}` is missing." for name in FINAL_SECTIONS if final_section(body, name) is None
        ]
        if not problems and not final_section(body, "Decision"):
            problems.append("The section `## Decision` is empty.")
        problems += [
            f"Key Tensions must say what became of {ident} ({_one_line(title)})."
            for ident, title, _ in self._lost_tensions(body)
        ]
        problems += [
            f"Minority Reports must record objection {item.id} of {item.role}: {_one_line(item.text)[:300]}"
            for item in self._lost_dissents(body)
        ]
        if problems:
            raise InvalidReply(problems)
        return FinalData(sections=FINAL_SECTIONS)

    def _lost_tensions(self, body: str) -> list[tuple[str, str, str]]:
        place = final_section(body, "Key Tensions") or ""
        return [item for item in self.tensions if not _mentions(place, item[:2])]

    def _lost_dissents(self, body: str) -> list[Dissent]:
        """What the minority reports do not speak of.

        Ids are unique within one voice's reply only: two voices may use one for different objections. The same
        objection of several voices is one dissent.
        """
        place = final_section(body, "Minority Reports") or ""
        roles = Counter(item.role for item in self.dissents)
        ids = Counter(ident for ident, _ in {(item.id, item.text) for item in self.dissents})
        named = _attributed(place, list(roles), list(ids))

        def recorded(item: Dissent) -> bool:
            names = [item.text]
            names += [item.id] if ids[item.id] == 1 else []
            names += [item.role] if roles[item.role] == 1 else []
            return _mentions(place, names) or (_word(item.role), _word(item.id)) in named

        return [item for item in self.dissents if not recorded(item)]

    def repair(self, text: str) -> tuple[str, tuple[str, ...]] | None:
        """Add, word for word from the record, what the model still leaves out; it never gets lost."""
        body = _closed(front_matter(unwrap(text))[1])
        if not final_section(body, "Decision"):
            return None
        added: list[str] = []
        for name in FINAL_SECTIONS:
            if final_section(body, name) is None:
                body = f"{body.rstrip()}\n\n## {name}\n\nNothing was written here."
                added.append(f"section {name}")
        if tensions := self._lost_tensions(body):
            lines = [
                f"- **{ident}** ({status}): {_one_line(title)} *(added by cdo)*" for ident, title, status in tensions
            ]
            body = add_to_section(body, "Key Tensions", "\n".join(lines))
            added += [f"tension {ident}" for ident, *_ in tensions]
        if dissents := self._lost_dissents(body):
            lines = [
                f"- **{item.role}** ({item.id}, severity {item.severity}): {_one_line(item.text)} *(added by cdo)*"
                for item in dissents
            ]
            body = add_to_section(body, "Minority Reports", "\n".join(lines))
            added += [f"minority report {item.role}/{item.id}" for item in dissents]
        try:
            self.parse(body)
        except InvalidReply:
            return None
        return body, tuple(added)

    def grammar(self) -> str:
        """The five sections, with every tension and dissent spelled out ahead."""
        tensions = [f"- **{ident}** ({status}): {_plain(title)}. " for ident, title, status in self.tensions]
        dissents = [f"- **{item.role}** ({item.id}): {_plain(item.text)}. " for item in self.dissents]

        def listed(heads: list[str]) -> str:
            return " ".join(f'{gbnf.literal(head)} said "\\n"' for head in heads) or '"None.\\n"'

        return gbnf.grammar(
            {
                "root": f'"## Decision\\n\\n" prose "\\n\\n## Confidence\\n\\n" said "\\n\\n## Key Tensions\\n\\n" '
                f'{listed(tensions)} "\\n## Minority Reports\\n\\n" {listed(dissents)} '
                '"\\n## Action Items\\n\\n" ("- " said "\\n"){1,3}',
                "prose": gbnf.text(80, 400),
                "said": gbnf.line(20, 140),
            }
        )


def _plain(text: str) -> str:
    """Text that can stand in a grammar's literal: one line of plain ASCII, at most 200 characters."""
    return re.sub(r"[^ -~]|[\"\\]", " ", text)[:200]


def _one_line(text: str) -> str:
    """Recorded text as it stands in a list: it cannot begin a line, and so no heading or fence."""
    return " ".join(text.split())


def _mentions(place: str, names: Sequence[str]) -> bool:
    """Whether one of `names` stands in `place` as a whole word (or phrase); case and emphasis do not count."""
    folded = _folded(place)
    return any(next(_places(folded, _word(name)), None) is not None for name in names)


def _attributed(place: str, roles: Sequence[str], ids: Sequence[str]) -> set[tuple[str, str]]:
    """Which (role, id) are spoken of: an id goes with the role named before it, or with the next one on its line."""
    found: set[tuple[str, str]] = set()
    words = {_word(name): (name in roles, name in ids) for name in (*roles, *ids)}
    last = ""
    for line in place.split("\n"):
        folded = _fold(line)
        named = [word for _, word in sorted((start, word) for word in words for start in _places(folded, word))]
        for index, word in enumerate(named):
            is_role, is_id = words[word]
            if is_id:
                later = next((other for other in named[index + 1 :] if words[other][0]), "")
                found |= {(last, word), (later, word)}
            if is_role:
                last = word
    return found


def _places(folded: str, word: str) -> Iterator[int]:
    """Where `word` stands by itself: T1 is neither in T10 nor in T1.5 or T1-b, but in `T1.` and `T1:`."""
    start = folded.find(word) if word else -1
    while start >= 0:
        end = start + len(word)
        if not _goes_on(folded[end : end + 2]) and not _goes_on(folded[max(0, start - 2) : start][::-1]):
            yield start
        start = folded.find(word, start + 1)


def _goes_on(beside: str) -> bool:
    """Whether a word goes on with the characters beside it, the nearest first."""
    return beside[:1] in _IN_WORDS or (beside[:1] in _JOINTS and beside[1:2] in _IN_WORDS)


_IN_WORDS, _JOINTS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789"), frozenset("-._")
_SIGNS = {
    ord(sign): plain for sign, plain in zip("*`\u2018\u2019\u201c\u201d\u2011", ["", "", *"''\"\"-"], strict=True)
}


def _word(name: str) -> str:
    """A name as it is looked for in folded text."""
    return _fold(name).strip(" .,;:!?")


def _fold(text: str) -> str:
    """Text as mentions compare it: lower case, one blank between words, Markdown's emphasis off, plain quotes."""
    bare = re.sub(r"(?<![^\W_])_+|_+(?![^\W_])", "", text.translate(_SIGNS))
    return " ".join(bare.casefold().split())


_folded = lru_cache(maxsize=4)(_fold)
