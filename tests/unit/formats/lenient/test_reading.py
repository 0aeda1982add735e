"""Replies that deviate from their format: what is read from them, what is noted, and what stays invalid."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct, to_builtins

from cdo.core.steps import InvalidReply, ReplyFormat
from cdo.formats import strict_yaml
from cdo.formats.final_answer import FINAL_SECTIONS, FinalFormat
from cdo.formats.lenient.reading import read, repaired
from cdo.formats.voice import SYNTHESIS_SECTIONS, AgentFormat, SynthesisFormat
from cdo.programs.audit.program import ComparisonFormat
from cdo.programs.debug.reply_formats import CaseFormat, CaseSynthesis
from cdo.programs.deliberation.draft_review import ReviewFormat
from cdo.programs.deliberation.findings import FindingsFormat
from cdo.programs.parliament.minutes import SpeechFormat
from cdo.programs.parliament.motions import House
from tests.support.effort import assert_linear

quick = settings(max_examples=120, deadline=None)
AGENT, SYNTHESIS, FINAL = AgentFormat(), SynthesisFormat(), FinalFormat()
CLAIM = {"id": "c1", "text": "the cache is cold", "evidence": ['a.py:3 "x = 1"']}
DATA: dict[str, Any] = {"position": "stage it", "confidence": 0.7, "claims": [CLAIM]}
KEYS = (
    'position: "stage it"\nconfidence: 0.7\nclaims:\n  - id: c1\n    text: "the cache is cold"\n'
    '    evidence: ["a.py:3 \\"x = 1\\""]'
)
BODY = "# Why\n\nBecause."


def voice(keys: str = KEYS, body: str = BODY) -> str:
    return f"---\n{keys}\n---\n\n{body}\n"


def keys(**changed: str) -> str:
    """The keys of a voice with other values, written as they are."""
    lines = [line for line in KEYS.split("\n") if line.split(":")[0] not in changed]
    return "\n".join([*(f"{key}: {value}" for key, value in changed.items()), *lines])


def only(**more: str) -> str:
    """The two required keys of a voice, and others."""
    return "\n".join(['position: "stage it"', "confidence: 0.7", *(f"{key}:{value}" for key, value in more.items())])


def told(form: ReplyFormat, text: str) -> tuple[dict[str, Any], str, tuple[str, ...]]:
    """The data of a reply, its text and its notes; the text is read strictly as the same data, also when stored."""
    found = read(form, text)
    assert form.parse(found.text) == found.data
    assert read(form, found.text).notes == ()
    data = found.data
    keys = to_builtins(data) if isinstance(data, Struct) else data.model_dump(mode="json", exclude_defaults=True)
    return keys, found.text, found.notes


def problems(form: ReplyFormat, text: str) -> tuple[str, ...]:
    with pytest.raises(InvalidReply) as caught:
        read(form, text)
    return caught.value.problems


# -- what stands around the data of a voice --------------------------------------------------------

FENCE, RULE = "took the data out of a code fence", "took the keys without a line `---` above them"
SENTENCE, THOUGHTS = "left out a sentence before the front matter", "left out the model's thoughts before its reply"
HEADING, BLANK = (f"took a {what} for the end of the front matter" for what in ("heading", "blank line"))
JSON = json.dumps(DATA)
INNER = "Look:\n\n```python\nx = 1\n```\n\nDone."

AROUND: dict[str, tuple[str, tuple[str, ...], str]] = {
    "as asked": (voice(), (), BODY),
    "a sentence first": (f"Here is my reply.\n\n{voice()}", (SENTENCE,), BODY),
    "a yaml fence and rules": (f"```yaml\n---\n{KEYS}\n---\n```\n\n{BODY}", (FENCE,), BODY),
    "a yaml fence": (f"```yaml\n{KEYS}\n```\n\n{BODY}", (FENCE,), BODY),
    "a fence between rules": (f"---\n```yaml\n{KEYS}\n```\n---\n\n{BODY}", (FENCE,), BODY),
    "a fence and a sentence": (f"Sure:\n\n```markdown\n{voice()}\n```", (FENCE, SENTENCE), BODY),
    "words behind a fence": (
        f"```md\n{voice()}\n```\n\nI hope that it helps.",
        (FENCE, "left out a sentence behind the fence"),
        BODY,
    ),
    "code in a fence": (f"Sure:\n\n```markdown\n{voice(body=INNER)}```", (FENCE, SENTENCE), INNER),
    "dots at the end": (f"---\n{KEYS}\n...\n\n{BODY}", ("took `...` for `---`",), BODY),
    "long rules": (f"-----\n{KEYS}\n-----\n\n{BODY}", ("took `-----` for `---`",), BODY),
    "stars for rules": (f"***\n{KEYS}\n***\n\n{BODY}", ("took `***` for `---`",), BODY),
    "a sentence, then JSON": (f"Here it is:\n\n{JSON}\n\n{BODY}", ("read the data as JSON", SENTENCE), BODY),
    "think": (f"<think>No:\n{voice('position: no')}</think>\n{voice()}", (THOUGHTS,), BODY),
    "thinking": (f"<thinking>\nHm.\n</thinking>\n\n{voice()}", (THOUGHTS,), BODY),
    "thoughts twice": (f"<think>a</think><think>b</think>{voice()}", (THOUGHTS,), BODY),
    "thoughts without a start": (f"I wonder.\n</think>\n\n{voice()}", (THOUGHTS,), BODY),
    "thoughts and a sentence": (f"<think>a</think>Well:\n{voice()}", (THOUGHTS, SENTENCE), BODY),
    "no end, a heading": (f"---\n{KEYS}\n\n{BODY}", (HEADING,), BODY),
    "no end, a blank line": (f"---\n{KEYS}\n\nBecause: it is.\n", (BLANK,), "Because: it is."),
    "no end, a rule below": (f"---\n{KEYS}\n\n{BODY}\n\n---\n\nMore.", (HEADING,), f"{BODY}\n\n---\n\nMore."),
    "no start": (f"{KEYS}\n---\n\n{BODY}", (RULE,), BODY),
    "no rules": (f"{KEYS}\n\n{BODY}", (RULE, HEADING), BODY),
    "JSON": (JSON, ("read the data as JSON",), ""),
    "JSON in a fence": (f"```json\n{JSON}\n```\n\n{BODY}", (FENCE, "read the data as JSON"), BODY),
    "JSON, then text": (f"{JSON}\n\n{BODY}", ("read the data as JSON",), BODY),
    "JSON with the text": (json.dumps({**DATA, "body": BODY}), ("read the data as JSON",), BODY),
    "JSON with a comma": (
        f"{JSON[:-1]},\n}}",
        ("left out a comma before a closing bracket", "read the data as JSON"),
        "",
    ),
    "JSON with curly quotes": (
        JSON.replace('"position"', "“position”"),
        ("read curly quotes as straight ones", "read the data as JSON"),
        "",
    ),
    "JSON in an object": (json.dumps({"reply": DATA}), ("read the data as JSON", "took the keys out of `reply`"), ""),
}


@pytest.mark.parametrize(("text", "notes", "body"), AROUND.values(), ids=AROUND)
def test_a_voice_is_read_from_what_stands_around_it(text: str, notes: tuple[str, ...], body: str) -> None:
    data, kept, found = told(AGENT, text)
    assert (data, found) == (DATA, notes)
    if notes and notes != (THOUGHTS,):
        assert kept.split("---\n", 2)[2].strip() == body


def test_reasoning_before_the_front_matter_is_kept_below_it() -> None:
    before = "# First thoughts\n\n" + "The log says so. " * 30
    _, kept, notes = told(AGENT, f"{before}\n\n{voice()}")
    assert notes == ("moved the text before the front matter below it",)
    assert kept.endswith(f"---\n\n{before.strip()}\n\n{BODY}\n")


# -- the data of a voice ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("60%", 0.6),
        ("60 %", 0.6),
        ("72", 0.72),
        ("72 of 100", 0.72),
        ("72/100", 0.72),
        ("8/10", 0.8),
        ('"8 out of 10"', 0.8),
        ("0.72 (fairly sure)", 0.72),
        ("~0.7", 0.7),
        ("about 70%", 0.7),
        ('"0,7"', 0.7),
        ("100%", 1.0),
        ("100", 1.0),
        ('"0.7 (moderate)"', 0.7),
        ("moderate (0.7)", 0.7),
        ('"High: 80%"', 0.8),
        ("0.7 — moderate, for now", 0.7),
        ("0.7, moderate", 0.7),
        ("0.7/1.0", 0.7),
        ("72,5\u202f%", 0.725),
        ("'**0.7**'", 0.7),
        ("{value: 0.7, why: no log}", 0.7),
    ],
)
def test_a_confidence_is_read_where_it_is_certain(written: str, value: float) -> None:
    data, _, notes = told(AGENT, voice(keys(confidence=written)))
    assert data["confidence"] == pytest.approx(value)
    assert len(notes) == 1 and notes[0].startswith("read confidence ") and notes[0].endswith(f" as {value:g}")


@pytest.mark.parametrize(
    "written", ["8", "10", "2", "140%", "140", "high", "0.6-0.7", "8/7", "11/10", "-5%", "true", "[0.7, 0.8]", "1.5",
     "at most 0.7", "below 60%", "high - 8", "0.6 – 0.7", "{low: 0.6, high: 0.8}"]
)  # fmt: skip
def test_a_confidence_that_is_not_certain_is_sent_back(written: str) -> None:
    """8 could be 8% or 8 of 10. Nobody can be 140% sure."""
    assert "`confidence`" in problems(AGENT, voice(keys(confidence=written)))[0]


QUOTED = ("put the text of `position` between quotes",)


@pytest.mark.parametrize(
    ("written", "position"),
    [
        ("Stage it: the cache first", "Stage it: the cache first"),
        ('"We say "no" to it"', 'We say "no" to it'),
        ('"Yes" is the answer', '"Yes" is the answer'),
        ('"Yes" and "no"', '"Yes" and "no"'),
        ("'It's cold'", "It's cold"),
        ("`f` returns 2", "`f` returns 2"),
        ("#3 is the best", "#3 is the best"),
        ("Fix: see #12 now", "Fix: see #12 now"),
        ("[Keep] all of it", "[Keep] all of it"),
        ("*Keep* it", "*Keep* it"),
        ("@ops decides", "@ops decides"),
        ("%d is wrong", "%d is wrong"),
        ("> 3 nodes", "> 3 nodes"),
        ("- keep it", "- keep it"),
        ("! never", "! never"),
        ("Stage it: the cache\n  first, then the rest", "Stage it: the cache first, then the rest"),
        (r'"see C:\program"', r"see C:\program"),
    ],
)
def test_text_that_needs_quotes_is_read_without_them(written: str, position: str) -> None:
    data, _, notes = told(AGENT, voice(keys(position=written)))
    assert (data, notes) == ({**DATA, "position": position}, QUOTED)


def test_quotes_inside_evidence_are_read() -> None:
    text = voice(only(claims='\n  - id: c1\n    text: late\n    evidence: ["a.py:3 "x, y" here", "b.py:4"]'))
    assert told(AGENT, text)[0]["claims"][0]["evidence"] == ['a.py:3 "x, y" here', "b.py:4"]


OBJECTIONS = "objections"


@pytest.mark.parametrize(
    ("written", "expected", "notes"),
    [
        (
            only(claims="\n  - the cache is cold\n  - c4: it is late"),
            {"claims": [{"id": "c1", "text": "the cache is cold"}, {"id": "c4", "text": "it is late"}]},
            ("took an item of `claims` from a plain string", "numbered `claims`"),
        ),
        (
            only(claims="\n  c7: it is late\n  c8: it is cold"),
            {"claims": [{"id": "c7", "text": "it is late"}, {"id": "c8", "text": "it is cold"}]},
            ("read the mapping `claims` as a list",),
        ),
        (
            only(claims=" [{text: a}, {id: c1, text: b}]"),
            {"claims": [{"id": "c2", "text": "a"}, {"id": "c1", "text": "b"}]},
            ("numbered `claims`",),
        ),
        (
            only(objections="\n  - it breaks (severity 7)\n  - o3: it is slow [8/10]"),
            {
                OBJECTIONS: [
                    {"id": "o1", "text": "it breaks", "severity": 7},
                    {"id": "o3", "text": "it is slow", "severity": 8},
                ]
            },
            ("took an item of `objections` from a plain string", "numbered `objections`"),
        ),
        (
            only(objections=" [{id: o1, text: no, severity: 7/10}]"),
            {OBJECTIONS: [{"id": "o1", "text": "no", "severity": 7}]},
            ("read severity 7/10 as 7",),
        ),
        (
            only(objections="\n  - {id: o1, text: no, severity: 6 (major)}"),
            {OBJECTIONS: [{"id": "o1", "text": "no", "severity": 6}]},
            ("read severity 6 (major) as 6",),
        ),
        (
            only(claims="\n  1. it is late\n  2) it is cold,\n     I think"),
            {"claims": [{"id": "c1", "text": "it is late"}, {"id": "c2", "text": "it is cold, I think"}]},
            ("took an item of `claims` from a plain string", "numbered `claims`"),
        ),
        (
            only(claims=" [late]", objections=" None."),
            {"claims": [{"id": "c1", "text": "late"}]},
            (
                "took an item of `claims` from a plain string",
                "read None. as no `objections`",
                "numbered `claims`",
            ),
        ),
        (only(objections="\n  - n/a"), {}, ("read n/a as no `objections`",)),
        (
            only(claims=" [{id: c1, text: a}, {id: c1, text: b}, {id: c2, text: d}]"),
            {"claims": [{"id": "c1", "text": "a"}, {"id": "c3", "text": "b"}, {"id": "c2", "text": "d"}]},
            ("gave a second c1 of `claims` the id c3",),
        ),
        (
            only(claims=" [{id: c1, text: a}, {id: c1, text: a}]", objections=" [{id: o1, text: b}]").replace(
                "text: b", "text: b, severity: 3, against: c1"
            ),
            {
                "claims": [{"id": "c1", "text": "a"}],
                OBJECTIONS: [{"id": "o1", "text": "b", "severity": 3, "against": "c1"}],
            },
            ("left out an item of `claims` that was there twice",),
        ),
        (
            'Position: "stage it"\nCONFIDENCE: 0.7\nChanged-Because: a log',
            {"changed_because": "a log"},
            tuple(
                f"read the key `{key}` as `{key.lower().replace('-', '_')}`"
                for key in ("Position", "CONFIDENCE", "Changed-Because")
            ),
        ),
        ('“position”: "stage it"\nconfidence: 0.7', {}, ("read the key `“position”` as `position`",)),
        (
            '**position:** "stage it"\n**confidence**: 0.7',
            {},
            ("took the marks off the key `position`", "took the marks off the key `confidence`"),
        ),
        (
            only(claims="\n\t- id: c1\n\t\ttext: a"),
            {"claims": [{"id": "c1", "text": "a"}]},
            ("read tabs as indentation",),
        ),
        ("position: [stage it]\nconfidence: 0.7", {}, ("took `position` out of a list",)),
    ],
)
def test_the_data_of_a_voice_is_read_where_it_is_certain(
    written: str, expected: dict[str, Any], notes: tuple[str, ...]
) -> None:
    data, _, found = told(AGENT, voice(written))
    assert data == {"position": "stage it", "confidence": 0.7, **expected}
    assert found == notes


SAME, LINE = {"position": "stage it", "confidence": 0.7}, "took an item of `claims` from a plain string"
TWO = {**SAME, "claims": [{"id": "c1", "text": "it is late"}, {"id": "c2", "text": "it is cold"}]}
BY_ID = [{"id": "o1", "text": "no", "severity": 8}]
ODD: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "bullets": (voice(only(claims="\n  • it is late\n  • it is cold")), TWO, (LINE, "numbered `claims`")),
    "emoji": (voice(only(claims="\n  ✅ it is late\n  ✅ it is cold")), TWO, (LINE, "numbered `claims`")),
    "stars": (voice(only(claims="\n  * it is late\n  * it is cold")), TWO, (LINE, "numbered `claims`")),
    "ids in brackets": (voice(only(claims="\n  - (c1) it is late\n  - '[c2] it is cold'")), TWO, (LINE,)),
    "a text under claim": (
        voice(only(claims=" [{id: c1, claim: it is late}, {id: c2, Statement: it is cold}]")),
        TWO,
        ("read the key `claim` as `text`", "read the key `Statement` as `text`"),
    ),
    "a severity in words": (
        voice(only(objections="\n  - {id: o1, text: no, severity: high (8)}")),
        {**SAME, OBJECTIONS: BY_ID},
        ("read severity high (8) as 8",),
    ),
    "a severity and why": (
        voice(only(objections="\n  o1:\n    text: no\n    severity: 8 - data is lost")),
        {**SAME, OBJECTIONS: BY_ID},
        ("read the mapping `objections` as a list", "read severity 8 - data is lost as 8"),
    ),
    "a list of keys": (voice("- position: stage it\n- confidence: 0.7"), SAME, ("read a list of keys as a mapping",)),
    "a comment": (
        voice(f"<!-- mine -->\n{only()}\n<!-- end -->"),
        SAME,
        ("left out comments before the keys", "left out comments between the keys"),
    ),
    "no blank behind a colon": (
        voice("position：stage it\nconfidence:0.7"),
        SAME,
        tuple(f"put a blank behind the colon of `{key}`" for key in ("position", "confidence")),
    ),
    "a text in two lines": (
        voice("position: stage it\nfor it is late\nconfidence: 0.7"),
        {**SAME, "position": "stage it for it is late"},
        QUOTED,
    ),
    "invisible characters": (f"\u2060{voice(only())}", SAME, ("left out invisible characters",)),
    "one in a key": (voice(only().replace("pos", "pos\u200b")), SAME, ("left out invisible characters",)),
    "all of it indented": (
        "".join(f"  {line}\n" for line in voice(only()).split("\n")),
        SAME,
        ("took the indentation off the reply",),
    ),
    "a fence of front matter": (f"```front-matter\n{only()}\n```\n\n{BODY}", SAME, (FENCE,)),
    "marks of a model's template": (
        f"<|channel|>analysis<|message|>No.<|end|><|start|>assistant<|channel|>final<|message|>{voice(only())}<|return|>",
        SAME,
        (THOUGHTS,),
    ),
    "a use of tools as text": (f'<tool_call>{{"name": "x"}}</tool_call>\n{voice(only())}', SAME, (SENTENCE,)),
    "a table first": (f"| a |\n|---|\n| 1 |\n\n{voice(only())}", SAME, (SENTENCE,)),
    "blanks that do not break": (voice(only().replace(": ", ":\u00a0")), SAME, ()),
    "an answer in tags": (f"<answer>\n{voice(only())}</answer>", SAME, (SENTENCE,)),
    "twice the same": (f"{voice(only())}\n{voice(only())}", SAME, ()),
    "rules in the text": (voice(only(), f"Because.\n\n---\n\nNote: late.\n\n---\n\n{BODY}"), SAME, ()),
}


@pytest.mark.parametrize(("text", "expected", "notes"), ODD.values(), ids=ODD)
def test_a_voice_in_an_odd_form_is_read_where_it_is_certain(
    text: str, expected: dict[str, Any], notes: tuple[str, ...]
) -> None:
    data, _, found = told(AGENT, text)
    assert (data, found) == (expected, notes)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("I think so.", "must start with YAML front matter"),
        (f"---\n{KEYS}\nBecause it is.", "must start with YAML front matter"),
        (voice(f"{KEYS}\nposition: wait"), "the key `position` is there twice"),
        (f"Well:\n{voice()}\n\n{voice(keys(position='wait'))}", "two answers that differ"),
        (voice(only(objections="\n  - it breaks")), "`objections.0.severity` is missing"),
        (voice(only(objections=" [{id: o1, text: no, severity: high}]")), "`objections.0.severity`"),
        (voice(only(objections=" [{id: o1, text: no, severity: 60 (major)}]")), "`objections.0.severity`"),
        (voice(only(objections="\n  1. it breaks\n  3. it is slow")), "`objections.0.severity` is missing"),
        (
            voice(
                only(
                    claims=" [{id: c1, text: a}, {id: c1, text: b}]",
                    objections=" [{id: o1, text: x, severity: 3, against: c1}]",
                )
            ),
            "claims: the id c1 is used twice",
        ),
        (f"<think>{voice()}</think>", "must start with YAML front matter"),
        (f"<think>{voice()}", "must start with YAML front matter"),
        ("---\nconfidence: 0.7\n---\n", "`position` is missing"),
        ('{"position": "a", "position": "b", "confidence": 0.7}', "must start with YAML front matter"),
        (f"Sure:\n{voice(keys(position='<your answer to the question, one line>'))}", "is a placeholder"),
        ('```yaml\nposition: "<one sentence>"\nconfidence: 60%\n```', "is a placeholder"),
        (voice(only(claims='\n  - "<a statement that somebody could check>"')), "is a placeholder"),
        (f"{voice()}\n{voice(keys(confidence='0.8'))}", "two answers that differ"),
        (f"---\n{KEYS}\n---\n\n---\n{keys(confidence='0.8')}\n---\n\n{BODY}", "two answers that differ"),
        (f"---\n{only()}\n---\nobjections: []\n---\n\n{BODY}", "below the end of the front matter"),
        (voice("position: &p stage it\nconfidence: 0.7\nchanged_because: *p"), "anchors"),
        (voice(keys(position="...")), "is a placeholder"),
        (voice(keys(position='"[your answer, one line]"')), "is a placeholder"),
        (f"position: a &x b\nconfidence: *x\n\n{BODY}", "`confidence`"),
        ("x" * 262_145, "at most 262144 are read"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_ambiguous_is_sent_back(text: str, problem: str) -> None:
    assert any(problem in item for item in problems(AGENT, text))


def test_at_most_twelve_deviations_are_told() -> None:
    many = "\n".join(f"  - id: c{n}\n    text: a: {n}\n    Evidence{'-' * n}: x" for n in range(1, 21))
    notes = read(AGENT, voice(only(claims=f"\n{many}"))).notes
    assert len(notes) == 12 and notes[-1] == "read 10 more things leniently"


# -- leniency and the strict format ----------------------------------------------------------------

TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Co", "Cn")), min_size=1, max_size=30)
CLAIMS = st.lists(st.fixed_dictionaries({"id": st.from_regex(r"c[1-9]{1,2}", fullmatch=True), "text": TEXTS}))
VOICES = st.fixed_dictionaries(
    {"position": TEXTS, "confidence": st.floats(0, 1) | st.sampled_from(["60%", 8, 72, "0.5"])},
    optional={"claims": CLAIMS, "changed_because": TEXTS, "Position": TEXTS, "note": TEXTS},
)


@quick
@given(VOICES, TEXTS)
def test_leniency_never_changes_a_reply_that_follows_its_format(data: dict[str, Any], body: str) -> None:
    text = voice(strict_yaml.dump(data), body)
    try:
        strict = AGENT.parse(text)
    except InvalidReply:
        return
    found = read(AGENT, text)
    assert (found.data, found.text, found.notes) == (strict, text, ())


AROUND_IT: dict[str, Callable[[str], str]] = {
    "sentence": lambda text: f"Here it is.\n\n{text}",
    "fence": lambda text: f"```markdown\n{text}\n```",
    "thoughts": lambda text: f"<think>\nposition: no\n</think>\n\n{text}",
    "dots": lambda text: text.replace("\n---\n", "\n...\n", 1),
    "byte order mark": lambda text: f"\ufeff{text}",
    "line breaks": lambda text: text.replace("\n", "\r\n"),
}


@quick
@given(VOICES, st.lists(st.sampled_from(sorted(AROUND_IT)), max_size=3, unique=True))
def test_what_stands_around_a_reply_changes_nothing_in_it(data: dict[str, Any], around: list[str]) -> None:
    text = voice(strict_yaml.dump(data).rstrip("\n"), "It is so.")
    try:
        strict = AGENT.parse(text)
    except InvalidReply:
        return
    for name in around:
        text = AROUND_IT[name](text)
    assert read(AGENT, text).data == strict


FORMS = (AGENT, SYNTHESIS, FINAL, FindingsFormat(), ReviewFormat(("F1",)), CaseFormat(), ComparisonFormat())
PIECES = st.sampled_from(
    [
        "---\n",
        "...\n",
        "```yaml\n",
        "```\n",
        "position: a",
        "confidence: 60%\n",
        "claims:\n",
        "  - x: y\n",
        "{",
        "}",
        "[",
        ": ",
        '"',
        "“",
        "<think>",
        "</think>\n",
        "\n",
        "## Decision\n",
        "**Confidence**\n",
        "findings:\n",
        "- id: F1\n",
        "\t",
        "# ",
        "*",
    ]
)


@quick
@given(st.lists(PIECES | st.text(max_size=4), max_size=24).map("".join), st.sampled_from(FORMS))
def test_any_text_is_read_or_sent_back(text: str, form: ReplyFormat) -> None:
    try:
        found = read(form, text)
    except InvalidReply as invalid:
        assert invalid.problems
    else:
        assert form.parse(found.text) == found.data


@pytest.mark.parametrize(
    "piece", ["---\n", "```yaml\n", "position: a: b\n", "- *\n", "<think></think>", "{", " \n", '"“']
)
def test_no_reply_takes_long(piece: str) -> None:
    def attempt(size: int) -> None:
        with pytest.raises(InvalidReply):
            read(AGENT, f"---\nconfidence: x\n{piece * (size // len(piece))}")

    assert_linear(attempt, 8_000)


# -- syntheses, findings, reviews ------------------------------------------------------------------

DIRECTIVE = {
    "width": 3,
    "roles": ["architect"],
    "focus": "x",
    "confidence": 0.7,
    "exit_ready": False,
    "camps": [],
    "tensions": [],
    "gaps": [],
}
HEADS = "\n\n".join(f"## {name}\n\nSaid." for name in SYNTHESIS_SECTIONS[:-1]) + "\n\n## Next turn directive\n"
LANGUAGE, BLOCK = "read a code fence without the language yaml", "put the block into a code fence"


def directive(**changed: str) -> str:
    return "\n".join(f"{key}: {changed.get(key) or json.dumps(value)}" for key, value in DIRECTIVE.items())


def synthesis(block: str, heads: str = HEADS, language: str = "yaml") -> str:
    return f"{heads}\n```{language}\n{block}\n```\n"


@pytest.mark.parametrize(
    ("text", "expected", "notes"),
    [
        (synthesis(directive()), {}, ()),
        (synthesis(directive(), language=""), {}, (LANGUAGE,)),
        (synthesis(json.dumps(DIRECTIVE), language="json"), {}, (LANGUAGE,)),
        (f"{HEADS}\n```yaml\n{directive()}\n", {}, ("closed the code fence of the block",)),
        (f"{HEADS}\n{directive()}\n", {}, (BLOCK,)),
        (f"---\n{directive()}\n---\n\n{HEADS.replace('## Next turn directive', '')}", {}, (BLOCK,)),
        (
            f"```yaml\nkey: value\n```\n\n{synthesis(directive())}",
            {},
            ("took the one YAML block that has the keys of the format",),
        ),
        (f"Here:\n\n```markdown\n{synthesis(directive())}```", {}, ("took the document out of a code fence",)),
        (f"<think>```yaml\nwidth: 9\n```</think>{synthesis(directive())}", {}, (THOUGHTS,)),
        (synthesis("directive:\n  " + directive().replace("\n", "\n  ")), {}, ("took the keys out of `directive`",)),
        (synthesis(directive(roles="[{role: architect}]")), {}, ("read the key `role` as `name`",)),
        (f"\u200b{synthesis(directive())}", {}, ("left out invisible characters",)),
        (synthesis(directive(confidence="75%")), {"confidence": 0.75}, ("read confidence 75% as 0.75",)),
        (
            synthesis(directive(focus='what: does "x" cost')),
            {"focus": 'what: does "x" cost'},
            ("put the text of `focus` between quotes",),
        ),
        (
            synthesis(directive(tensions='["T2: cost (Resolved)", "who pays"]')),
            {
                "tensions": [
                    {"id": "T2", "title": "cost", "status": "resolved"},
                    {"id": "N56345b", "title": "who pays", "status": "open"},
                ]
            },
            ("took an item of `tensions` from a plain string",),
        ),
        (
            synthesis(directive(tensions="[{id: T1, title: a, status: Out-Side}]")),
            {"tensions": [{"id": "T1", "title": "a", "status": "outside"}]},
            ("read status `Out-Side` as `outside`",),
        ),
        (
            synthesis(directive(gaps="\n  - cost: unknown\n  - {id: G1, text: no log}")),
            {"gaps": ["cost: unknown", "no log"]},
            ("read an item of `gaps` with a colon as text", "took the texts of `gaps` out of mappings"),
        ),
        (
            synthesis(directive().replace("exit_ready", "Exit-Ready")),
            {},
            ("read the key `Exit-Ready` as `exit_ready`",),
        ),
        (
            synthesis(directive(), HEADS.replace("## Gaps", "**3. Gaps:**")),
            {},
            ("read the line `Gaps` as a heading",),
        ),
    ],
)
def test_a_synthesis_is_read_where_it_is_certain(text: str, expected: dict[str, Any], notes: tuple[str, ...]) -> None:
    data, _, found = told(SYNTHESIS, text)
    whole = {"width": 3, "focus": "x", "confidence": 0.7, "exit_ready": False, "roles": [{"name": "architect"}]}
    assert (data, found) == ({**whole, **expected}, notes)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (synthesis(directive()) + synthesis(directive(confidence="0.1"), ""), "2 were found"),
        (synthesis(f"{directive()}\nmodel: gpt"), "`model` is not a key"),
        (
            synthesis(directive(tensions="[{id: T1, title: a, status: open}, {id: T1, title: a, status: resolved}]")),
            "tensions: the id T1 is used twice",
        ),
        (synthesis(directive(tensions="[{id: T1, title: a, status: unclear}]")), "`tensions.0.status`"),
        (synthesis(directive(focus='"<the uncertainty that the next turn must reduce>"')), "is a placeholder"),
        (synthesis(directive().replace("gaps: []", "")), "`gaps` is missing"),
        (synthesis(directive(confidence="7")), "`confidence`"),
    ],
)
def test_a_synthesis_that_is_ambiguous_is_sent_back(text: str, problem: str) -> None:
    assert any(problem in item for item in problems(SYNTHESIS, text))


FINDINGS = 'findings:\n  - id: F1\n    rank: 1\n    text: "a"\n'


@pytest.mark.parametrize(
    ("form", "text", "expected", "notes"),
    [
        (FindingsFormat(), FINDINGS, {"findings": [{"id": "F1", "rank": 1, "text": "a"}]}, (BLOCK,)),
        (
            FindingsFormat(),
            f"```yaml\n{FINDINGS}  - id: F1\n    rank: 2\n    text: b: c\n```",
            {"findings": [{"id": "F1", "rank": 1, "text": "a"}, {"id": "F2", "rank": 2, "text": "b: c"}]},
            ("put the text of `text` between quotes", "gave a second F1 of `findings` the id F2"),
        ),
        (
            FindingsFormat(),
            json.dumps({"Findings": [{"rank": 1, "text": "a"}]}),
            {"findings": [{"id": "F1", "rank": 1, "text": "a"}]},
            ("read the data as JSON", "read the key `Findings` as `findings`", "numbered `findings`"),
        ),
        (
            ReviewFormat(("F1",)),
            '```yaml\nerrors:\n  - The draft says "x": it is y\nrefuted: ["F1: the log "a" says no"]\n```',
            {"errors": ['The draft says "x": it is y'], "refuted": ['F1: the log "a" says no']},
            ("put the text of `refuted` between quotes", "read an item of `errors` with a colon as text"),
        ),
        (ReviewFormat(("F1",)), "```yaml\nerrors: [None found.]\nrefuted: No errors\n```", {}, ()),
        (ReviewFormat(), "---\nErrors: []\n---", {}, (BLOCK, "read the key `Errors` as `errors`")),
        (
            ComparisonFormat(),
            "```yaml\nsame: Yes.\nwhy: both say: stage\n```\nBoth.",
            {"same": "yes", "why": "both say: stage"},
            (FENCE, "put the text of `why` between quotes", "read same `Yes.` as `yes`"),
        ),
        (
            CaseFormat(),
            voice(
                f"{only()}\nhypotheses:\n  - id: H1\n    text: a\n    prediction: it says: b\n"
                '    status: Ruled_Out\n    evidence: ["observed: "it says b""]'
            ),
            {
                "position": "stage it",
                "confidence": 0.7,
                "hypotheses": [
                    {
                        "id": "H1",
                        "text": "a",
                        "prediction": "it says: b",
                        "status": "ruled-out",
                        "evidence": ['observed: "it says b"'],
                    }
                ],
            },
            (
                "put the text of `prediction` between quotes",
                "put the text of `evidence` between quotes",
                "read status `Ruled_Out` as `ruled-out`",
            ),
        ),
        (
            CaseSynthesis(SYNTHESIS),
            synthesis(
                f"{directive(confidence='70%')}\nhypotheses: [{{id: H1, text: a, prediction: b, Status: Open}}]",
                language="",
            ),
            {
                "width": 3,
                "focus": "x",
                "confidence": 0.7,
                "exit_ready": False,
                "roles": [{"name": "architect"}],
                "hypotheses": [{"id": "H1", "text": "a", "prediction": "b"}],
            },
            (
                LANGUAGE,
                "read confidence 70% as 0.7",
                "read the key `Status` as `status`",
                "read status `Open` as `open`",
            ),
        ),
        (
            CaseFormat(),
            voice(f"{only()}\nhypotheses: [{{id: H1, hypothesis: a, prediction: b, status: open}}]"),
            {
                "position": "stage it",
                "confidence": 0.7,
                "hypotheses": [{"id": "H1", "text": "a", "prediction": "b"}],
            },
            ("read the key `hypothesis` as `text`",),
        ),
        (
            SpeechFormat("opening", House()),
            voice(f"{only()}\nstance: we say: no\nmotions:\n  - stage it first"),
            {
                "position": "stage it",
                "confidence": 0.7,
                "stance": "we say: no",
                "motions": [{"text": "stage it first"}],
            },
            ("put the text of `stance` between quotes", "took an item of `motions` from a plain string"),
        ),
    ],
)
def test_other_replies_are_read_where_they_are_certain(
    form: ReplyFormat, text: str, expected: dict[str, Any], notes: tuple[str, ...]
) -> None:
    data, _, found = told(form, text)
    assert (data, found) == (expected, notes)


# -- FINAL.md --------------------------------------------------------------------------------------

SAID = "\n\n".join(f"## {name}\n\nSaid." for name in FINAL_SECTIONS)


@pytest.mark.parametrize(
    ("text", "kept", "notes"),
    [
        (SAID, SAID, ()),
        (f"<think>## Decision\n\nNo.</think>\n\n{SAID}", SAID, (THOUGHTS,)),
        (f"Here it is:\n\n```markdown\n{SAID}\n```", SAID, ("took the document out of a code fence",)),
        (
            f"```\n{SAID}\n\n```py\nx\n```\n```\n\nI hope that it helps.",
            f"{SAID}\n\n```py\nx\n```",
            ("took the document out of a code fence", "left out a sentence behind the fence"),
        ),
        (f"\u200b{SAID}", SAID, ("left out invisible characters",)),
        (f"<|channel|>final<|message|>{SAID}<|end|>", SAID, (THOUGHTS,)),
        (SAID.replace("## Confidence", "**Confidence**"), SAID, ("read the line `Confidence` as a heading",)),
        (SAID.replace("## Confidence", "__2. Confidence__"), SAID, ("read the line `Confidence` as a heading",)),
        (SAID.replace("## Confidence\n", "Confidence\n---"), SAID, ("read the line `Confidence` as a heading",)),
        (
            f"How sure?\n</think>\n{SAID.replace('## Decision', '**Decision**')}",
            SAID,
            (THOUGHTS, "read the line `Decision` as a heading"),
        ),
    ],
)
def test_a_final_answer_is_read_where_it_is_certain(text: str, kept: str, notes: tuple[str, ...]) -> None:
    _, found, told_ = told(FINAL, text)
    assert (found.strip(), told_) == (kept, notes)


def test_the_last_resort_works_on_what_stands_in_a_fence() -> None:
    lacking = SAID.replace("## Confidence\n\nSaid.\n\n", "")
    text, added = repaired(FINAL, f"Here:\n\n```markdown\n{lacking}\n```") or ("", ())
    assert added == ("section Confidence",) and text.startswith("## Decision")
