"""Gauge: what it picks for realistic problems, what it says, and what never happens."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdo.content.library import PACKAGED, Library
from cdo.content.schemas import Complexity
from cdo.planning import complexity
from cdo.planning.complexity import TABLES, WHY_LIMIT, Gauge
from tests.support.effort import at_most

TABLE = Library((("packaged", PACKAGED),)).read(TABLES, Complexity)[0]
FIELDS, NARROW, OPEN, WIDE, THRESHOLDS = TABLE.fields, TABLE.narrow, TABLE.open, TABLE.wide, TABLE.thresholds


def gauge(problem: str) -> Gauge:
    return complexity.gauge(problem, TABLE)


PRESETS = ["quick", "think", "deep", "full"]

PROBLEMS = {
    "quick": [
        "Summarize A2A conflicts",
        "What is a mutex?",
        "What is the difference between TCP and UDP?",
        "What's the capital of Australia?",
        "Fix the typo in the README",
        "Rename getUser to fetchUser across the entire codebase",
        "Give me a one-liner that counts the lines of every file",
        "How do I list all open ports on Linux?",
        "Translate 'good morning' into Japanese",
        "Summarize the security review of the payments architecture",
        "Just bump the version to 1.4.2",
        "TL;DR of this changelog please",
        "Hello",
        "Convert 72 degrees Fahrenheit to Celsius",
        "Who wrote The Mythical Man-Month?",
        "Define eventual consistency",
        "What is the time zone of Lisbon?",
        "Reformat this date: 3/4/2024",
        "Recap yesterday's standup notes",
        "Explain quickly how a bloom filter works",
        "List the planets by mass",
        "Write a haiku about rain",
        "Name the new release",
    ],
    "think": [
        "Should we reduce node types?",
        "Should we encrypt the nightly exports before they leave the building?",
        "Is Python 3.13 faster than 3.12 for us?",
        "Tabs or spaces?",
        "Postgres or MySQL for a small internal tool?",
        "Gateway crashes",
        "Kafka vs RabbitMQ",
        "Why does the nightly build take so long?",
        "Should the office be closed between Christmas and New Year?",
        "Is it worth renewing the support contract?",
        "Should I learn Rust or Go next?",
        "Quick sanity check: is our password hashing secure?",
        "Do we need a staging environment?",
        "Why is my bread dough so sticky?",
        "Can we drop support for Internet Explorer?",
        "Should we let candidates choose their interview language?",
        "Are feature flags worth the trouble?",
        "Should I refinance my mortgage now?",
        "Is GraphQL a good fit for a mobile client?",
        "Why do users abandon the signup form?",
        "Should we hire a second designer?",
        "Does our logo need a refresh?",
        "Would a four-day week work for us?",
    ],
    "deep": [
        "Evaluate architecture",
        "Design execution model",
        "How should we split our monolith into services?",
        "Compare Postgres and DynamoDB for our billing data",
        "Design a caching strategy for the product catalogue",
        "Should we move to Kubernetes, and what would it cost us?",
        "Investigate why checkout latency doubled after the last release",
        "Propose an on-call rotation for a team of nine engineers in three time zones",
        "Review our authentication flow for weaknesses",
        "Should we rewrite the backend in Rust?",
        "Assess the GDPR risks of storing chat logs",
        "What is our long-term data migration strategy across all teams?",
        "How can we cut cloud spending by a third without hurting reliability?",
        "Plan the launch of our subscription product",
        "Find the root cause of the flaky deployment pipeline",
        "Should we open-source the product? What would competitors do, and what does the license allow?",
        "Recommend a test suite layout and a pipeline for the new plugin framework",
        "How should we version our public API?",
        "Design a permissions model for shared documents",
        "Evaluate three vendors for payroll and recommend one",
        "Should we buy or build the analytics pipeline, and who would run it?",
        "Plan the deprecation of our legacy API",
        "Should a hospital adopt machine learning for triage, given privacy law and clinical risk?",
        "Our test suite takes 50 minutes. How can we get it under ten without losing coverage?",
    ],
    "full": [
        "Evaluate the security and performance of the entire payment platform",
        "Design a migration of all services from the monolith to an event-driven architecture,"
        " weighing cost, security and team structure",
        "Rewrite our billing system from scratch: which architecture, which database, what will it"
        " cost, and how do we migrate customers without an outage?",
        "Develop a long-term product and pricing strategy for entering the European market,"
        " including GDPR compliance and hiring",
        "How should we reorganise engineering teams and service ownership across the company to deploy daily?",
        "Assess the trade-offs of going multi-region end to end: latency, data residency law, cloud"
        " cost, disaster recovery and on-call load",
        "Plan a five-year roadmap for replacing the legacy data warehouse across all teams",
        "Design our zero-trust security architecture end to end, from login to backups",
        "Compare building our own LLM platform with buying one: cost, privacy, latency, vendor"
        " lock-in and long-term staffing trade-offs",
        "Should we overhaul the entire infrastructure? Which regions first? What does it cost, and"
        " is the customer data safe under GDPR?",
        "Redesign the whole onboarding experience end to end: product, marketing, legal and data pipeline",
        "Propose a strategy to bring our monolith, its database and its deployment into the cloud,"
        " and weigh cost against reliability at scale",
        "Investigate, across all services, how authentication, permissions and data retention"
        " interact, and recommend a compliant target architecture",
        "How might a city balance housing policy, climate goals and budgets across the next decade?",
        "Design the whole data platform for a bank from scratch: security, compliance, cost and team",
        "Evaluate whether to move the entire company to remote work: culture, office cost, hiring"
        " and legal trade-offs",
        "Plan the end-to-end replatforming of our e-commerce product across all regions",
        "How should a country's health policy weigh privacy, cost and research over the long term?",
    ],
}
EXPECTED = [(problem, preset) for preset, problems in PROBLEMS.items() for problem in problems]


@pytest.mark.parametrize(("problem", "preset"), EXPECTED)
def test_realistic_problems(problem: str, preset: str) -> None:
    result = gauge(problem)
    assert result.preset == preset, result.why


def test_the_table_is_spread_over_all_presets() -> None:
    assert list(PROBLEMS) == PRESETS == list(THRESHOLDS)
    assert all(len(problems) >= 12 for problems in PROBLEMS.values())


# -- why ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        ("Should we reduce node types?", "think: 5 words, 1 question"),
        ("Summarize A2A conflicts", "quick: 3 words, summary"),
        ("Evaluate architecture", "deep: 2 words, architecture, evaluation"),
        ("Design execution model", "deep: 3 words, architecture, design"),
        (
            "How should we secure the whole platform? Is it worth the cost?",
            "full: 12 words, 2 questions, architecture + security + cost, open question, whole system",
        ),
        ("Just fix the typo", "quick: 4 words, small edit + small task"),
        ("Sollen wir die Knotentypen reduzieren?", "think: 5 words, 1 question, no known word"),
        ("", "quick: 0 words"),
    ],
)
def test_why(problem: str, why: str) -> None:
    assert gauge(problem).why == why


def test_why_names_every_signal_even_when_everything_is_there() -> None:
    every = [
        row.split(",")[0].strip().rstrip("*") for table in (FIELDS, WIDE, NARROW, OPEN) for row in table.values()
    ]
    result = gauge("Really? Why? How? ```code``` " + ", ".join(every) + " word" * 10_000)
    assert_why_is_sound(result)
    assert len(result.signals) == 8
    for short in (
        "only partly read",
        "3 questions",
        "4 fields",
        "open task",
        "wide scope",
        "narrow scope",
        "code left out",
    ):
        assert short in result.why


def assert_why_is_sound(result: Gauge) -> None:
    assert result.why == f"{result.preset}: {', '.join(result.signals)}"
    assert len(result.why) <= WHY_LIMIT
    assert result.why.isprintable()  # one line, too
    assert result.score >= 0
    assert result.preset == [name for name, least in THRESHOLDS.items() if result.score >= least][-1]


# -- markers --------------------------------------------------------------------------------------


def patterns(table: dict[str, str]) -> list[str]:
    return [pattern.strip() for row in table.values() for pattern in row.split(",")]


@pytest.mark.parametrize("table", [FIELDS, OPEN, WIDE, NARROW], ids=["fields", "open", "wide", "narrow"])
def test_every_pattern_of_a_table_is_found_and_stands_there_once(table: dict[str, str]) -> None:
    for label, row in table.items():
        rows = [pattern.strip() for pattern in row.split(",")]
        assert len(rows) == len(set(rows)), label
        for pattern in rows:
            assert pattern == pattern.casefold().strip()
            assert label in gauge(pattern.replace("*", "xyz")).why, pattern


def test_no_narrow_pattern_is_a_stem() -> None:
    assert not any("*" in pattern for pattern in patterns(dict(NARROW)))


@pytest.mark.parametrize(
    ("problem", "absent"),
    [
        ("Investigate", "cost"),  # not invest
        ("The capital of authors", "performance"),
        ("adjust the quicksand", "small task"),
        ("My date with Kate", "data"),
        ("A costume for Latin class", "cost"),
        ("The acrossness", "whole system"),
    ],
)
def test_markers_end_where_words_end(problem: str, absent: str) -> None:
    assert absent not in gauge(problem).why


@pytest.mark.parametrize("spelling", ["end-to-end", "End to end", "END\nTO END", "end–to–end", "“end to end”"])
def test_markers_ignore_case_hyphens_and_line_breaks(spelling: str) -> None:
    assert "whole system" in gauge(f"Test it {spelling}").why


def test_several_fields_and_wide_scope_are_full_and_neither_is_enough_alone() -> None:
    task = "Design the {}platform: security, cost, latency, legal risk and team structure"
    assert gauge(task.format("")).preset == "deep"
    assert gauge(task.format("entire ")).preset == "full"
    assert gauge("Design the entire thing from scratch, long-term, end to end. Why? How? When?").preset == "deep"


# -- odd texts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", ["", " ", "\n\t", "…", "!!!", "\x00"])
def test_a_text_without_words_is_quick(problem: str) -> None:
    assert gauge(problem).preset == "quick"


HUGE = {
    "one word": "x",
    "words": "word ",
    "questions": "Why? ",
    "question marks": "?",
    "question marks and letters": "?a",
    "semicolons": "= ;",
    "fences": "```",
    "brackets": "(",
    "quotes": '"',
    "blank": " ",
    "lines": "\n",
    "indented": "    x",
    "digits": "2024-",
    "chinese": "架构",
    "stack": "at x",
}


@pytest.mark.parametrize("unit", HUGE.values(), ids=HUGE)
def test_a_megabyte_is_quick_to_read_and_why_says_that_it_was_cut(unit: str) -> None:
    problem = unit * (1_000_000 // len(unit)) + "z"
    with at_most(0.1):
        result = gauge(problem)
    assert "only 8,000 characters read" in result.why
    assert result.preset != "full"
    assert_why_is_sound(result)


def test_a_question_after_a_long_paste_is_read() -> None:
    log = "request served by node seven without remark\n" * 5_000
    assert "1 question" in gauge(log + "Is this log healthy?").why
    fenced = "Look at this:\n```\n" + log + "```\nIs this log healthy?"
    assert "1 question" in gauge(fenced).why
    assert "code left out" in gauge(fenced).why


@pytest.mark.parametrize(
    ("problem", "preset"),
    [
        ("是否应该减少节点类型？", "think"),
        ("Стоит ли нам переписать сервис?", "think"),
        ("هل يجب علينا تقليل أنواع العقد؟", "think"),
        ("Bonjour", "quick"),
        ("Müssen wir unser Abrechnungssystem jetzt neu schreiben oder genügt es, die schlimmsten Stellen zu"
         " verbessern und den Rest erst dann anzufassen, wenn der neue Vertrag unterschrieben ist?", "deep"),
    ],
)  # fmt: skip
def test_other_languages_are_judged_by_length_and_question_marks(problem: str, preset: str) -> None:
    assert gauge(problem).preset == preset


PYTHON = """
import database
class Security(Architecture):
    def migrate(self, entire, cost):
        return self.cache if cost else None  # why?
        budget = team.performance
