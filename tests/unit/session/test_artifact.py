"""Artifacts: a reply survives its file, an edit is seen for what it is, and cdo's keys are cdo's alone."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cdo.core.errors import SessionError
from cdo.core.steps import InvalidReply
from cdo.formats import markdown, strict_yaml
from cdo.formats.final_answer import FinalFormat, final_section
from cdo.formats.voice import AgentFormat, SynthesisFormat
from cdo.session import artifact as artifacts
from cdo.session.artifact import (
    OWN_KEYS,
    Artifact,
    confidence_word,
    digest,
    files,
    final,
    from_file,
    from_reply,
    parse,
)
from tests.support import viewers
from tests.support.answers import agent_text, final_text, synthesis_text
from tests.support.effort import at_most

quick = settings(max_examples=150, deadline=None)

REPLY = """---
position: "stage it"
confidence: 0.70
claims:
  - {id: c1, text: "x", evidence: [a]}
---

# Why

x
"""
OWN: dict[str, Any] = {
    "kind": "agent",
    "role": "critic",
    "turn": 1,
    "model": "m/x",
    "usage": {"input_tokens": 10, "output_tokens": 5},
    "cost": None,
    "attempts": 1,
    "inputs": {"00-input": "0123", "call": "4567"},
}


def saved(artifact: Artifact) -> Artifact:
    """The artifact as it is read back from its file."""
    return from_file(artifact.text().encode("utf-8", "replace").decode(), "t1-critic.md")


# -- from reply to file and back -------------------------------------------------------------------


def test_a_file_shows_the_replys_keys_then_cdos_then_the_text() -> None:
    artifact = from_reply(REPLY, OWN)
    assert artifact.text() == (
        "---\n"
        "position: stage it\n"
        "confidence: 0.7\n"
        "claims:\n"
        "- id: c1\n"
        "  text: x\n"
        "  evidence: [a]\n"
        "kind: agent\n"
        "role: critic\n"
        "turn: 1\n"
        "model: m/x\n"
        "usage: {input_tokens: 10, output_tokens: 5}\n"
        "cost: null\n"
        "attempts: 1\n"
        'inputs: {00-input: "0123", call: "4567"}\n'
        f"sha256: {artifact.sha}\n"
        "---\n\n"
        "# Why\n\nx\n"
    )


def test_a_file_gives_back_reply_and_own_keys() -> None:
    artifact = from_reply(REPLY, OWN)
    again = saved(artifact)
    assert again.own == {**OWN, "sha256": artifact.sha}
    assert (again.meta, again.body, again.sha) == (artifact.meta, artifact.body, artifact.sha)
    assert not again.edited
    assert again.text() == artifact.text()


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (AgentFormat(), agent_text("x", objections=[("no: never", 8)])),
        (AgentFormat(), f"```markdown\n{agent_text('x')}```"),
        (AgentFormat(), agent_text("x").replace("\n", "\r\n")),
        (AgentFormat(), agent_text("😀 \u2028 'quotes\" and: colons #5", claims=["a\nb\n", " c ", "no", "12:30"])),
        (AgentFormat(), agent_text("x", prose="---\n\n---\nprose with rules\n---\n")),
        (AgentFormat(), agent_text("x", prose="a lone \ud800 surrogate, a \0, a \x1b[31m, a \x85 and a \r\r\n end")),
        (SynthesisFormat(), synthesis_text(tensions=["one"], gaps=["two"])),
        (SynthesisFormat(), f"---\n\n{synthesis_text()}\n---\n\nmore"),
        (SynthesisFormat(), f"---\n---\n\n{synthesis_text()}"),
        (SynthesisFormat(), f"---\na: [\n---\n\n{synthesis_text()}"),
        (SynthesisFormat(), f"---\ntitle: x\n---\n\n{synthesis_text()}"),
        (FinalFormat(), final_text("Stage it.")),
        (FinalFormat(), f"---\n\n{final_text('Stage it.')}\n---\nmore"),
    ],
)
def test_a_valid_reply_survives_its_file(form: Any, text: str) -> None:
    data = form.parse(text)
    again = saved(from_reply(text, {"kind": form.name}))
    assert form.parse(again.reply) == data
    assert not again.edited
    assert saved(again).text() == again.text()


AWKWARD = "ab 01.:-#'\"|>{}[],&*!%@`?~\\\n\t\r\x85\u2028\ufeffé😀"
TEXTS = st.text(max_size=30) | st.text(AWKWARD, max_size=30)
KEYS = TEXTS | st.sampled_from([*OWN_KEYS, "position", "confidence"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(-1e6, 1e6) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.wide
@quick
@given(st.dictionaries(KEYS, VALUES, max_size=4), TEXTS | st.lists(TEXTS, max_size=5).map("\n---\n".join))
def test_any_reply_survives_its_file(meta: dict[str, Any], body: str) -> None:
    head = f"---\n{strict_yaml.dump(meta)}---\n" if meta else ""
    artifact = from_reply(f"{head}{body}", OWN)
    again = saved(artifact)
    assert not again.edited
    assert (again.meta, again.body) == (artifact.meta, artifact.body)
    assert again.own == {**OWN, "sha256": artifact.sha}
    assert again.text() == artifact.text()
    held = artifact.as_written("t1-critic")  # what the run goes on with, without reading its file
    assert (held, held.reply, held.sha, held.edited) == (again, again.reply, again.sha, False)
    page = replace(artifact, body=f"> The question\n\n{artifact.body}")  # cdo's own lines come first
    held, read = page.as_written("FINAL"), parse("FINAL", files("FINAL", page).get)
    assert read and (held, held.reply, held.sha) == (read, read.reply, read.sha)


@quick
@given(TEXTS, st.floats(0, 1), st.lists(TEXTS, max_size=3), TEXTS)
def test_what_a_format_accepts_it_accepts_from_the_file(
    position: str, confidence: float, claims: list[str], prose: str
) -> None:
    text = agent_text(position, confidence, claims=claims, prose=prose)
    try:
        data = AgentFormat().parse(text)
    except InvalidReply:
        return
    assert AgentFormat().parse(saved(from_reply(text, OWN)).reply) == data


def test_front_matter_that_grows_in_its_file_can_be_read_back() -> None:
    claims = [{"id": f"c{n}", "text": "a\n" * 300} for n in range(64)]
    artifact = from_reply(agent_text("x", claims=claims), OWN)
    assert len(artifact.text()) > 100_000 > 65_536 > len(agent_text("x", claims=claims))  # block text is indented
    again = saved(artifact)
    assert again.meta == artifact.meta
    assert not again.edited


# -- cdo's own keys --------------------------------------------------------------------------------


@pytest.mark.parametrize("key", OWN_KEYS)
def test_a_model_cannot_set_cdos_keys(key: str) -> None:
    artifact = from_reply(REPLY.replace("position:", f"{key}: forged\nposition:"), {"turn": 1})
    assert key not in artifact.meta
    again = saved(artifact)
    assert not again.edited
    assert again.own == {"turn": 1, "sha256": artifact.sha}
    assert "forged" not in artifact.text()


def test_keys_that_are_not_cdos_are_not_written_as_its_own() -> None:
    artifact = from_reply(REPLY, {"turn": 1, "mood": "grim"})
    assert "mood" not in artifact.text()


def test_what_others_are_shown_names_no_model() -> None:
    assert "m/x" not in saved(from_reply(REPLY, OWN)).reply


def test_a_files_first_lines_may_be_blank() -> None:
    text = from_reply(REPLY, OWN).text()
    for above in ("\n\n", "\ufeff", " \n", "\ufeff\n"):
        again = from_file(above + text, "t1-critic.md")
        assert again.own["model"] == "m/x"
        assert not again.edited


# -- edits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("position: stage it", 'position:   "stage it"'),
        ("position: stage it", "# a note\nposition: 'stage it'"),
        ("position: stage it\nconfidence: 0.7", "confidence: 0.70\nposition: stage it"),
        ("- id: c1\n  text: x\n  evidence: [a]", "  - {id: c1, text: x, evidence: [ a ]}"),
        ("usage: {input_tokens: 10, output_tokens: 5}\n", "usage:\n  output_tokens: 5\n  input_tokens: 10\n"),
        ("# Why\n\nx\n", "\n\n# Why\n\nx\n\n\n"),
        ("\n", "\r\n"),
        ("model: m/x", "model: other"),
        ("cost: null\n", ""),
    ],
)
def test_layout_and_cdos_own_keys_are_no_edit(old: str, new: str) -> None:
    text = from_reply(REPLY, OWN).text()
    assert old in text
    assert not from_file(text.replace(old, new), "t1-critic.md").edited


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("stage it", "stage them"),
        ("0.7", "0.71"),
        ("evidence: [a]", "evidence: []"),
        ("\nx\n", "\ny\n"),
        ("# Why\n\nx", "# Why\n\n  x"),
        ("# Why", "## Why"),
        ("position:", "extra: 1\nposition:"),
    ],
)
def test_a_changed_word_is_an_edit(old: str, new: str) -> None:
    text = from_reply(REPLY, OWN).text()
    assert old in text
    assert from_file(text.replace(old, new), "t1-critic.md").edited


def test_what_cdo_writes_it_vouches_for() -> None:
    edited = from_file(from_reply(REPLY, OWN).text().replace("stage it", "stage them"), "t1-critic.md")
    assert edited.edited
    assert not saved(edited).edited


def test_a_file_without_its_checksum_is_a_persons() -> None:
    text = from_reply(REPLY, OWN).text()
    assert from_file(re.sub(r"sha256: .*\n", "", text), "t1-critic.md").edited
    assert from_file("Just my own words.", "t1-critic.md").edited
    assert from_file(REPLY, "t1-critic.md").edited
    assert from_file("", "t1-critic.md").edited


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("position: stage it", "position: stage: it", "line 2, column 16: mapping values are not allowed"),
        ("claims:", "position: b\nclaims:", "line 4, column 1: the key `position` is there twice"),
        ("evidence: [a]", "evidence: [a", "line 8, column 5: did not find expected ',' or ']'"),
        ("turn: 1", "turn: &x 1", "line 10, column 7: anchors (&name) are not allowed"),
        ("turn: 1", "turn: \x07", "line 10, column 7: the character U+0007 is not allowed"),
    ],
)
@pytest.mark.parametrize("above", ["", "\n\n"])
def test_a_broken_edit_is_named_with_line_and_column_of_the_file(old: str, new: str, where: str, above: str) -> None:
    text = (above + from_reply(REPLY, OWN).text()).replace(old, new)
    line = int(where.split(",")[0].removeprefix("line ")) + len(above)
    with pytest.raises(SessionError) as caught:
        from_file(text, "cdo-x/t1-critic.md")
    assert caught.value.message.startswith("cdo-x/t1-critic.md: " + re.sub(r"^line \d+", f"line {line}", where))
    assert caught.value.hint == "Fix the front matter and resume; nothing is lost."


def test_front_matter_that_is_no_mapping_is_named() -> None:
    with pytest.raises(SessionError, match=r"^x\.md: its front matter is not a mapping of keys\.$"):
        from_file("---\n- a\n---\nx", "x.md")


@quick
@given(TEXTS | st.lists(TEXTS, max_size=6).map("\n---\n".join))
def test_any_file_is_read_or_named(text: str) -> None:
    try:
        from_file(text, "x.md")
    except SessionError as error:
        assert error.message.startswith("x.md: ")


def test_a_digest_depends_on_values_only() -> None:
    assert digest({"a": 1, "b": [1.0, None]}) == digest({"b": [1.0, None], "a": 1})
    assert digest({"a": 1}) != digest({"a": "1"})
    assert digest("é\ud800") == digest("é\ud800")
    assert len(digest(None)) == 64


# -- FINAL.md --------------------------------------------------------------------------------------

SAID = "0.72, lowered from 0.80: 1 question is still open"
LINE = f"**{SAID}**"


@pytest.mark.parametrize(
    "heading", ["## Confidence", "# CONFIDENCE:", "## 2. Confidence", "## **Confidence** ##", "### confidence"]
)
def test_the_recorded_confidence_stands_at_the_start_of_its_section(heading: str) -> None:
    reply = from_reply(final_text("Stage it.").replace("## Confidence", heading), {})
    made = final(reply, 0.72, {"status": "converged"}, SAID)
    place = final_section(made.body, "Confidence")
    assert place is not None
    assert place.startswith(f"{LINE}\n\n0.7: the voices agree")
    assert made.body.count(LINE) == 1
    assert made.meta == {"confidence": 0.72}
    assert FinalFormat().parse(made.reply)


def test_only_the_confidence_line_is_new() -> None:
    text = final_text("Stage it:\n\n```md\n## Confidence\n\n\n\nx\n```\n\n\n\nDone.")
    made = final(from_reply(text, {}), 0.72, {}, SAID)
    assert made.body.replace(f"{LINE}\n\n", "") == text.strip()
    assert made.body.index(LINE) > made.body.index("Done.")


def test_an_empty_confidence_section_gets_the_line_alone() -> None:
    made = final(from_reply("## Decision\n\nYes.\n\n## Confidence\n\n## Action Items\n\nNone.", {}), 0.72, {}, SAID)
    assert made.body == f"## Decision\n\nYes.\n\n## Confidence\n\n{LINE}\n\n## Action Items\n\nNone."


def test_a_final_without_the_section_is_left_as_it_is() -> None:
    assert final(from_reply("Words.", {}), 0.72, {}, SAID).body == "Words."


def test_the_models_own_head_is_not_the_finals() -> None:
    reply = from_reply("---\nconfidence: 1\nauthor: me\nstatus: won\n---\n" + final_text("Stage it."), {})
    made = final(reply, 0.4, {"status": "max_turns", "turns": 3}, SAID)
    assert made.text().startswith("---\nconfidence: 0.4\nstatus: max_turns\nturns: 3\nsha256: ")
    assert not saved(made).edited


@pytest.mark.parametrize(
    ("confidence", "word"),
    [(0.0, "low"), (0.549, "low"), (0.55, "moderate"), (0.799, "moderate"), (0.8, "high"), (1.0, "high")],
)
def test_confidence_has_a_word(confidence: float, word: str) -> None:
    assert confidence_word(confidence) == word


def test_own_keys_have_no_key_of_a_reply() -> None:
    from cdo.formats.voice_blocks import AgentData

    assert not set(OWN_KEYS) & set(AgentData.model_fields)
    assert OWN_KEYS[-1] == "sha256"
    assert artifacts.MAX_ARTIFACT_BYTES >= 4 * 65_536


# -- what a viewer makes of a file -----------------------------------------------------------------

LEAKS = [
    "![x](https://evil/?q=1)",
    "![x][r]\n\n[r]: https://evil/a.png",
    "[click](https://evil/ 'title')",
    "[r]\n\n  [r]:\n  <https://evil/>",
    "> - [r]: //evil/x",
    "<https://evil/>",
    "<img src=https://evil/a.png>",
    "<IMG\nSRC=//evil/a.png>",
    "<script src=//evil/></script>",
    "<!-- gone",
    "<?php",
    "<![CDATA[ x",
    "</div>",
    "a\\<b>\\\\<b>\\\\\\<img src=//evil/>",
    "a]\\(x) ]\\\\(y) [z]\\\\\\: //evil/",
    "`a\n\n` <img src=//evil/> `",
    "a ` b\n\nc ` <img src=//evil/> ` d",
    "\\` <img src=//evil/> `",
    "``\\` <img src=//evil/> ``` `` <b>",
    "- a\n  ```\n<img src=//evil/>\n  ```",
    "> ```\n<img src=//evil/>\n> ```",
    "  ```\n  x\n```\n<img src=//evil/>\n```\n",
    "```\n~~~\n```\n<img src=//evil/>\n~~~",
    "~~~ `x`\n<b>\n~~~\n<img src=//evil/>",
    "`````\n```\n`````\n<img src=//evil/>\n```",
    "    <img src=//evil/>\n\nx\n    <img src=//evil/>",
    "\t```\n<img src=//evil/>\n\t```",
    "| ` | a ` b ` <img src=//evil/> ` |\n| - | - |\n| ` | a ` b ` <img src=//evil/> ` |",
    "<div>\n```\n<img src=//evil/>\n```\n</div>",
    "<pre>\n\n```\n</pre><img src=//evil/>\n```",
    "[a]: //evil/\n```\n<b>\n```\n[a]",
    "# <img src=//evil/> [x](//evil/)\n",
    "x\n<img src=//evil/>\n===",
    "*a <img src=//evil/>* __[x](//evil/)__",
    "[![x](//evil/a)](//evil/b)",
    "![x]\n(//evil/)",
    "[^1]\n\n[^1]: <img src=//evil/>",
    "1. ```\n   x\n2. <img src=//evil/>\n   ```",
    "&lt;img src=//evil/&gt; &#60;img src=//evil/>",
    "\ufeff<img src=//evil/>",
    "![x](../../.ssh/id) ![x](/etc/passwd) [x](..) [x](a/../../b) [x](javascript:alert) ![x](a.png 'x')",
    "`\n<!--`",
    "&#60;img src=x> &amp;#60;b> &amp;amp;#40; ]&#58; x",
]


@pytest.mark.parametrize("body", LEAKS)
def test_no_viewer_of_a_file_loads_or_hides_anything(body: str) -> None:
    """In the text, in a heading, after other text, and in the front matter, whether or not it is known as that."""
    for text in (body, f"# Why\n\nx\n\n{body}\n\nmore", f"- {body}", f"> {body}", f"x `{body}` <b>"):
        artifact = from_reply(f"---\nposition: x\nconfidence: 0.5\n---\n\n{text}\n", OWN)
        artifact = Artifact({**artifact.meta, "claims": [body, {"k": f"` {body}"}], body: 1}, artifact.body, OWN)
        written = artifact.text()
        assert viewers.acts(written) == viewers.acts(written.split("\n---\n", 1)[1]) == []
        again = saved(artifact)
        assert (again.reply, again.sha, again.edited, again.text()) == (artifact.reply, artifact.sha, False, written)


PIECES = st.sampled_from(
    [
        "`", "``", "```", "~~~", "\n", "\n\n", "\\", "<b>", "<img src=x>", "](//e/)", "[a", "![", "]: //e/", "|",
        "\n| - |\n",
        " ", "    ", "\n- ", "\n> ", "\n1. ",
        "a", "<!--", "-->", "<a", ">", "\n===\n", "\n---\n", "<https://e/>", "[a]", "\t",
    ]
)  # fmt: skip


@pytest.mark.wide
@settings(max_examples=600, deadline=None)
@given(st.lists(PIECES, max_size=24).map("".join))
@example("```<b>|\n---\n")
@example("`\n`\n\n")
def test_no_text_acts_in_a_viewer_and_every_text_comes_back(text: str) -> None:
    body = text.strip()
    artifact = Artifact({"position": text or "x"}, body, OWN)
    assert viewers.acts(artifact.text().split("\n---\n", 1)[1]) == []
    assert viewers.acts(artifact.text()) == []
    assert markdown.restore(markdown.neutralise(text)) == text
    assert markdown.unescape_keys(markdown.escape_keys(text)) == text
    assert (saved(artifact).reply, saved(artifact).edited) == (artifact.reply, False)


@pytest.mark.parametrize("address", ["http://x.example", "(www.x.example", "a@b.example", "http://x\u2003y", "`a`x:"])
def test_no_code_begins_at_a_backtick_that_belongs_to_an_address(address: str) -> None:
    text = f"{address}`a <img src=x onerror=hit()>` and `<b>`"
    assert "<" not in markdown.neutralise(text)
    assert markdown.restore(markdown.neutralise(text)) == text
    assert markdown.neutralise(f"{address} `a <b>`") == f"{address} `a <b>`"


def test_no_code_begins_after_backticks_that_have_no_partner() -> None:
    """Python-Markdown begins a span with the last of them, which ends where the code would begin."""
    text = "```a`<svg/onload=hit()>`"
    assert "<" not in markdown.neutralise(text)
    assert markdown.restore(markdown.neutralise(text)) == text
    assert markdown.neutralise("a ` and ``<b>``") == "a ` and ``<b>``"


def test_code_and_plain_text_are_left_as_they_were_written() -> None:
    """A file that a person reads without a viewer is as legible as before, and code in it is still code."""
    body = (
        "See [the file](products/p4-x/v7.md). "
        "Use `List<String>` and `a[0](x)`, 1 < 2 <3> at https://example.org/a?b=(c).\n\n"
        "```mermaid\nflowchart LR\n  a[x](y) --> b[<b>z</b>]\n```\n\n- a\n\n  ~~~\n  d: dict[str]: <T>\n  ~~~"
    )
    artifact = Artifact({"position": "x"}, body, OWN)
    assert body in artifact.text()
    assert from_reply(body, OWN).text().endswith(f"{body}\n")


def test_a_file_of_an_earlier_version_is_no_edit() -> None:
    """They wrote what a model said as it was: a session that began then goes on without asking anything again."""
    body = "See [x](//e/), \\<b> and ]\\(."
    artifact = Artifact({"position": "a <b>"}, body, OWN)
    head = strict_yaml.dump({"position": "a <b>", **OWN, "sha256": artifact.sha})
    found = from_file(f"---\n{head}---\n\n{body}\n", "t1-critic.md")
    assert (found.body, found.edited) == (body, False)


def test_what_a_person_writes_into_a_file_is_read_as_it_is_meant() -> None:
    artifact = Artifact({"position": "x"}, "See [a](//e/).", OWN)
    edited = artifact.text().replace("See", "Look: [b](//f/),")
    found = from_file(edited, "t1-critic.md")
    assert found.edited
    assert found.body == "Look: [b](//f/), [a](//e/)."


@pytest.mark.parametrize(
    "text", ["`" * 60_000 + "<b>", "` `` " * 30_000 + "<b>", "> " * 60_000 + "<b>", "\\`<b>" * 30_000]
)
def test_inert_text_takes_no_time(text: str) -> None:
    with at_most(6):
        assert markdown.restore(markdown.neutralise(text)) == text


# -- FINAL.md and its sidecar ----------------------------------------------------------------------

PAGE = Artifact({"confidence": 0.7}, "# Q?\n\n## Decision\n\nStage [it](http://x.example).", {"status": "converged"})


def test_the_page_is_for_readers_and_its_keys_are_beside_it() -> None:
    written = files("FINAL", PAGE)
    assert list(written) == ["FINAL.yaml", "FINAL.md"]
    assert written["FINAL.md"].startswith("# Q?\n") and "[it](http" not in written["FINAL.md"]
    assert written["FINAL.yaml"] == f"confidence: 0.7\nstatus: converged\nsha256: {PAGE.sha}\n"
    found = parse("FINAL", written.get)
    assert found and (found.meta, found.body) == (PAGE.meta, PAGE.body) and not found.edited


@pytest.mark.parametrize("old", ["# Q?", "Stage"])
def test_a_page_that_a_person_changed_is_edited_and_keeps_its_keys(old: str) -> None:
    written = files("FINAL", PAGE)
    found = parse("FINAL", {**written, "FINAL.md": written["FINAL.md"].replace(old, "Mine")}.get)
    assert found and found.edited and found.own["status"] == "converged"
    alone = parse("FINAL", {"FINAL.md": "Mine\n"}.get)
    assert alone and alone.edited and alone.own == {}
    assert parse("FINAL", {"FINAL.yaml": written["FINAL.yaml"]}.get) is None


def test_a_page_of_an_earlier_version_is_read_with_its_front_matter() -> None:
    found = parse("FINAL", {"FINAL.md": PAGE.text(), "FINAL.yaml": "status: other\n"}.get)
    assert found and (found.meta, found.own["status"], found.edited) == (PAGE.meta, "converged", False)


@pytest.mark.parametrize("broken", ["status: [\n", "- 1\n", "a: 1\na: 2\n"])
def test_a_broken_sidecar_is_named(broken: str) -> None:
    with pytest.raises(SessionError, match=r"cdo-a/FINAL\.yaml: "):
        parse("FINAL", {**files("FINAL", PAGE), "FINAL.yaml": broken}.get, "cdo-a")
