"""Documents: what is accepted, the sentences that are sent back, what is completed, and how a decision is filed."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import to_builtins

from cdo.content.library import PACKAGED, Library
from cdo.core.errors import ContentError
from cdo.core.schema import fitted
from cdo.core.steps import InvalidReply, ReplyFormat
from cdo.formats import reply_schema, strict_yaml
from cdo.formats.documents import document
from cdo.formats.documents.c4 import C4Model
from cdo.formats.documents.document import LEFT_OUT, DocumentFormat, adr_file_name, stamped
from cdo.formats.documents.prompt import DocumentPrompt
from cdo.formats.documents.worksheets import WorkBreakdown
from cdo.formats.lenient.layout import AS_JSON
from cdo.formats.lenient.reading import read
from cdo.providers.models import LOCAL_REPLY_TOKENS
from cdo.session import artifact
from tests.support.effort import assert_linear
from tests.unit.formats import test_gbnf

quick = settings(max_examples=80, deadline=None)
LIBRARY = Library((("packaged", PACKAGED),))
NAMES = LIBRARY.names("templates/documents")


def form(name: str, *dissenters: str) -> DocumentFormat:
    return DocumentFormat(LIBRARY.read(f"templates/documents/{name}", DocumentPrompt)[0], dissenters)


def problems(shape: ReplyFormat, text: str) -> tuple[str, ...]:
    """The sentences that are sent back."""
    with pytest.raises(InvalidReply) as caught:
        shape.parse(text)
    assert caught.value.problems
    return caught.value.problems


# -- the prompts -----------------------------------------------------------------------------------

VALUES: dict[str, Any] = {
    "read": {"00-input": "QUESTION", "DRAFT": "RESULT </result>", "t2-synthesis": "BEFORE"}, "last": "t2-synthesis",
    "answer": "DRAFT",
    "tensions": [{"id": "T1", "title": "TENSION", "status": "open", "since": 1}], "roles": ["critic", "dev-lead"],
    "dissents": [{"id": "o1", "role": "critic", "text": "DISSENT", "severity": 7}], "integration": ["docs/PLACE"],
}  # fmt: skip


def rendered(name: str, **changes: Any) -> str:
    values = {**VALUES, **changes}
    return "\n".join(
        LIBRARY.render(f"templates/documents/{name}", values, block) for block in ("system", "shared", "own")
    )


def example(name: str, **changes: Any) -> str:
    """The document that a prompt shows as its example."""
    found = re.search(r"^(`{3,4})\n(.*?)\n\1$", rendered(name, **changes), re.DOTALL | re.MULTILINE)
    assert found
    return found[2]


@pytest.mark.parametrize("name", NAMES)
def test_every_prompt_says_all_it_is_given(name: str) -> None:
    text = rendered(name)
    for word in ("QUESTION", "BEFORE", "TENSION", "DISSENT"):
        assert word in text, word
    assert "RESULT ‹/result>" in text
    assert "{{" not in text and "{%" not in text and not re.search(r"\n{4,}", text)
    assert ("docs/PLACE" in text) is (name in ("adr", "wbs"))
    bare = rendered(name, tensions=[], dissents=[], integration=[])
    assert "DISSENT" not in bare and "TENSION" not in bare and "This project keeps" not in bare


@pytest.mark.parametrize("name", NAMES)
def test_every_prompt_is_strict_about_what_it_needs(name: str) -> None:
    for key in VALUES:
        lacking = {other: value for other, value in VALUES.items() if other != key}
        failed = 0
        for block in ("system", "shared", "own"):
            try:
                LIBRARY.render(f"templates/documents/{name}", lacking, block)
            except ContentError as caught:
                assert f"'{key}' is undefined" in caught.message
                failed += 1
        assert failed or (key == "roles" and name != "adr") or (key == "integration" and name in ("c4", "atam"))


@pytest.mark.parametrize("name", NAMES)
def test_the_example_in_every_prompt_is_valid(name: str) -> None:
    assert form(name).parse(example(name)).title
    assert form(name).prompt.file == name.upper()


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_by_the_schema_is_read_as_the_document(name: str) -> None:
    """The example of the prompt as one object: its title, the keys of its front matter, its sections as Markdown."""
    shape, text = form(name), example(name)
    page = document._Page(text)
    sections = {reply_schema._key(each.name): page.text(each) for each in shape.prompt.format.sections}
    title = page.title(shape.prompt.format.sections)
    front: Any = strict_yaml.load(page.front) if page.front else {}
    said = {**front, "title": title, "sections": sections}
    schema = reply_schema.reply_schema(shape)
    assert schema
    said |= {key: [] for key in schema["required"] if key not in said}
    jsonschema.validate(said, schema)
    found = read(shape, json.dumps(said))
    assert found.notes == (AS_JSON,)
    assert found.data == shape.parse(text) == shape.parse(found.text)
    for missing in ("title", "sections"):
        with pytest.raises(InvalidReply):
            read(shape, json.dumps({key: value for key, value in said.items() if key != missing}))


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_is_the_same_after_it_was_written_down(name: str) -> None:
    prompt = form(name).prompt
    written = strict_yaml.dump(to_builtins(prompt))
    assert fitted(DocumentPrompt, strict_yaml.load(written)) == prompt


@pytest.mark.parametrize("name", NAMES)
def test_what_a_grammar_lets_a_small_model_write_is_valid_and_short(name: str) -> None:
    for shape in (form(name), form(name, "critic", "dev-lead")):
        tree = re._parser.parse(test_gbnf.as_regex(shape.grammar()))  # type: ignore[attr-defined]
        for seed in range(25):
            text = test_gbnf._walk(tree, random.Random(seed))
            shape.parse(text)
            assert len(text) < 2000
            assert shape.repair(text) == (text.strip(), ())


ask = test_gbnf.ask  # the fixture


@pytest.mark.model
@pytest.mark.slow
def test_llama_cpp_takes_every_grammar_and_the_longest_fits_a_small_reply(ask: Callable[[str, int], str]) -> None:
    for name in NAMES:
        ask(form(name, "critic", "dev-lead").grammar(), 1)
    assert len(form("c4").parse(ask(form("c4").grammar(), LOCAL_REPLY_TOKENS)).blocks) == 1


# -- decision records ------------------------------------------------------------------------------

HEAD = '---\nstatus: proposed\ndecision-makers: [critic, "dev-lead"]\n---\n\n'
BODY = """# Split the billing service out of the monolith

