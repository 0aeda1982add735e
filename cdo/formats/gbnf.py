"""Writes GBNF, the grammar language with which llama.cpp restricts a model's reply, from small combinators.

Every function returns an expression (a piece of the right side of a rule) as a plain string; `grammar`
joins named rules into a grammar. An expression may use a rule by writing its name. Nothing here knows
what a reply looks like: the reply formats do.

    grammar({"root": f'{literal("answer: ")} {quoted(5, 80)} "\\n" {items("point", 1, 3)}',
             "point": f'"- " {line(10, 120)} "\\n"'})

Three rules come from experiments with a 135M model and are built in here, so that callers need not know them:

- Every run of characters has a bound and starts with a capital, unless `start` says otherwise. Without
  this rule, a small model opens a quote with debris such as `])){` or another language, and runs into the
  token limit inside a repeating string. A model that quotes paths needs `start="[A-Za-z0-9./]"`.
- A run that reaches its bound ends with an ellipsis (`line`, `quoted`) or its sentence (`text`). Asked to
  end with a whole word instead, a small model glues words together to get round the missing space.
- Only ASCII without backtick is offered: no fence can open in the middle of prose, and a model that drifts
  into another language or emoji is pulled back.

Bounded repetition of characters is cheap (`[a-z]{0,1900}` costs no measurable time per token). llama.cpp
limits the product of *nested* repetitions written inside one rule to 2,000, so `repeat` and `items` only
take something that is a single unit; name the inner repetition as a rule of its own.

All functions raise ValueError for arguments that would make a grammar that no reply can satisfy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_RULE_NAME = re.compile(r"[a-z][a-z0-9-]*")
_CLASS = r"\[(?:[^\]\\\n]|\\.)+\]"
_LITERAL = r'"(?:[^"\\\n]|\\.)*"'
_UNIT = re.compile(rf"{_RULE_NAME.pattern}|{_CLASS}|{_LITERAL}")

_CAPITAL = "[A-Z]"
_PLAIN = r"[ -_a-~]"  # printable ASCII without backtick
_QUOTED = r"[ !#-\[\]-_a-~]"  # the same as _PLAIN without quote and backslash
# Rules that expressions made here may use; `grammar` adds the used ones.
_OWN_RULES = {"prose-unit": rf'{_PLAIN} | "\n" "\n"? {_CAPITAL}'}  # a character, or a break and a line's start
_LONGEST = 2000  # repetitions of one unit that llama.cpp accepts; half as many for a unit of two parts
_CUT = "..."  # the end of a line that was cut
_SENTENCE_TAIL = 80  # characters within which most sentences end


def literal(text: str) -> str:
    """Exactly `text`, which may hold line breaks and any characters but NUL and half surrogate pairs.

    Keep it to ASCII for a small model: SmolLM2 has no token for some bytes of rare characters and for six
    control characters (4, 6, 19, 20, 22 and 29), and a reply that is forced to write one ends in HTTP 500.
    """
    if not text or "\0" in text:
        raise ValueError(f"a literal needs characters other than NUL: {text!r}")
    text.encode()  # raises UnicodeEncodeError, a ValueError
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}
    shown = (escapes.get(char) or (f"\\x{ord(char):02x}" if char < " " else char) for char in text)
    return f'"{"".join(shown)}"'


def choice(options: Iterable[str]) -> str:
    """One of the given texts (texts, not expressions)."""
    found = [literal(option) for option in options]
    if not found:
        raise ValueError("a choice needs at least one option")
    return "(" + " | ".join(dict.fromkeys(found)) + ")"


def either(*expressions: str) -> str:
    """One of the given expressions."""
    if not expressions:
        raise ValueError("either needs at least one expression")
    return "(" + " | ".join(expressions) + ")"


def optional(expression: str) -> str:
    """The expression, or nothing."""
    return f"({expression})?"


def boolean() -> str:
    """`true` or `false`."""
    return choice(["true", "false"])


def number01() -> str:
    """A share from 0.00 to 0.99 with two decimals. (Were 1.00 offered, a small model would take nothing else.)"""
    return '"0." [0-9] [0-9]'


def integer(low: int, high: int) -> str:
    """An integer from `low` to `high`, both included (at most 200 values)."""
    if not 0 <= low <= high or high - low >= 200:
        raise ValueError(f"no integer range: {low}..{high}")
    return choice(str(number) for number in range(low, high + 1))


def line(low: int, high: int, start: str = _CAPITAL) -> str:
    """One line of `low` to `high` characters without its line break; `start` is the class of its first character."""
    return _run(low, high, _PLAIN, start)


def quoted(low: int, high: int, start: str = _CAPITAL) -> str:
    """A double-quoted one-line string of `low` to `high` characters, not counting the quotes.

    It holds neither quotes nor backslashes, so it reads the same in YAML, JSON and Python.
    """
    return f'"\\"" {_run(low, high, _QUOTED, start)} "\\""'


def text(low: int, high: int) -> str:
    """Prose of `low` to `high` characters, in lines that start with a capital.

    A line break counts as one character together with the empty line it may bring and the capital after
    it, so the text is at most two characters longer per break. No break follows another directly, so
    only words can fill the text, and prose that reaches the bound ends with its sentence.
    """
    _check(low, high)
    unit = "prose-unit"
    if high - low <= 2 * _SENTENCE_TAIL:  # too narrow to reserve room for the end of a sentence
        return f"{_CAPITAL} {unit}{{{low - 1},{high - 1}}}"
    full = high - 1 - _SENTENCE_TAIL
    end = rf"[ \"-\-/->@-_a-~]{{0,{_SENTENCE_TAIL - 1}}} [.!?]"
    return f"{_CAPITAL} ({unit}{{{low - 1},{full - 1}}} | {unit}{{{full}}} {end})"


def repeat(unit: str, low: int, high: int) -> str:
    """`unit` (a rule's name, a character class or a literal) `low` to `high` times in a row."""
    if not _UNIT.fullmatch(unit):
        raise ValueError(f"repeat takes a rule name, a class or a literal; make this a rule: {unit}")
    if not 0 <= low <= high <= _LONGEST // 2 or high == 0:
        raise ValueError(f"no repetition range (up to {_LONGEST // 2}): {low}..{high}")
    return f"{unit}{{{low},{high}}}"


def items(unit: str, low: int, high: int, separator: str = "") -> str:
    """`unit` (as for `repeat`) `low` to `high` times with the text `separator` between two of them."""
    if not separator or high == 1:
        return repeat(unit, low, high)
    repeat(unit, low, high)  # checks the arguments
    several = f"{unit} ({literal(separator)} {unit}){{{max(low, 1) - 1},{high - 1}}}"
    return several if low else optional(several)


def grammar(rules: Mapping[str, str]) -> str:
    """Join named rules into one grammar; the reply is what the rule `root` describes.

    Raises ValueError for a missing root, a name that GBNF cannot hold (`[a-z][a-z0-9-]*`), and a rule that
    is used but not given.
    """
    if "root" not in rules:
        raise ValueError("a grammar needs a rule named root")
    own = {name: rule for name, rule in _OWN_RULES.items() if any(name in rule for rule in rules.values())}
    rules = {**rules, **own}
    for name, expression in rules.items():
        if not _RULE_NAME.fullmatch(name):
            raise ValueError(f"not a rule name: {name!r}")
        bare = re.sub(rf"{_CLASS}|{_LITERAL}", " ", expression)
        unknown = sorted(set(re.findall(r"[A-Za-z][\w-]*", bare)) - set(rules))
        if unknown or "\n" in bare:
            raise ValueError(f"rule {name} " + (f"uses unknown rules: {unknown}" if unknown else "spans lines"))
    return "".join(f"{name} ::= {expression}\n" for name, expression in rules.items())


def _check(low: int, high: int) -> None:
    if not 1 <= low <= high <= _LONGEST:
        raise ValueError(f"no length range (up to {_LONGEST}): {low}..{high}")


def _run(low: int, high: int, character: str, start: str) -> str:
    """Match `low` to `high` times `character`; a run that reaches the bound ends with an ellipsis."""
    _check(low, high)
    if high <= low + len(_CUT):  # too narrow to reserve room for the ellipsis
        return f"{start} {character}{{{low - 1},{high - 1}}}"
    full = high - 1 - len(_CUT)
    return f"{start} ({character}{{{low - 1},{full - 1}}} | {character}{{{full}}} {literal(_CUT)})"
