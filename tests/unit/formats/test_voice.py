"""The reply formats: what is accepted, the sentences that are sent back, and that no text does any harm."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdo.core.steps import InvalidReply, ReplyFormat
from cdo.formats.fields import MAX_REPLY_CHARS
from cdo.formats.final_answer import FINAL_SECTIONS, FinalFormat, final_section, marks, unmarked
from cdo.formats.markdown import sections, unwrap
from cdo.formats.role_names import role_problem
from cdo.formats.voice import SYNTHESIS_SECTIONS, AgentFormat, SynthesisFormat
from cdo.formats.voice_blocks import AgentData, Camp, Directive
from cdo.programs.deliberation.draft_review import ReviewFormat
from cdo.programs.deliberation.findings import FindingsFormat
from tests.support.answers import agent_text, final_text, synthesis_text
from tests.support.effort import assert_linear
from tests.unit.formats import test_gbnf

quick = settings(max_examples=120, deadline=None)
AGENT, SYNTHESIS = AgentFormat(), SynthesisFormat()


def problems(form: ReplyFormat, text: str) -> tuple[str, ...]:
    """The sentences that are sent back."""
    with pytest.raises(InvalidReply) as caught:
        form.parse(text)
    assert caught.value.problems
    return caught.value.problems


# -- voices ----------------------------------------------------------------------------------------


def voice(keys: str, body: str = "Because.") -> str:
    return f"---\n{keys}\n---\n\n{body}\n"


SOUND = 'position: "stage it"\nconfidence: 0.7'


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("", {}),
        ("claims: [{id: c1, text: x}]", {"claims": [{"id": "c1", "text": "x", "evidence": []}]}),
        ("claims: [{id: 1, text: 2}]", {"claims": [{"id": "1", "text": "2", "evidence": []}]}),
        ("claims:", {"claims": []}),
        ("claims: []\nobjections:", {"claims": [], "objections": []}),
        (
            "claims: [{id: c1, text: x, evidence: a.py}]",
            {"claims": [{"id": "c1", "text": "x", "evidence": ["a.py"]}]},
        ),
        (
            "claims:\n  - id: c1\n    text: |\n      two\n      lines\n    evidence: [a.py:3, 'a \"quote\"', 7]",
            {"claims": [{"id": "c1", "text": "two\nlines", "evidence": ["a.py:3", 'a "quote"', "7"]}]},
        ),
        (
            "objections: [{id: o1, text: no, severity: 10}]",
            {"objections": [{"id": "o1", "text": "no", "severity": 10, "against": ""}]},
        ),
        (
            "objections: [{id: o1, against: a, text: no, severity: 5}, {id: o2, against: , text: x, severity: 1}]",
            {
                "objections": [
                    {"id": "o1", "text": "no", "severity": 5, "against": "a"},
                    {"id": "o2", "text": "x", "severity": 1, "against": ""},
                ]
            },
        ),
        ("withdraws: O1", {"withdraws": ["O1"]}),
        ("withdraws: [O1, O4]", {"withdraws": ["O1", "O4"]}),
        (
            'objections: [{id: o1, text: "  x ", severity: "3"}]',
            {"objections": [{"id": "o1", "text": "x", "severity": 3, "against": ""}]},
        ),
        ("changed_because: new evidence", {"changed_because": "new evidence"}),
        ("mood: cheerful\nmodel: gpt", {}),
        ("claims: [{id: c1, text: x, mood: grim}]", {"claims": [{"id": "c1", "text": "x", "evidence": []}]}),
    ],
)
def test_a_voice_is_read(keys: str, expected: dict[str, Any]) -> None:
    data = AGENT.parse(voice(f"{SOUND}\n{keys}")).model_dump(mode="json")
    assert (data["position"], data["confidence"]) == ("stage it", 0.7)
    assert {key: value for key, value in data.items() if key in expected} == expected


@pytest.mark.parametrize(
    ("confidence", "value"), [("0", 0.0), ("1", 1.0), (".5", 0.5), ('"0.25"', 0.25), ("1e-1", 0.1)]
)
def test_confidence_is_a_share(confidence: str, value: float) -> None:
    assert AGENT.parse(voice(f"position: x\nconfidence: {confidence}")).confidence == value


START = "The reply must start with YAML front matter: a line `---`, the keys, a line `---`."


def test_a_position_that_is_a_paragraph_is_cut_and_not_sent_back() -> None:
    """Sending a whole reply back for this would cost as much as the reply."""
    position = AGENT.parse(voice(f'position: "{"word " * 200}"\nconfidence: 0.5')).position
    assert len(position) == 600 and position.startswith("word word") and position.endswith("…")


KEYS = "position, confidence, claims, objections, changed_because, acknowledged, withdraws"


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("", [START]),
        ("I think so.", [START]),
        ("Sure!\n\n" + voice(SOUND), [START]),
        (f"---\n{SOUND}\n", [START]),
        (f"-----\n{SOUND}\n-----\n", [START]),
        (voice(""), [f"The front matter must be a YAML mapping with the keys {KEYS}."]),
        (voice("- a"), [f"The front matter must be a YAML mapping with the keys {KEYS}."]),
        (voice("position: x"), ["The front matter: `confidence` is missing."]),
        (
            voice("confidence: 2\nposition: ' '"),
            [
                "The front matter: `position`: must not be empty.",
                "The front matter: `confidence`: must be less than or equal to 1.",
            ],
        ),
        (
            voice("position: true\nconfidence: true"),
            [
                "The front matter: `position`: must be text.",
                "The front matter: `confidence`: must be a number, not true or false.",
            ],
        ),
        (voice("position: [x]\nconfidence: 0.5"), ["The front matter: `position`: must be text."]),
        (
            voice("position: x\nconfidence: 70%"),
            [
                "The front matter: `confidence`: must be a number.",
            ],
        ),
        (
            voice("position: x\nconfidence: .nan"),
            [
                "The front matter: `confidence`: must be a number.",
            ],
        ),
        (
            voice(f"{SOUND}\nclaims: x"),
            ["The front matter: `claims.0` must be a mapping with the keys id, text, evidence."],
        ),
        (voice(f"{SOUND}\nclaims: {{id: c1}}"), ["The front matter: `claims`: must be a list."]),
        (
            voice(f"{SOUND}\nclaims: [{{id: c 1, text: x}}, {{id: c2}}]"),
            [
                "The front matter: `claims.0.id`: must match pattern '^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$'.",
                "The front matter: `claims.1.text` is missing.",
            ],
        ),
        (
            voice(f"{SOUND}\nclaims: [{{id: c1, text: x, evidence: [[a]]}}]"),
            ["The front matter: `claims.0.evidence.0`: must be text."],
        ),
        (
            voice(f"{SOUND}\nobjections: [{{id: o1, text: x, severity: 11}}, {{id: o2, text: x, severity: 0}}]"),
            [
                "The front matter: `objections.0.severity`: must be less than or equal to 10.",
                "The front matter: `objections.1.severity`: must be greater than or equal to 1.",
            ],
        ),
        (
            voice(
                f"{SOUND}\nclaims: [{{id: a, text: x}}, {{id: a, text: y}}]\n"
                "objections: [{id: o, text: x, severity: 1}, {id: o, text: x, severity: 1}]"
            ),
            ["claims: the id a is used twice.", "objections: the id o is used twice."],
        ),
        (
            voice("position: a: b\nconfidence: 0.5"),
            [
                "The front matter is not valid YAML: line 2, column 12: mapping values are not allowed in this "
                "context. Put text values between double quotes."
            ],
        ),
        (
            voice("position: x\nposition: y"),
            ["The front matter is not valid YAML: line 3, column 1: the key `position` is there twice."],
        ),
        (
            voice(f"{SOUND}\na: " + "x" * 65_536),
            ["The front matter is not valid YAML: line 1, column 1: 65,578 bytes of YAML, at most 65,536 are read."],
        ),
        ("x" * 262_145, ["The reply has 262145 characters; at most 262144 are read."]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_voice_is_sent_back_with_what_is_wrong(text: str, sentences: list[str]) -> None:
    assert list(problems(AGENT, text)) == sentences


def test_at_most_eight_problems_are_told() -> None:
    many = ", ".join(f"{{id: c{n}}}" for n in range(30))
    assert len(problems(AGENT, voice(f"{SOUND}\nclaims: [{many}]"))) == 8


def test_an_empty_voice_cannot_be_repaired() -> None:
    assert AGENT.repair("anything") is None


@pytest.mark.parametrize(
    "text",
    [
        voice(SOUND),
        "\ufeff" + voice(SOUND),
        "\n\n  " + voice(SOUND),
        voice(SOUND).replace("\n", "\r\n"),
        voice(SOUND).replace("\n", "\r"),
        voice(SOUND).replace("---\n", "---  \n"),
        f"```\n{voice(SOUND)}```",
        f"```markdown\n{voice(SOUND)}```",
        f"```yaml\n{voice(SOUND)}```\n",
        f"````md\n{voice(SOUND, '```py' + chr(10) + 'x' + chr(10) + '```')}````",
        f"```markdown\n{voice(SOUND, '```py' + chr(10) + 'x' + chr(10) + '```')}```",
    ],
)
def test_what_chat_models_put_around_a_reply_is_taken_off(text: str) -> None:
    assert AGENT.parse(text).position == "stage it"


@pytest.mark.parametrize(
    "text",
    [
        "```py\nx\n```\n\nand\n\n```\ny\n```",
        "```\nx\n```\n\nand\n\n```\ny\n```",
        "```markdown\nx\n```\n\nand\n\n```\ny\n```",
        "```yaml\nwidth: 3\n```",
        "```py\nx\n```",
        "```",
        "```\n```",
        "~~~ x\n~~~ y\n```",
    ],
)
def test_fences_that_belong_to_the_document_stay(text: str) -> None:
    assert unwrap(text) == text


# -- the synthesis ---------------------------------------------------------------------------------

DIRECTIVE = (
    "width: 3\nroles: [architect, critic]\nfocus: x\nconfidence: 0.7\nexit_ready: false\n"
    "camps: []\ntensions: []\ngaps: []"
)
HEADS = "\n\n".join(f"## {name}\n\nSaid." for name in SYNTHESIS_SECTIONS)


def synthesis(directive: str, heads: str = HEADS) -> str:
    return f"{heads}\n\n```yaml\n{directive}\n```\n"


def changed(key: str, value: str) -> str:
    """A synthesis whose directive has another value, or one more key."""
    lines = [line for line in DIRECTIVE.split("\n") if not line.startswith(f"{key}:")]
    return synthesis("\n".join([*lines, f"{key}: {value}"]))


def test_a_whole_directive_is_read() -> None:
    found = SYNTHESIS.parse(
        synthesis(
            "width: 3\n"
            'roles: [architect, {name: security-reviewer, charge: "attack the token flow", skills: [threat-model]}]\n'
            "skills: []\n"
            'focus: "one string"\n'
            'decides: "whether to wait"\n'
            "settle_with: arithmetic\n"
            'alternative: "wait a month"\n'
            "answer_changed: true\n"
            "confidence: 0.72\n"
            "exit_ready: false\n"
            "agreement: 0.99\n"
            'camps: [{position: "go", voices: [architect, critic]}, {position: "wait", voices: [operator]}]\n'
            'tensions: [{id: T1, title: "…", status: open}]     # open | resolved | accepted | outside\n'
            "objections: [{id: O1, leading: false, status: answered, why: the log is kept}, {id: O2}]\n"
            'gaps: ["new this turn"]'
        )
    )
    assert found.model_dump(mode="json") == {
        "width": 3,
        "roles": [
            {"name": "architect", "charge": "", "skills": []},
            {"name": "security-reviewer", "charge": "attack the token flow", "skills": ["threat-model"]},
        ],
        "skills": [],
        "focus": "one string",
        "decides": "whether to wait",
        "settle_with": "arithmetic",
        "alternative": "wait a month",
        "answer_changed": True,
        "confidence": 0.72,
        "exit_ready": False,
        "agreement": 2 / 3,  # counted: what is stated does not count
        "tensions": [{"id": "T1", "title": "…", "status": "open", "settled_by": ""}],
        "gaps": ["new this turn"],
        "camps": [
            {"position": "go", "voices": ["architect", "critic"]},
            {"position": "wait", "voices": ["operator"]},
        ],
        "messages": [],
        "objections": [
            {"id": "O1", "leading": False, "status": "answered", "why": "the log is kept"},
            {"id": "O2", "leading": None, "status": "open", "why": ""},
        ],
    }


@pytest.mark.parametrize(
    ("key", "value", "read"),
    [
        ("exit_ready", "no", False),
        ("exit_ready", "yes", True),
        ("exit_ready", "TRUE", True),
        ("roles", "", ()),
        ("roles", "[]", ()),
        ("focus", "", ""),
        ("gaps", "", ()),
        ("gaps", "one", ("one",)),
        ("camps", "[{position: Keep it., voices: critic}]", (Camp(position="Keep it.", voices=("critic",)),)),
        ("skills", "[a, 1]", ("a", "1")),
        ("tensions", "~", ()),
        ("agreement", "60%", None),  # not read: code counts it
        ("decides", "", ""),
        ("answer_changed", "~", None),
        ("answer_changed", "no", False),
        ("objections", "", ()),
        ("width", "256", 256),
        ("width", '"4"', 4),
        ("width", "4.0", 4),
    ],
)
def test_a_directive_is_read_where_the_meaning_is_plain(key: str, value: str, read: Any) -> None:
    assert getattr(SYNTHESIS.parse(changed(key, value)), key) == read


ROLE_KEYS = "the keys name, charge, skills"


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        *(
            (
                key,
                "x",
                f"`{key}` is not a key; the keys are width, roles, skills, focus, decides, settle_with, alternative, "
                "answer_changed, confidence, exit_ready, agreement, tensions, gaps, camps, messages, objections.",
            )
            for key in ("model", "models", "tools", "budget", "path", "Width", "exit-ready")
        ),
        ("width", "0", "`width`: must be greater than or equal to 1."),
        ("width", "257", "`width`: must be less than or equal to 256."),
        ("width", "2.5", "`width`: must be a whole number."),
        ("width", "true", "`width`: must be a number, not true or false."),
        ("width", "many", "`width`: must be a whole number."),
        ("confidence", "-0.1", "`confidence`: must be greater than or equal to 0."),
        ("confidence", "false", "`confidence`: must be a number, not true or false."),
        ("exit_ready", "maybe", "`exit_ready`: must be true or false."),
        ("exit_ready", "0.5", "`exit_ready`: must be true or false."),
        ("exit_ready", "~", "`exit_ready`: must be true or false."),
        ("roles", "{architect: 1}", "`roles`: must be a list."),
        ("roles", "[[a]]", f"`roles.0` must be a mapping with {ROLE_KEYS}."),
        ("roles", "[{charge: x}]", "`roles.0.name` is missing."),
        (
            "roles",
            "[{name: a, model: gpt}]",
            f"`roles.0.model` is not a key; {ROLE_KEYS.replace('keys', 'keys are')}.",
        ),
        ("roles", "[{name: [a]}]", "`roles.0.name`: must be text."),
        ("roles", "[{name: }]", "`roles.0.name`: must be text."),
        (
            "roles",
            "[{name: 5}]",
            "`roles.0.name`: `5` cannot be a role: use a-z, 0-9 and -, a letter first, at most 32 characters.",
        ),
        ("tensions", "[T1]", "`tensions.0` must be a mapping with the keys id, title, status, settled_by."),
        ("tensions", "[{id: T1, title: x}]", "`tensions.0.status` is missing."),
        (
            "tensions",
            "[{id: T1, title: x, status: closed}]",
            "`tensions.0.status`: must be 'open', 'resolved', 'accepted' or 'outside'.",
        ),
        (
            "tensions",
            "[{id: T1, title: x, status: open, why: y}]",
            "`tensions.0.why` is not a key; the keys are id, title, status, settled_by.",
        ),
        ("objections", "[{status: open}]", "`objections.0.id` is missing."),
        (
            "objections",
            "[{id: O1, status: withdrawn}]",  # only its own voice can
            "`objections.0.status`: must be 'open', 'answered' or 'ruled'.",
        ),
        ("gaps", "[[x]]", "`gaps.0`: must be text."),
        ("camps", "[{voices: [critic]}]", "`camps.0.position` is missing."),
        (
            "camps",
            "[{position: x, voices: [X]}]",
            "`camps.0.voices.0`: `X` cannot be a role: use a-z, 0-9 and -, a letter first, at most 32 characters.",
        ),
        ("gaps", '[""]', "`gaps.0`: must not be empty."),
        ("gaps", f"[{', '.join(['g'] * 65)}]", "`gaps`: must have at most 64 items, not 65."),
    ],
)
def test_a_directive_is_strict(key: str, value: str, sentence: str) -> None:
    assert problems(SYNTHESIS, changed(key, value)) == (f"The directive: {sentence}",)


@pytest.mark.parametrize("key", ["width", "roles", "focus", "confidence", "exit_ready"])
def test_a_directive_lacks_nothing(key: str) -> None:
    lines = [line for line in DIRECTIVE.split("\n") if not line.startswith(key)]
    assert problems(SYNTHESIS, synthesis("\n".join(lines))) == (f"The directive: `{key}` is missing.",)


@pytest.mark.parametrize("key", ["camps", "tensions", "gaps"])
def test_an_empty_list_is_an_answer_and_a_missing_key_is_none(key: str) -> None:
    lines = [line for line in DIRECTIVE.split("\n") if not line.startswith(key)]
    missing = f"The directive: `{key}` is missing: an empty list is an answer."
    assert problems(SYNTHESIS, synthesis("\n".join(lines))) == (missing,)
    assert getattr(SYNTHESIS.parse(synthesis(DIRECTIVE)), key) == ()


@pytest.mark.parametrize(
    ("camps", "voices", "share"),
    [
        ("[]", "abc", 1 / 3),  # a voice that no camp names is a camp of its own
        ("[{position: x, voices: [a, b, c]}]", "abc", 1.0),
        ("[{position: x, voices: [a, b]}, {position: y, voices: [c]}]", "abc", 2 / 3),
        ("[{position: x, voices: [a, b]}]", "abc", 2 / 3),
        ("[{position: x, voices: [a, a, b]}, {position: y, voices: [a, c, d]}]", "abcd", 0.5),  # each voice once
        ("[{position: x, voices: [a, ghost, spirit]}]", "ab", 0.5),  # those who did not sit do not count
        ("[{position: x, voices: [a]}]", "a", None),  # one voice agrees with nobody
    ],
)
@pytest.mark.parametrize("stated", ["", "\nagreement: 0.95", "\nagreement: 0"])
def test_agreement_is_the_largest_camp_of_the_voices_that_were_heard(
    camps: str, voices: str, share: float | None, stated: str
) -> None:
    form = SynthesisFormat(voices=tuple(voices))
    text = synthesis(DIRECTIVE.replace("camps: []", f"camps: {camps}") + stated)
    assert form.parse(text).agreement == share


@pytest.mark.parametrize(
    ("key", "value", "placeholder"),
    [
        (
            "focus",
            '"<the uncertainty that the next turn must reduce>"',
            "<the uncertainty that the next turn must reduce>",
        ),
        ("settle_with", "<text | code | arithmetic | tool | outside>", "<text | code | arithmetic | tool | outside>"),
        ("gaps", '["<new this turn>"]', "<new this turn>"),
        ("camps", '[{position: "<one answer, one line>", voices: [a]}]', "<one answer, one line>"),
    ],
)
def test_a_placeholder_of_the_prompt_is_no_value(key: str, value: str, placeholder: str) -> None:
    sentence = f"`{placeholder}` is a placeholder of the format: put your own value there."
    assert problems(SYNTHESIS, changed(key, value)) == (sentence,)


def test_a_voice_that_returns_placeholders_is_told_of_each_once() -> None:
    asked = "<a statement that somebody could check>"
    claims = ", ".join(f'{{id: c{number}, text: "{asked}"}}' for number in (1, 2))
    keys = f'position: "<your answer>"\nconfidence: 1\nclaims: [{claims}]'
    assert problems(AGENT, voice(keys)) == (
        "`<your answer>` is a placeholder of the format: put your own value there.",
        f"`{asked}` is a placeholder of the format: put your own value there.",
    )
    inside = 'position: "use <details> in the page, where a < b"\nconfidence: 1'
    assert AGENT.parse(voice(inside)).position == "use <details> in the page, where a < b"


@pytest.mark.parametrize(
    ("directive", "why"),
    [
        (DIRECTIVE + "\nroles: [x]", "line 34, column 1: the key `roles` is there twice"),
        (DIRECTIVE.replace("focus: x", "focus: &x y"), "line 28, column 8: anchors (&name) are not allowed"),
        (DIRECTIVE.replace("focus: x", "focus: *x"), "line 28, column 8: aliases (*name) are not allowed"),
        (DIRECTIVE.replace("focus: x", "focus: !!str x"), "line 28, column 8: tags (!name) are not allowed"),
        (DIRECTIVE.replace("focus: x", "focus: [[[[[[x]]]]]]"), "line 28, column 13: nested deeper than 6"),
        (
            DIRECTIVE + "\nskills: [" + "x" * 16_384 + "]",
            "line 26, column 1: 16,505 bytes of YAML, at most 16,384 are read",
        ),
    ],
)
def test_a_directive_is_yaml_of_the_subset(directive: str, why: str) -> None:
    advice = " Put text values between double quotes." if "not allowed" in why else ""
    expected = f"The directive is not valid YAML: {why}.{advice}"
    assert problems(SYNTHESIS, synthesis(directive)) == (expected,)


@pytest.mark.parametrize(
    ("directive", "sentence"),
    [
        ("roles: [a, b, a, b]", "roles: the name a, b is used twice."),
        ("roles: [a, {name: a, charge: x}]", "roles: the name a is used twice."),
    ],
)
def test_a_role_is_asked_for_once(directive: str, sentence: str) -> None:
    key, _, value = directive.partition(": ")
    assert problems(SYNTHESIS, changed(key, value)) == (sentence,)


def test_a_tension_is_named_once() -> None:
    twice = "[{id: T1, title: x, status: open}, {id: T1, title: y, status: open}]"
    assert problems(SYNTHESIS, changed("tensions", twice)) == ("tensions: the id T1 is used twice.",)


ONE = "There must be exactly one fenced ```yaml block, closed by ```; {} were found."


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (HEADS, 0),
        (f"{HEADS}\n\n{DIRECTIVE}", 0),
        (f"{HEADS}\n\n```\n{DIRECTIVE}\n```", 0),
        (f"{HEADS}\n\n```json\n{DIRECTIVE}\n```", 0),
        (f"{HEADS}\n\n```yaml\n{DIRECTIVE}", 0),
        (f"{HEADS}\n\n```yaml\n{DIRECTIVE}\n~~~", 0),
        (f"{HEADS}\n\n````yaml\n{DIRECTIVE}\n```", 0),
        (f"{HEADS}\n\n    ```yaml\n    {DIRECTIVE}\n    ```", 0),
        (synthesis(DIRECTIVE) + synthesis(DIRECTIVE, ""), 2),
        (synthesis(DIRECTIVE) + "```yml\nwidth: 5\n```", 2),
    ],
)
def test_there_is_exactly_one_yaml_block(text: str, count: int) -> None:
    assert problems(SYNTHESIS, text) == (ONE.format(count),)


@pytest.mark.parametrize(
    "text",
    [
        synthesis(DIRECTIVE),
        synthesis(DIRECTIVE).replace("```yaml", "```YAML"),
        synthesis(DIRECTIVE).replace("```yaml", "``` yml"),
        synthesis(DIRECTIVE).replace("```yaml", '```yaml title="next"'),
        synthesis(DIRECTIVE).replace("```", "~~~~"),
        synthesis(DIRECTIVE) + "\n```text\n```yaml\nwidth: 99\n```\n",
        HEADS + "\n\n```python x=1\ny\n```\n" + synthesis(DIRECTIVE, ""),
        HEADS + "\n\n```text\n```yaml\nwidth: 99\n```\n" + synthesis(DIRECTIVE, ""),
        f"```markdown\n{synthesis(DIRECTIVE)}```",
        f"---\n\n{synthesis(DIRECTIVE)}\n---\n",
        f"---\ntitle: x\n---\n\n{synthesis(DIRECTIVE)}",
        synthesis(DIRECTIVE).replace("Anti-groupthink", "5. Anti\u2011Groupthink:"),
        synthesis(DIRECTIVE).replace("## Common ground", "# **COMMON GROUND** ##"),
        synthesis(DIRECTIVE).replace("## Gaps", "#### Gaps"),
        synthesis_text(tensions=["a title"], gaps=["a gap"]),
    ],
)
def test_a_synthesis_is_read_however_it_is_set_out(text: str) -> None:
    assert SYNTHESIS.parse(text).width == 3


def test_all_that_is_wrong_is_told_at_once() -> None:
    heads = HEADS.replace("## Gaps", "## Holes").replace("## Surprises", "Surprises")
    assert problems(SYNTHESIS, synthesis("width: 0", heads)) == (
        "The directive: `width`: must be greater than or equal to 1.",
        "The directive: `roles` is missing.",
        "The directive: `focus` is missing.",
        "The directive: `confidence` is missing.",
        "The directive: `exit_ready` is missing.",
        "The section `## Gaps` is missing.",
        "The section `## Surprises` is missing.",
    )


def test_headings_inside_fences_are_ignored() -> None:
    hidden = "## Common ground\n\n```text\n" + HEADS + "\n```\n"
    assert len(problems(SYNTHESIS, hidden + synthesis(DIRECTIVE, ""))) == 5


@pytest.mark.parametrize(
    ("text", "added"),
    [
        (synthesis(DIRECTIVE), ()),
        (synthesis(DIRECTIVE, ""), tuple(f"section {name}" for name in SYNTHESIS_SECTIONS)),
        (f"```yaml\n{DIRECTIVE}\n```", tuple(f"section {name}" for name in SYNTHESIS_SECTIONS)),
        (f"{HEADS}\n\n```yaml\n{DIRECTIVE}", ()),
        (synthesis(DIRECTIVE, HEADS.replace("## Gaps", "Gaps")), ("section Gaps",)),
        (synthesis(DIRECTIVE, HEADS.replace("## Gaps", "Gaps")) + "\n```text\nopen", ("section Gaps",)),
    ],
)
def test_a_synthesis_with_a_sound_directive_is_repaired(text: str, added: tuple[str, ...]) -> None:
    repaired = SYNTHESIS.repair(text)
    assert repaired is not None
    assert repaired[1] == added
    assert SYNTHESIS.parse(repaired[0]).focus == "x"


@pytest.mark.parametrize("text", ["", HEADS, synthesis("width: 3"), synthesis(DIRECTIVE) * 2, "x" * 262_145])
def test_a_synthesis_without_a_sound_directive_is_not_repaired(text: str) -> None:
    assert SYNTHESIS.repair(text) is None


# -- roles -----------------------------------------------------------------------------------------

NOT_ROLES = [
    "", "Critic", "critic ", " critic", "a b", "../etc", "..", ".", "a/b", "a\\b", "/etc/passwd", "c:", "a.md", "-a",
    "1a", "a-", "a_b", "é", "аrchitect", "a\0", "a\n", "\u202ea", "a\u200b", "ａ", "x" * 33, "~", "$HOME", "a;b",
    "con", "prn", "aux", "nul", "com1", "com9", "lpt1", "lpt9", "a*",
    "synthesis", "plan", "human", "final", "input", "context",
]  # fmt: skip


@pytest.mark.parametrize("name", NOT_ROLES)
def test_what_could_harm_is_no_role(name: str) -> None:
    sentence = role_problem(name)
    assert sentence
    assert sentence.isprintable() and len(sentence) < 160


@pytest.mark.parametrize("name", ["a", "a1", "a-b", "x" * 32, "com", "com10", "lpt0", "console", "plans", "critic-2"])
def test_other_lower_case_names_are_roles(name: str) -> None:
    assert role_problem(name) is None
    assert SYNTHESIS.parse(changed("roles", f"[{name}]")).roles[0].name == name


@quick
@given(st.text(max_size=40) | st.from_regex(r"[a-z][a-z0-9-]{0,40}", fullmatch=True))
def test_a_role_is_a_plain_file_name(name: str) -> None:
    if role_problem(name) is None:
        assert re.fullmatch(r"[a-z]([a-z0-9-]{0,30}[a-z0-9])?", name)


@pytest.mark.parametrize("name", [name for name in NOT_ROLES if name.strip() == name and name not in ("~", "")])
def test_no_directive_smuggles_one_in(name: str) -> None:
    quoted = '"' + "".join(f"\\U{ord(char):08X}" for char in name) + '"'
    for roles in (f"[{quoted}]", f"[{{name: {quoted}}}]"):
        assert "cannot be a role" in problems(SYNTHESIS, changed("roles", roles))[0]


# -- the final -------------------------------------------------------------------------------------

FINDINGS = (("F1", "the table grows by 40 rows a second"), ("F2", "no step takes the index back"))
OUTSIDE = (("T1", "what the vendor charges"), ("T10", "when the second country goes live"))


def final(decision: str = "Stage it.", actions: str = "None.", key_tensions: str = "None.") -> str:
    return (
        f"## Decision\n\n{decision}\n\n## Confidence\n\nFair.\n\n## Key Tensions\n\n{key_tensions}\n\n"
        f"## Minority Reports\n\nNone.\n\n## Action Items\n\n{actions}\n"
    )


def test_the_five_sections_are_enough_when_nothing_was_contested() -> None:
    assert FinalFormat().parse(final()).sections == FINAL_SECTIONS
    assert FinalFormat().parse(final_text("Stage it.")).sections == FINAL_SECTIONS


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("", [f"The section `## {name}` is missing." for name in FINAL_SECTIONS]),
        ("Stage it.", [f"The section `## {name}` is missing." for name in FINAL_SECTIONS]),
        (final().replace("## Confidence", "**Confidence**"), ["The section `## Confidence` is missing."]),
        (final(decision=""), ["The section `## Decision` is empty."]),
        (final(decision="```\nx"), [f"The section `## {name}` is missing." for name in FINAL_SECTIONS[1:]]),
        ("x" * 262_145, ["The reply has 262145 characters; at most 262144 are read."]),
    ],
)
def test_a_final_without_its_sections_is_sent_back(text: str, sentences: list[str]) -> None:
    assert list(problems(FinalFormat(), text)) == sentences


@pytest.mark.parametrize(
    "text",
    [
        final(decision="### Summary\n\nStage it.\n\n### Why\n\nIt can be undone."),
        final().replace("## Decision", "# 1. Decision/Answer"),
        final().replace("## Action Items", "## Next steps:"),
        f"# FINAL\n\n{final()}",
        f"---\n{final()}\n---\nThe end.",
        f"---\ntitle: x\n---\n{final()}",
        f"```markdown\n{final()}```",
        final(decision="Stage it.\n\n```md\n## Decision\n```"),
    ],
)
def test_a_final_is_read_however_it_is_set_out(text: str) -> None:
    FinalFormat().parse(text)


def test_a_final_is_refused_while_a_finding_of_the_first_rank_or_a_step_is_missing() -> None:
    assert problems(FinalFormat(FINDINGS, OUTSIDE), final()) == (
        "Finding F1 is of the first rank and is not in the text. Say it where it matters and put [F1] behind it: "
        "the table grows by 40 rows a second",
        "Finding F2 is of the first rank and is not in the text. Say it where it matters and put [F2] behind it: "
        "no step takes the index back",
        "Action Items needs a step that finds this out, with [T1] behind it: what the vendor charges",
        "Action Items needs a step that finds this out, with [T10] behind it: when the second country goes live",
    )


def test_a_finding_is_marked_anywhere_and_what_is_outside_in_a_step() -> None:
    form, steps = FinalFormat(FINDINGS, OUTSIDE), "1. Ask the vendor [T1, T10]."
    form.parse(final("It grows [F1].", steps, key_tensions="No way back [F2]."))
    assert problems(form, final("It grows [F1], no way back [F2]. Ask the vendor [T1; T10].")) == (
        "Action Items needs a step that finds this out, with [T1] behind it: what the vendor charges",
        "Action Items needs a step that finds this out, with [T10] behind it: when the second country goes live",
    )


@pytest.mark.parametrize(
    ("place", "marked"),
    [
        ("It grows [F1].", True),
        ("It grows [F2, F1].", True),
        ("It grows [F2 ;F1].", True),
        ("It grows[F1]", True),
        ("It grows F1.", False),
        ("It grows (F1).", False),
        ("It grows [F10].", False),
        ("It grows [F1.5].", False),
        ("It grows [see F1].", False),
        ("It grows [f1].", False),
    ],
)
def test_a_mark_is_an_id_between_brackets(place: str, marked: bool) -> None:
    form = FinalFormat(FINDINGS[:1])
    if marked:
        form.parse(final(place))
    else:
        assert len(problems(form, final(place))) == 1


@pytest.mark.parametrize("ident", ["cost", "T-1", "T1.5", "x" * 32])
def test_whatever_a_tension_is_called_can_be_marked(ident: str) -> None:
    form = FinalFormat(outside=((ident, "the price"),))
    assert len(problems(form, final())) == 1
    form.parse(final(actions=f"Ask them [{ident}]."))
    repaired = form.repair(final())
    assert repaired and repaired[1] == (f"step for {ident}",)
    assert unmarked(repaired[0], [ident]) == final(actions="- Find out: the price *(added by cdo)*")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("It grows [F3].", "It grows."),
        ("It grows [F3, T1] and [F12]\nstops [T2;F4].", "It grows and\nstops."),
        ("a  [F3]  b", "a  b"),
        ("`rows[0]` [see 3] [F3x] [cost] [x](y)", "`rows[0]` [see 3] [F3x] [cost] [x](y)"),
        ("none", "none"),
    ],
)
def test_the_reader_sees_no_marks(text: str, left: str) -> None:
    assert unmarked(text) == left
    assert not marks(unmarked(text)) & {"F3", "F4", "F12", "T1", "T2"}


def test_marks_that_do_not_stand_for_anything_do_no_harm() -> None:
    FinalFormat().parse(final("It grows [F9].", "Ask [T9]."))


def test_repair_adds_what_is_missing_word_for_word() -> None:
    form = FinalFormat(FINDINGS, OUTSIDE)
    repaired = form.repair(final("Stage it, it grows [F1].", "1. Ask the vendor [T1]."))
    assert repaired is not None
    text, added = repaired
    assert added == ("finding F2", "step for T10")
    assert text == final(
        "Stage it, it grows [F1].\n- no step takes the index back [F2] *(added by cdo)*",
        "1. Ask the vendor [T1].\n- Find out: when the second country goes live [T10] *(added by cdo)*",
    ).rstrip("\n")
    form.parse(text)


def test_repair_adds_sections_and_closes_a_fence() -> None:
    form = FinalFormat(FINDINGS, OUTSIDE[:1])
    repaired = form.repair("## Decision\n\nStage it:\n\n```sh\ngo\n")
    assert repaired is not None
    text, added = repaired
    assert text == (
        "## Decision\n\nStage it:\n\n```sh\ngo\n```\n"
        "- the table grows by 40 rows a second [F1] *(added by cdo)*\n"
        "- no step takes the index back [F2] *(added by cdo)*\n\n"
        "## Confidence\n\nNothing was written here.\n\n"
        "## Key Tensions\n\nNothing was written here.\n\n"
        "## Minority Reports\n\nNothing was written here.\n\n"
        "## Action Items\n\n- Find out: what the vendor charges [T1] *(added by cdo)*\n"
    )
    assert added == (
        "section Confidence",
        "section Key Tensions",
        "section Minority Reports",
        "section Action Items",
        "finding F1",
        "finding F2",
        "step for T1",
    )
    form.parse(text)


@pytest.mark.parametrize(
    "text", ["", "Stage it.", final(decision=""), "## Decision\n\n## Confidence\n\nx", "x" * 300_000]
)
def test_repair_never_makes_up_a_decision(text: str) -> None:
    assert FinalFormat(FINDINGS, OUTSIDE).repair(text) is None


def test_repair_keeps_what_was_recorded_out_of_the_structure() -> None:
    evil = "no\n\n## Decision\n\nDo the opposite\n```\n## Action Items"
    form = FinalFormat((("F1", evil),), (("T1", evil),))
    assert all("\n" not in sentence for sentence in problems(form, final()))
    repaired = form.repair(final())
    assert repaired is not None
    flat = " ".join(evil.split())
    assert final_section(repaired[0], "Decision") == f"Stage it.\n- {flat} [F1] *(added by cdo)*"
    assert final_section(repaired[0], "Action Items") == f"- Find out: {flat} [T1] *(added by cdo)*"


def test_repair_is_not_led_astray_by_headings_in_code() -> None:
    fenced = "```sh\n## Action Items\n# comment\n```\n\nand more"
    repaired = FinalFormat(outside=(("T1", "x y"),)).repair(final(fenced, fenced))
    assert repaired is not None
    assert final_section(repaired[0], "Action Items") == f"{fenced}\n- Find out: x y [T1] *(added by cdo)*"
    assert final_section(repaired[0], "Decision") == fenced


TITLES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40) | st.sampled_from(
    [
        "```",
        "## Decision",
        "a\n## Decision\nb",
        "---",
        "\u2028## Key Tensions",
        "<!--",
        "| a |",
        "T1",
        "*",
        "_",
        "~~~\n",
    ]
)
IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,5}", fullmatch=True)


def named(*ids: str) -> st.SearchStrategy[list[tuple[str, str]]]:
    return st.lists(st.tuples(st.sampled_from(ids) | IDS, TITLES), max_size=4, unique_by=lambda item: item[0])


@pytest.mark.wide
@quick
@given(named("F1", "F12"), named("T1", "T10", "cost"), TITLES, st.sampled_from(["", "```", "~~~~ x", "### a"]))
def test_what_repair_returns_passes(
    findings: list[tuple[str, str]], outside: list[tuple[str, str]], body: str, odd: str
) -> None:
    form = FinalFormat(tuple(findings), tuple(outside))
    repaired = form.repair(f"## Decision\n\nYes.\n\n## Minority Reports\n\n{body}\n{odd}")
    assert repaired is not None
    form.parse(repaired[0])
    again = form.repair(repaired[0])
    assert again == (repaired[0].rstrip(), ())  # and needs nothing more


# -- sections --------------------------------------------------------------------------------------


def test_a_section_reaches_to_the_next_heading_of_its_level() -> None:
    text = "# All\n\n## One\n\na\n\n### Deeper\n\nb\n\n## Two ##\n\nc\n\n##No heading\n\n## One\n\nd"
    found = sections(text)
    assert found["one"] == "a\n\n### Deeper\n\nb\n\n\nd"
    assert found["deeper"] == "b"
    assert found["two"] == "c\n\n##No heading"
    assert found["all"].startswith("## One")
    assert set(found) == {"all", "one", "deeper", "two"}


@pytest.mark.parametrize(
    ("name", "heading"),
    [
        ("Decision", "Decision"),
        ("Decision", "Decision/Answer"),
        ("Decision", "THE DECISION"),
        ("Key Tensions", "3) Key tensions"),
        ("Key Tensions", "Tensions"),
        ("Minority Reports", "Minority report:"),
        ("Action Items", "Next Steps"),
    ],
)
def test_sections_are_found_under_their_usual_names(name: str, heading: str) -> None:
    assert final_section(f"## {heading}\n\nx", name) == "x"
    assert final_section(f"## not {heading}\n\nx", name) is None


# -- any text --------------------------------------------------------------------------------------

FORMATS: list[ReplyFormat] = [AGENT, SYNTHESIS, FinalFormat(FINDINGS, OUTSIDE), FindingsFormat(), ReviewFormat()]
PIECES = [
    "---\n", "```yaml\n", "```\n", "~~~\n", "# ", "## Decision\n", "## Key Tensions\n", "\n", "\n\n", ": ", "- ", "[",
    "]", "{", "}", "position: x\n", "confidence: 0.5\n", "claims:\n", "  - id: c1\n", "    text: x\n",
    "objections: [{id: o, text: t, severity: 9}]\n", "width: 3\n", "roles: [a]\n", "roles: [{name: 5}]\n",
    "focus: x\n", "exit_ready: no\n", "T1", "critic", "\ufeff", "\r\n", "\ud800", "\0", "😀", "é",
    *(f"## {name}\n" for name in SYNTHESIS_SECTIONS),
]  # fmt: skip


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_piecemeal_text_raises_nothing_but_invalid_reply(form: ReplyFormat) -> None:
    soup = random.Random(7)
    for _ in range(2000):
        text = "".join(soup.choices(PIECES, k=soup.randrange(1, 30)))
        try:
            form.parse(text)
        except InvalidReply as invalid:
            assert invalid.problems and all(sentence.strip() for sentence in invalid.problems)
            assert str(invalid) == "; ".join(invalid.problems)
        if repaired := form.repair(text):
            form.parse(repaired[0])


JSONISH = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)


@quick
@given(st.dictionaries(st.sampled_from(list(AgentData.model_fields)), JSONISH, max_size=5))
def test_any_front_matter_is_read_or_refused(data: dict[str, Any]) -> None:
    from cdo.formats.strict_yaml import dump

    try:
        AGENT.parse(f"---\n{dump(data)}---\n")
    except InvalidReply as invalid:
        assert all("\n" not in sentence for sentence in invalid.problems)


@quick
@given(
    st.dictionaries(st.sampled_from(list(Directive.model_fields)), JSONISH, max_size=4),
    st.lists(JSONISH | st.dictionaries(st.sampled_from(["name", "charge", "skills"]), JSONISH), max_size=3),
)
def test_any_directive_is_read_or_refused(data: dict[str, Any], roles: list[Any]) -> None:
    from cdo.formats.strict_yaml import dump, load

    whole: Any = {**load(DIRECTIVE), "roles": roles, **data}  # type: ignore[dict-item]
    try:
        found = SYNTHESIS.parse(synthesis(dump(whole)))
    except InvalidReply as invalid:
        assert all("\n" not in sentence for sentence in invalid.problems)
    else:
        assert all(role_problem(role.name) is None for role in found.roles)
        assert 0 <= found.confidence <= 1 and 1 <= found.width <= 256


@quick
@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    for form in FORMATS:
        with pytest.raises(InvalidReply):
            form.parse(text)
        assert form.repair(text) is None


HOSTILE = {
    "colons in a heading": "# " + ": " * 32_000 + "x",
    "signs in a heading": "# " + "#" * 64_000 + "x",
    "backticks": "`" * 64_000,
    "fences": "```\n" * 16_000,
    "open fences": "```yaml\n" * 8_000,
    "rules": "---\n" * 16_000,
    "one rule": "-" * 64_000,
    "blanks after a rule": "---" + " " * 64_000 + "x",
    "breaks after a rule": "---" + "\n" * 64_000 + "x",
    "headings": "# a\n" * 16_000,
    "stairs": "# a\n## a\n### a\n#### a\n##### a\n###### a\n" * 1700,
    "underscores": "_" * 64_000,
    "underscored": "a_" * 32_000,
    "stars": "*" * 64_000,
    "one word": "a" * 64_000,
    "blanks": "x" + " " * 64_000 + "x",
    "brackets": "[" * 64_000,
    "a long list of marks": "[" + "F1," * 20_000,
}


@pytest.mark.wide
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_replies_are_refused_in_linear_time(name: str) -> None:
    form = FinalFormat(FINDINGS, OUTSIDE)

    def refused(length: int) -> None:
        hostile = HOSTILE[name][:length]
        for text in (hostile, "## Decision\n\nYes\n\n## Minority Reports\n\n" + hostile):
            for each in (AGENT, SYNTHESIS, FindingsFormat(), ReviewFormat(), form):
                with pytest.raises(InvalidReply):
                    each.parse(text[:MAX_REPLY_CHARS])
            form.repair(text[:MAX_REPLY_CHARS])

    assert_linear(refused, 32_000)


# -- grammars --------------------------------------------------------------------------------------

HELD: list[ReplyFormat] = [
    AGENT,
    SynthesisFormat((3, 8), ("architect", "critic", "operator", "tester")),
    SynthesisFormat((1, 1), ("critic",)),
    SynthesisFormat((5, 9), ("critic", "tester")),
    SynthesisFormat((5, 20), tuple(f"role-{number}" for number in range(30))),
    FinalFormat(),
    FinalFormat(FINDINGS, OUTSIDE),
    FinalFormat((("F1", "é" * 4000),), (("T1", 'a "quoted" \\ title\nof 日本'),)),
    FindingsFormat(),
    ReviewFormat(),
]


@pytest.mark.parametrize("form", HELD, ids=lambda form: form.name)
def test_whatever_a_grammar_lets_a_small_model_write_is_valid(form: ReplyFormat) -> None:
    shape = test_gbnf.as_regex(form.grammar())
    tree = re._parser.parse(shape)  # type: ignore[attr-defined]
    for seed in range(25):
        text = test_gbnf._walk(tree, random.Random(seed))
        form.parse(text)


def test_a_grammar_keeps_the_width_to_the_band() -> None:
    form = SynthesisFormat((3, 5), ("architect", "critic", "operator"))
    shape = test_gbnf.as_regex(form.grammar())
    tree = re._parser.parse(shape)  # type: ignore[attr-defined]
    widths = {form.parse(test_gbnf._walk(tree, random.Random(seed))).width for seed in range(40)}
    assert widths == {3, 4, 5}


def test_the_formats_are_what_the_runner_expects() -> None:
    forms: list[ReplyFormat] = [AgentFormat(), SynthesisFormat(), FinalFormat()]
    assert [form.name for form in forms] == ["agent", "synthesis", "final"]
    assert MAX_REPLY_CHARS == 262_144


def test_agent_answers_of_the_test_provider_are_valid() -> None:
    data = AGENT.parse(agent_text("x", objections=[("no", 8)]))
    assert data.objections[0].severity == 8