## Context and Problem Statement

Billing is changed weekly by two teams, and each release stops orders. How do we decouple the two?

## Decision Drivers

* Releases of billing must not stop orders (stated)
* Three people operate everything

## Considered Options

* Keep the monolith
* Split billing out

## Decision Outcome

Chosen option: "Split billing out", because it is the only one that decouples releases.

### Consequences

* Good, because billing is released alone
* Bad, because a network now stands between the two

### Confirmation

Releases without a stop of orders, counted for a quarter.

## Pros and Cons of the Options

### Keep the monolith

* Good, because nothing has to be learned

### Split billing out

* Bad, because of the network

## More Information

The critic holds against it that nobody is on call: see the minority reports of FINAL.md.
"""
ADR = HEAD + BODY


@pytest.mark.parametrize(
    "text",
    [
        ADR,
        f"```markdown\n{ADR}```",
        ADR.replace("\n", "\r\n"),
        ADR.replace("## Decision Outcome", "## 4. Decision outcome").replace("## Decision Drivers", "## Drivers"),
        ADR.replace("# Split the", "\n# Split the").replace("monolith\n\n##", "monolith ##\n\n##"),
        ADR.replace("minority reports", "*minority report*"),
        ADR.replace("status: proposed\n", ""),
        ADR.replace("status: proposed\n", "consulted:\ninformed: everybody\ntags: [x]\n"),
        ADR.replace("## Context", "```sh\n## not a section\n```\n\n## Context", 1),
    ],
)
def test_a_decision_record_is_read_however_it_is_set_out(text: str) -> None:
    found = form("adr", "critic").parse(text)
    assert found.title == "Split the billing service out of the monolith"
    assert found.sections[3] == "Decision Outcome"
    assert found.blocks == ()


def without(heading: str) -> str:
    """The record without a heading and what stands directly under it."""
    return re.sub(rf"^#+ {heading}\n\n([^#].*\n+)*", "", ADR, flags=re.MULTILINE)


START = "The document must start with YAML front matter: `---`, status and decision-makers, `---`."
TITLE = "The document needs a title: a line that begins with `# `, before its sections."


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        (BODY, [START]),
        (f"---\n- x\n---\n{BODY}", [START]),
        (ADR.replace("[critic", '[[critic], "x"'), ["The front matter: `decision-makers.0`: must be text."]),
        (
            ADR.replace("proposed", "accepted").replace('[critic, "dev-lead"]', "[]"),
            [
                "The front matter: `status`: must be 'proposed'.",
                "The front matter: `decision-makers`: must not be empty.",
            ],
        ),
        (ADR.replace("decision-makers", "deciders"), ["The front matter: `decision-makers` is missing."]),
        (
            ADR.replace("status: proposed", "status: a: b"),
            [
                "The front matter is not valid YAML: line 2, column 10: mapping values are not allowed in this "
                "context. Put text values between double quotes."
            ],
        ),
        (ADR.replace("# Split the", "Split the", 1), [TITLE]),
        (HEAD + BODY[BODY.index("## Context") :].replace("## Context", "# Context", 1), [TITLE]),
        (without("Decision Drivers"), ["The section `## Decision Drivers` is missing."]),
        (without("Confirmation"), ["The section `### Confirmation` is missing."]),
        (
            ADR.replace("* Keep the monolith\n* Split billing out\n\n## D", "\n\n## D"),
            ["The section `## Considered Options` is empty."],
        ),
        (
            ADR.replace("minority", "other"),
            ["The section `## More Information` must refer to the minority reports in FINAL.md."],
        ),
        (
            ADR.replace("The critic", "Critic-2"),
            ["The section `## More Information` must refer to the minority reports of critic in FINAL.md."],
        ),
        (
            f"{HEAD}# Title\n",
            [f"The section `{line}` is missing." for line in re.findall("^##+ [^KS].*", BODY, re.M)],
        ),
        ("x" * 262_145, ["The reply has 262145 characters; at most 262144 are read."]),
    ],
    ids=lambda value: str(value)[-60:],
)
def test_a_decision_record_is_sent_back_with_all_that_is_wrong(text: str, sentences: list[str]) -> None:
    assert list(problems(form("adr", "critic"), text)) == sentences


def test_each_dissenter_is_named_however_it_is_written() -> None:
    text = ADR.replace("The critic", "The Critic, **systems thinker** and `dev-lead`")
    form("adr", "critic", "systems-thinker", "dev-lead").parse(text)
    (told,) = problems(form("adr", "critic", "tester", "operator"), text)
    assert "of tester, operator in FINAL.md" in told


@pytest.mark.parametrize(
    "heading", ["Context and Problem Statement", "Confirmation", "Consequences", "More Information"]
)
def test_a_heading_that_is_missing_is_put_in_where_it_belongs(heading: str) -> None:
    repaired = form("adr", "critic").repair(without(heading))
    assert repaired
    text, added = repaired
    assert added[0] == f"section {heading}"
    assert LEFT_OUT in text
    order = [line.lstrip("#").strip() for line in text.split("\n") if line.startswith("#")]
    if heading in ("Confirmation", "Consequences"):
        assert order.index("Decision Outcome") < order.index(heading) < order.index("Pros and Cons of the Options")
    form("adr", "critic").parse(text)


def test_nothing_is_made_up_but_headings_and_the_pointer() -> None:
    text = ADR.replace("* Keep the monolith\n* Split billing out\n\n## D", "\n\n## D").replace("minority", "other")
    repaired = form("adr", "critic", "dev-lead").repair(text)
    assert repaired
    assert repaired[1] == ("section Considered Options", "the pointer to the minority reports")
    assert (
        "What spoke against this is in the minority reports of FINAL.md (critic, dev-lead). *(added by cdo)*"
        in repaired[0]
    )
    lines = set(repaired[0].split("\n")) - set(text.split("\n"))
    assert len(lines) == 2


@pytest.mark.parametrize(
    "text",
    ["", "x", BODY, without("Decision Outcome"), ADR.replace("# Split the", "Split the", 1), "x" * 300_000],
)
def test_what_the_decision_needs_is_not_made_up(text: str) -> None:
    assert form("adr").repair(text) is None


@pytest.mark.parametrize("name", [name for name in NAMES if name != "adr"])
def test_a_block_is_never_made_up(name: str) -> None:
    text = re.sub(r"^```\w+\n.*?^```$", "Left out.", example(name), count=1, flags=re.DOTALL | re.MULTILINE)
    assert "must have exactly one fenced ```" in problems(form(name), text)[0]
    assert form(name).repair(text) is None


# -- blocks ----------------------------------------------------------------------------------------


def test_blocks_are_data() -> None:
    (work,) = form("wbs").parse(example("wbs")).blocks
    assert isinstance(work, WorkBreakdown)
    assert [(task.id, task.depends_on) for task in work.tasks] == [("T1", ()), ("T2", ("T1",))]
    assert form("wbs").parse(example("wbs")).drawn == {}
    found = form("c4").parse(example("c4"))
    (model,) = found.blocks
    assert isinstance(model, C4Model) and [item.id for item in model.elements] == [
        "user",
        "shop",
        "web",
        "store",
        "bank",
    ]
    assert list(found.drawn) == ["DIAGRAMS.md"] and found.drawn["DIAGRAMS.md"].count("```mermaid") == 2


def test_a_block_counts_in_its_own_section_and_language_only() -> None:
    text = example("wbs")
    block = text[text.index("```yaml") : text.index("## Open")]
    want = "The section `## Tasks` must have exactly one fenced ```yaml block, closed by ```; %s were found."
    moved = text.replace(block, "See below.\n").replace("## Open Points", f"## Open Points\n{block}")
    for wrong, count in (
        (moved, 0),
        (text.replace(block, block + block), 2),
        (text.replace("```yaml", "```json"), 0),
        (text.replace("```\n## Open", "\n## Open"), 0),
    ):
        assert want % count in problems(form("wbs"), wrong)
    form("wbs").parse(text.replace("```yaml", "~~~ yml").replace("```\n## Open", "~~~\n## Open"))


def test_what_is_wrong_in_a_block_is_told_by_the_lines_of_the_document() -> None:
    text = "---\nmood: x\n---\n\n" + example("c4").replace("level: person,", "level: person, level: system,")
    line = next(number for number, line in enumerate(text.split("\n"), 1) if "level: person, level" in line)
    (told,) = problems(form("c4"), text)
    assert told.startswith("The C4 model") and f"line {line}" in told, told


def test_problems_of_sections_and_blocks_are_told_together() -> None:
    text = example("wbs").replace("## Scope", "## Notes").replace("depends_on: []", "depends_on: [T2]")
    assert problems(form("wbs"), text) == (
        "The section `## Scope` is missing.",
        "The work breakdown: the dependencies go in a circle: T1 before T2 before T1. Take one of them out.",
    )


@quick
@given(st.data())
def test_any_document_is_read_or_refused_and_what_is_mended_is_read(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(NAMES))
    shape = form(name, "critic")
    lines = (ADR if name == "adr" else example(name)).split("\n")
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(lines)))
        with_ = data.draw(st.sampled_from(["```", "# x", "## Tasks", "---", "", "\x00", "}", "```yaml", "- [x"]))
        lines[at : at + data.draw(st.integers(0, 3))] = [with_]
    text = "\n".join(lines)
    try:
        shape.parse(text)
    except InvalidReply as invalid:
        assert all(isinstance(sentence, str) and sentence for sentence in invalid.problems)
    repaired = shape.repair(text)
    if repaired:
        shape.parse(repaired[0])


@quick
@given(st.text(max_size=300))
def test_any_text_is_refused(text: str) -> None:
    for name in NAMES:
        assert problems(form(name), text)
        assert form(name).repair(text) is None


@pytest.mark.parametrize("unit", ["#", "# x\n", "```\n", "---\n", "## Tasks\n```yaml\n", "minority report ", "a-"])
@pytest.mark.slow
def test_long_hostile_text_is_refused_in_linear_time(unit: str) -> None:
    def refused(length: int) -> None:
        for name in NAMES:
            problems(form(name), unit * (length // len(unit)))
            assert form(name).repair(unit * (length // len(unit))) is None

    assert_linear(refused, 130_000)


# -- schemas ---------------------------------------------------------------------------------------

PROMPT = """---
purpose: p
load_when: l
kind: document
file: NOTE
format:
  sections: [A, {name: B, level: 3}]
  blocks: [{section: A, languages: [yaml], checker: wbs}]