"""
JAVASCRIPT = """
const auth = require("auth");
function migrate(data) {
  return data ? data.cost : null;
}
"""
TRACE = """
Traceback (most recent call last):
  File "gateway.py", line 3, in entire_migration
    raise SecurityError(data)
  File "budget.py", line 9, in cost
    auth = legal.team()
"""


@pytest.mark.parametrize("code", [PYTHON, JAVASCRIPT, TRACE, "\n```\nsecurity cost\n```\n", "\n```\nlegal cost"])
def test_code_is_left_out(code: str) -> None:
    result = gauge("Why does this fail?\n" + code)
    assert result.preset == "think"
    assert "code left out" in result.why
    assert not any(field in result.why for field in ("security", "cost", "architecture", "team", "legal"))


def test_a_list_is_prose() -> None:
    problem = "Should we:\n- cut the cost;\n- keep the team;\n- move to Kubernetes; or\n- {wait}?\n"
    assert "code" not in gauge(problem).why
    assert "cost" in gauge(problem).why


@pytest.mark.parametrize("url", ["https://a.example/?q=1", "a.example/x?b&c", "a?%20", "a??b"])
def test_a_question_mark_inside_a_url_asks_nothing(url: str) -> None:
    assert "question" not in gauge(f"Read {url} now").why


@pytest.mark.parametrize("end", ["?", "???", "?!", '?"', "?)", "? ", "?*", "？"])
def test_one_question_however_it_ends(end: str) -> None:
    assert "1 question" in gauge(f"Do it{end}").why


# -- properties -----------------------------------------------------------------------------------

PIECES = [pattern.replace("*", "") for table in (FIELDS, OPEN, WIDE, NARROW) for pattern in patterns(dict(table))]
FILLER = ["we", "the", "of", "gateway", "should", "node?", "types.", "Sie", "a,", "3.12", "(x)", "Why?"]
PROSE = st.lists(st.sampled_from(PIECES + FILLER) | st.text("abcde", min_size=1), max_size=60).map(" ".join)
MARKERS = st.sampled_from(patterns(dict(NARROW)))


@given(st.text() | PROSE)
def test_any_text_has_one_sound_answer(problem: str) -> None:
    assert_why_is_sound(gauge(problem))
    assert gauge(problem) == gauge(problem)


@pytest.mark.wide
@given(PROSE, MARKERS)
def test_a_narrowing_marker_never_raises(problem: str, marker: str) -> None:
    before = gauge(problem)
    for text in (f"{marker} {problem}", f"{problem} {marker}", f"{marker.capitalize()}: {problem}"):
        assert gauge(text).score <= before.score
        assert PRESETS.index(gauge(text).preset) <= PRESETS.index(before.preset)


@given(st.text(), MARKERS)
def test_a_narrowing_marker_never_raises_any_text(problem: str, marker: str) -> None:
    assert gauge(f"{marker}\n{problem}").score <= gauge(problem).score


@pytest.mark.parametrize(("problem", "preset"), EXPECTED)
@pytest.mark.parametrize("marker", ["Just", "Quick:", "In one sentence:", "TL;DR:"])
def test_a_narrowing_marker_never_raises_a_real_problem(problem: str, preset: str, marker: str) -> None:
    assert gauge(f"{marker} {problem}").score <= gauge(problem).score
    assert gauge(f"{problem} {marker}").score <= gauge(problem).score


@pytest.mark.parametrize(("problem", "preset"), EXPECTED)
def test_saying_it_again_does_not_make_it_much_harder(problem: str, preset: str) -> None:
    once = gauge(problem)
    for times in (2, 5, 1_000):
        # Only question marks count again, up to a limit, and a word that is cut at the edge of what is read.
        assert gauge("\n".join([problem] * times)).score <= once.score + 1.5


@given(PROSE, st.sampled_from(["across all services", "from scratch", "What about security?"]))
def test_a_widening_end_never_lowers(problem: str, more: str) -> None:
    assert gauge(f"{problem} . {more}").score >= gauge(problem).score - 1.0


def test_imports_are_light() -> None:
    code = (
        "import sys, cdo.planning.complexity; print(*({'click', 'difflib', 'yaml', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