---
x
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("file: NOTE", "file: FINAL", "`file`: must be of 2 to 16 capital letters and digits, and not FINAL"),
        ("file: NOTE", "file: ../X", "`file`: must be of 2 to 16 capital"),
        ("file: NOTE", "file: T1-X", "`file`: must be of 2 to 16 capital"),
        ("file: NOTE", "file: NOTE\ntarget: ../NNNN-slug.md", "`target`: must be a file name such as NNNN-slug.md"),
        ("file: NOTE", "file: NOTE\ntarget: adr.md", "`target`: must be a file name such as NNNN-slug.md"),
        ("checker: wbs", "checker: sql", "`format.blocks.0.checker`: must be 'c4', 'atam-tree' or 'wbs'"),
        ("section: A", "section: C", "`format`: `C` is not the name of one of its sections"),
        ("  blocks:", "  minority: C\n  blocks:", "`format`: `C` is not the name of one of its sections"),
        ("[A, ", "[{nam: A}, ", "`format.sections.0.nam` is not an allowed key"),
        ("kind: document", "kind: agent", "`kind`: must be 'document'"),
    ],
)
def test_a_prompt_that_is_wrong_is_named_with_its_key(tmp_path: Path, old: str, new: str, message: str) -> None:
    folder = tmp_path / "templates" / "documents"
    folder.mkdir(parents=True)
    library = Library((("project", tmp_path), ("packaged", PACKAGED)))
    (folder / "note.md").write_text(PROMPT, encoding="utf-8")
    assert library.read("templates/documents/note", DocumentPrompt)[0].format.sections[1].heading == "### B"
    (folder / "other.md").write_text(PROMPT.replace(old, new), encoding="utf-8")
    with pytest.raises(ContentError) as caught:
        library.read("templates/documents/other", DocumentPrompt)
    assert message in caught.value.message


# -- filing a decision -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("existing", "title", "name"),
    [
        ([], "Use Postgres", "0001-use-postgres.md"),
        (["0001-a.md", "0009-b.md", "index.md", "0042.txt", "12-x.md"], "Use `Postgres`!", "0013-use-postgres.md"),
        (["9999-a.md"], "x", "10000-x.md"),
        (["0007-a.md/x", "7-.md\n"], "x", "0001-x.md"),
        ([f"{'9' * 40}-a.md"], "x", "0001-x.md"),
        ([], "Über-Größe für Zoë", "0001-uber-grosse-fur-zoe.md"),
        ([], "データベース", "0001-decision.md"),
        ([], "../../etc/passwd\x00\n", "0001-etc-passwd.md"),
        ([], "word " * 30, f"0001-{'-'.join(['word'] * 12)}.md"),
        ([], "x" * 90, f"0001-{'x' * 60}.md"),
    ],
)
def test_a_decision_gets_the_next_number_and_the_words_of_its_title(
    existing: list[str], title: str, name: str
) -> None:
    assert adr_file_name(existing, title) == name


def test_a_target_has_its_own_form_of_name() -> None:
    assert adr_file_name(["ADN-007-x.md", "0099-y.md"], "Go", "ADN-NNN-slug.md") == "ADN-008-go.md"
    assert form("adr").prompt.target == "NNNN-slug.md"


@quick
@given(
    st.lists(st.text(max_size=12) | st.from_regex(r"[0-9]{1,6}-[a-z]{1,4}\.md", fullmatch=True), max_size=6),
    st.text(),
)
def test_a_name_is_new_and_plain(existing: list[str], title: str) -> None:
    name = adr_file_name(existing, title)
    assert re.fullmatch(r"[0-9]{4,}-[a-z0-9]+(-[a-z0-9]+)*\.md", name)
    assert len(name) < 90
    assert name not in existing
    later = adr_file_name([*existing, name], title)
    assert int(later.partition("-")[0]) == int(name.partition("-")[0]) + 1


def test_a_decision_is_filed_with_its_day() -> None:
    filed = stamped(ADR, "2026-11-21")
    assert filed == (
        "---\nstatus: proposed\ndate: 2026-11-21\ndecision-makers: [critic, dev-lead]\n---\n\n" + BODY.strip() + "\n"
    )
    assert stamped(filed, "2026-11-22") == filed.replace("11-21", "11-22")
    assert stamped("# Bare\n", "2026-11-21") == "---\nstatus: proposed\ndate: 2026-11-21\n---\n\n# Bare\n"


def test_what_cdo_notes_about_its_files_is_not_filed() -> None:
    own = {"session": "s", "kind": "document", "model": "m/a", "status": "converged", "cost": 0.1}
    filed = stamped(artifact.from_reply(ADR, own).text(), "2026-11-21")
    assert filed == stamped(ADR, "2026-11-21")
    head = yaml.safe_load(filed.split("---\n")[1])
    assert list(head) == ["status", "date", "decision-makers"]


@pytest.mark.parametrize("status", ["accepted", "rejected", "superseded by 0123-x.md"])
def test_a_status_that_a_person_gave_stays(status: str) -> None:
    assert f"\nstatus: {status}\n" in stamped(ADR.replace("proposed", status), "2026-11-21")


@pytest.mark.parametrize("status", ["converged", '"accepted\\ndate: 1"', "[x]", "superseded by", "7"])
def test_any_other_status_is_proposed(status: str) -> None:
    assert stamped(ADR.replace("proposed", status), "2026-11-21") == stamped(ADR, "2026-11-21")


@pytest.mark.parametrize(
    "date", ["2026-99-99", "20261121", "2026-W47-6", "", "today", "2026-11-21\nx: y", "21.11.2026", "2026-1-1"]
)
def test_a_day_is_a_day(date: str) -> None:
    with pytest.raises(ValueError, match="not a day"):
        stamped(ADR, date)
