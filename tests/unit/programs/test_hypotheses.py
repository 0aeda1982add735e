"""The ledger of hypotheses: ids and texts stay, evidence alone settles; the replies that report to it, and diffs."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdo.core.steps import InvalidReply, ReplyFormat
from cdo.formats import strict_yaml
from cdo.formats.blocks import validate
from cdo.formats.fields import load
from cdo.formats.final_answer import FinalFormat
from cdo.formats.unified_diff import diff_problem
from cdo.formats.voice import SynthesisFormat
from cdo.programs.debug.evidence import UNCHECKED, Checks, is_evidence
from cdo.programs.debug.evidence import looked_up as words_of
from cdo.programs.debug.hypotheses import Hypotheses, HypothesisWish
from cdo.programs.debug.reply_formats import MAX_LEDGER, CaseFormat, CaseSynthesis
from cdo.programs.debug.root_cause_report import IN_GRAMMAR, NO_CAUSE, RCA_SECTIONS, UNKNOWN_FIX, RcaFormat
from cdo.repository.citations import check_all
from tests.support.answers import agent_text, final_text, synthesis_text
from tests.unit.formats import test_gbnf

SEEN = "observed: 504 after exactly 30 s in 5 of 5 runs"
DIFF = "--- a/src/proxy.py\n+++ b/src/proxy.py\n@@ -1,3 +1,3 @@\n import x\n-TIMEOUT = None\n+TIMEOUT = 25\n\n"


def wish(ident: str = "H1", **keys: Any) -> HypothesisWish:
    return HypothesisWish.model_validate({"id": ident, **keys})


def new(ident: str = "H1", text: str = "the pool is empty", **keys: Any) -> HypothesisWish:
    return wish(ident, **{"text": text, "prediction": f"one sees {text[:99]}", **keys})


def ledger(*wishes: HypothesisWish) -> Hypotheses:
    return Hypotheses().after(1, wishes)


def refuting(*citations: str) -> Checks:
    return Checks(refuted=frozenset(citations))


def problems(form: ReplyFormat, text: str) -> tuple[str, ...]:
    with pytest.raises(InvalidReply) as caught:
        form.parse(text)
    return caught.value.problems


# -- evidence --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        SEEN,
        "Observed: the queue stays at 0",
        "src/proxy.py:88",
        "src/proxy.py:88 sets no timeout",
        "see Makefile:3 for the flags",
        "cmd/gate/main:12",
        "src/proxy.py#L88-L90 sets no timeout",
        "https://example.org/issues/7",
        'the log says "connection reset by peer"',
        "`if retries > limit:` is never true",
        "It seems that proxy.py:88 is wrong",  # the place can be looked up, however it is worded
    ],
)
def test_a_place_a_quote_or_an_observation_is_evidence(text: str) -> None:
    assert is_evidence(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "it is obvious",
        "everybody knows that pools leak",
        "observed: I think it is the pool",
        "observed: probably the pool",
        "observed: it seems slow",
        "observed:",
        "observed: x",
        "at 12:30 it was slow",
        "three of four voices agree",
        "`retries` is bad",
        'it is "bad"',
        "H1: supported",
        "proxy.py:0",
    ],
)
def test_opinion_is_not(text: str) -> None:
    assert not is_evidence(text)


LINES = 'def f():\n    return 1\n\ntimeout = None\nsay("hi")\n'
WRITTEN = [
    '{0} "{1}"', "{0} `{1}`", "{0} (“{1}”)", "`{0}: {1}`", "{0}: {1}", "see {0} («{1}») for it",
]  # fmt: skip


def looked_up(folder: Path, reply: str) -> Checks:
    """What code finds out about the citations of a reply, as a run does."""
    folder.joinpath("p.py").write_text(LINES)
    found = check_all([reply], folder)
    return Checks(
        frozenset(item.citation for item in found if item.verified),
        frozenset(item.citation for item in found if not item.holds),
        frozenset(item.citation for item in found if item.exists),
    )


@pytest.mark.parametrize("signs", WRITTEN)
@pytest.mark.parametrize("listed", ['["{}"]', "\n  - '{}'\n  - x", "['{}', more]", '["{}", "more"]', '\n  - "{}"'])
def test_what_code_refutes_is_no_evidence_in_whatever_signs(tmp_path: Path, signs: str, listed: str) -> None:
    for words, kind in (("timeout = None", "cited ✓"), ("timeout = 30 (", "refuted")):
        item = signs.format("p.py:4", words)
        quoted = item.replace("'", "''") if "'" in listed else item.replace('"', '\\"')
        block = f"evidence: {listed.format(quoted)}"
        (first, *_) = validate(HypothesisWish, {"id": "H1", **load(block, 0, "x", 999)}, "x").evidence
        assert first == item
        checks = looked_up(tmp_path, f"---\n{block}\n---\n")
        assert checks.kind(item) == kind, (block, checks)
        assert checks.sound([item]) == ((item,) if kind == "cited ✓" else ())


def test_quotes_inside_of_quotes_are_compared_too(tmp_path: Path) -> None:
    checks = looked_up(tmp_path, 'p.py:5 `say("hi")`, p.py:5 `say("ho")`, `p.py:1: say("f")` and p.py:1-2 `}); //`')
    kinds = {words: checks.kind(f"p.py:5 ({words})") for words in ('`say("hi")`', '`say("ho")`', "«say('ho')»")}
    assert list(kinds.values()) == ["cited ✓", "refuted", "refuted"]
    assert [checks.kind('p.py:1 `say("f")`'), checks.kind("p.py:1-2 `}); //`")] == ["refuted", "refuted"]


def test_taking_false_words_out_does_not_make_a_place_hold(tmp_path: Path) -> None:
    checks = looked_up(tmp_path, 'p.py:4 "timeout = 30" and gone.py:7 "x = 1" but p.py:1 "def f" and p.py:2')
    assert [checks.kind(text) for text in ("p.py:4 sets no timeout", "gone.py:7", "p.py:1", "p.py:2 returns")] == [
        "refuted", "refuted", "cited", "cited ○",
    ]  # fmt: skip
    nowhere = looked_up(tmp_path, "gone.py:7 is where it fails")
    assert nowhere.kind('gone.py:7 "another quote"') == "refuted"
    assert nowhere.kind("gone.py:70") == "cited"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (SEEN, "reported"),
        ('observed: it prints "connection reset by peer"', "reported"),
        ("observed: 504 in proxy.py:88", "cited"),
        ('the log says "connection reset by peer"', "quoted"),
        ("https://example.org/issues/7", "cited"),
        ("Makefile:3 [cited ✓]", "cited"),
        ("surely [cited ✓]", "opinion"),
    ],
)
def test_what_nobody_looked_up_says_so(text: str, kind: str) -> None:
    assert UNCHECKED.kind(text) == kind
    assert UNCHECKED.best(["surely", text]) == (None if kind == "opinion" else kind)


PLACES = {
    "504 after exactly 30 s in 5 of 5 runs": "question",
    "connection reset by peer": "context",
    "two of nine tests failed": "check",
    "return sum(prices[1:])": "repository",
    "https://example.org/issues/7": "question",
    "they told us so": "question",
}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (SEEN, "reported"),
        ('observed: "connection reset by peer"', "reported"),
        ('observed: the log says "connection reset by peer"', "reported"),
        ('observed: with eight workers it never crashes, unlike "connection reset by peer"', "not found"),
        ("observed: it never crashes with eight workers", "not found"),
        ('observed: "connection reset by peer" and "it never crashes"', "not found"),
        ('observed: "return sum(prices[1:])"', "not found"),  # a file is cited, not observed
        ("result: two of nine tests failed", "checked ✓"),
        ('it prints "two of nine tests failed"', "checked ✓"),
        ('the code says "return sum(prices[1:])"', "quoted"),
        ('"connection reset by peer" and "two of nine tests failed"', "quoted"),
        ('"connection reset by peer" and "twelve words nobody wrote"', "not found"),
        ("https://example.org/issues/7", "quoted"),
        ("https://example.org/issues/8", "cited"),
        ("src/proxy.py:88 sets no timeout", "cited"),
        ("p.py:4 sets no timeout", "cited ○"),
        ('p.py:4 "timeout = None"', "cited ✓"),
        ('observed: p.py:4 "timeout = None"', "cited ✓"),
        ("observed: it never crashes, see p.py:4", "cited ○"),
        ("surely the pool", "opinion"),
    ],
)
def test_in_a_run_only_what_code_found_carries_a_status(text: str, kind: str) -> None:
    checks = Checks(frozenset(['p.py:4 "timeout = None"', "p.py:4"]), places=PLACES)
    assert checks.kind(text) == kind
    assert checks.carries(text) == (kind in ("checked ✓", "cited ✓", "quoted", "reported"))
    assert checks.best(["surely", text]) == (kind if checks.carries(text) else None)
    assert checks.sound([text]) == (text,), "it is kept and shown, whatever it carries"


def test_what_is_looked_up_is_what_was_quoted_or_observed() -> None:
    assert words_of('observed: the log says "reset by peer"') == ("reset by peer",)
    assert words_of("observed: it never crashes with eight workers") == ("it never crashes with eight workers",)
    framed = 'observed: after we gave it eight workers: "no crash for an hour"'
    assert words_of(framed) == ("no crash for an hour", "after we gave it eight workers: ")
    several = 'see "connection reset by peer" and “the pool is empty now” at https://example.org/7'
    assert words_of(several) == ("connection reset by peer", "the pool is empty now", "https://example.org/7")
    assert words_of("p.py:4 sets no timeout") == ()
    assert words_of("I think that “it is the pool”") == ("it is the pool",)


# -- the ledger ------------------------------------------------------------------------------------


def test_evidence_that_is_found_nowhere_is_kept_and_settles_nothing() -> None:
    checks, invented = Checks(places=PLACES), "observed: it never crashes with eight workers"
    after = ledger(new()).after(2, [wish(status="supported", evidence=[invented])], checks=checks)
    assert (after.items[0].status, after.items[0].evidence) == ("open", (invented,))
    assert after.data(checks)[0]["evidence"] == [{"text": invented, "kind": "not found"}]
    both = ledger(new()).after(2, [wish(status="supported", evidence=[invented, SEEN])], checks=checks)
    assert both.items[0].status == "supported"


def test_a_new_hypothesis_needs_text_and_prediction() -> None:
    for lacking in (wish(), wish(text="x"), wish(prediction="y")):
        assert Hypotheses().problems([lacking]) == [
            "H1 is new: it needs `text`, and `prediction` with what one would see only if it is true."
        ]
        assert ledger(lacking).items == ()


def test_a_text_never_changes() -> None:
    before = ledger(new())
    other = wish("H1", text="the cache is stale", evidence=[SEEN])
    assert before.problems([other]) == [
        "H1 stands as “the pool is empty” and keeps its text: leave `text` out, or give another hypothesis an id of "
        "its own (H2 is free)."
    ]
    assert before.after(2, [other]) == before
    same = before.after(2, [wish("H1", text="The  pool is empty.", prediction="another one")])
    assert same == before


def test_the_same_text_does_not_come_back_under_another_id() -> None:
    before = ledger(new()).after(2, [wish(status="ruled-out", evidence=[SEEN])])
    again = new("H2", "The pool is EMPTY.")
    assert before.problems([again]) == ["H2 says the same as H1 (ruled-out): use that id."]
    assert before.after(3, [again]) == before
    assert before.after(3, [], [("critic", again)]) == before


@pytest.mark.parametrize("status", ["supported", "ruled-out", "ruled out", "Ruled_Out"])
def test_only_evidence_settles(status: str) -> None:
    before = ledger(new())
    for evidence in ([], ["it is obvious"], ["observed: I think so, really"]):
        bare = wish(status=status, evidence=evidence)
        (problem,) = before.problems([bare])
        assert problem.startswith(f"H1: `{bare.status}` needs evidence that is not opinion: a place")
        assert before.after(2, [bare]).items[0].status == "open"
    settled = before.after(2, [wish(status=status, evidence=[SEEN])])
    assert settled.items[0].status == wish(status=status).status
    assert settled.items[0].evidence == (SEEN,)
    assert settled.items[0].since == 1


def test_leaving_a_hypothesis_out_changes_nothing() -> None:
    before = ledger(new(), new("H2", "the cache is stale"))
    assert before.after(2, []) == before
    assert before.after(2, [wish("H2", status="supported", evidence=[SEEN])]).items[0] == before.items[0]


@pytest.mark.parametrize("back", ["open", "supported"])
def test_what_is_ruled_out_comes_back_with_new_evidence_only(back: str) -> None:
    out = ledger(new()).after(2, [wish(status="ruled-out", evidence=[SEEN])])
    for evidence in ([], [SEEN], [f"  {SEEN.upper()}"], ["surely it is that after all"]):
        assert out.problems([wish(status=back, evidence=evidence)])
        assert out.after(3, [wish(status=back, evidence=evidence)]).items[0].status == "ruled-out"
    fresh = [SEEN, "result: the pool was empty in run 6"]
    assert out.problems([wish(status=back, evidence=fresh)]) == []
    assert out.after(3, [wish(status=back, evidence=fresh)]).items[0].evidence == tuple(fresh)


def test_evidence_that_cites_what_does_not_hold_settles_nothing() -> None:
    change = wish(status="supported", evidence=["gone.py:7 sets no timeout"])
    after = ledger(new()).after(2, [change], checks=refuting("gone.py:7"))
    assert (after.items[0].status, after.items[0].evidence) == ("open", ())
    assert ledger(new()).after(2, [change]).items[0].status == "supported"


def test_what_rests_on_nothing_that_holds_is_open_again() -> None:
    place = "gone.py:7 sets no timeout"
    settled = ledger(new()).after(2, [wish(status="supported", evidence=[place])])
    later = settled.after(3, [], checks=refuting("gone.py:7"))
    assert (later.items[0].status, later.items[0].evidence) == ("open", (place,))
    assert later.data(refuting("gone.py:7"))[0]["evidence"] == [{"text": place, "kind": "refuted"}]
    both = settled.after(3, [wish(status="supported", evidence=[SEEN])]).after(4, [], checks=refuting("gone.py:7"))
    assert both.items[0].status == "supported"


def test_what_voices_propose_enters_unless_it_is_taken_up() -> None:
    proposed = [
        ("critic", new("H1", "the cache is stale", status="supported", evidence=[SEEN])),
        ("tester", new("H1", "a stale cache")),
        ("tester", new("H2", "the disk is full")),
        ("operator", new("H2", "The disk is full")),
    ]
    after = Hypotheses().after(
        3, [new("H1", "the cache serves old rows", merges=["critic/H1", "tester/H1"])], proposed
    )
    assert [(item.id, item.text, item.status) for item in after.items] == [
        ("H1", "the cache serves old rows", "open"),
        ("H2", "the disk is full", "open"),
    ]
    alone = Hypotheses().after(3, [], proposed)
    assert [(item.id, item.text) for item in alone.items] == [
        ("H1", "the cache is stale"), ("H2", "a stale cache"), ("H3", "the disk is full"),
    ]  # fmt: skip
    assert {item.status for item in alone.items} == {"open"}  # one voice alone settles nothing
    assert alone.items[0].evidence == (SEEN,)


TEXTS = st.sampled_from(["the pool is empty", "the cache is stale", "The Pool is empty.", "", "the disk is full"])
PROOF = st.lists(
    st.sampled_from([SEEN, "src/a.py:3", 'log: "reset by peer, again"', "surely", "observed: I think so", "x.py:9"]),
    max_size=3,
)
WISHES = st.builds(
    lambda number, text, prediction, status, proof, merges: wish(
        f"H{number}", text=text, prediction=prediction, status=status, evidence=proof, merges=merges
    ),
    st.integers(1, 5),
    TEXTS,
    st.sampled_from(["", "one sees it"]),
    st.sampled_from(["open", "supported", "ruled-out"]),
    PROOF,
    st.lists(st.sampled_from(["critic/H1", "critic/H2", "x"]), max_size=2),
)
TURNS = st.lists(
    st.tuples(
        st.lists(WISHES, max_size=4),
        st.lists(st.tuples(st.sampled_from(["critic", "tester"]), WISHES), max_size=3),
        st.sampled_from([set(), {"x.py:9"}, {"src/a.py:3", "x.py:9"}]),
    ),
    max_size=7,
)


@pytest.mark.wide
@settings(max_examples=150, deadline=None)
@given(TURNS)
def test_no_sequence_of_replies_settles_without_evidence(turns: list[Any]) -> None:
    now = Hypotheses()
    for turn, (wishes, proposed, broken) in enumerate(turns, 1):
        checks = refuting(*broken)
        then, now = now, now.after(turn, wishes, proposed, checks)
        ids = [item.id for item in now.items]
        assert len(set(ids)) == len(ids)
        texts = [" ".join(item.text.casefold().split()).rstrip(".") for item in now.items]
        assert len(set(texts)) == len(texts)
        for old in then.items:  # nothing vanishes, no text and no evidence on record changes
            new_ = now.get(old.id)
            assert new_ and (new_.text, new_.since) == (old.text, old.since)
            assert new_.evidence[: len(old.evidence)] == old.evidence
            if new_.status == "open" != old.status and not checks.best(old.evidence):
                continue
            if new_.status != old.status:
                proof = [
                    fact for item in wishes if item.id == old.id for fact in item.evidence
                    if is_evidence(fact) and not any(cited in fact for cited in broken)
                ]  # fmt: skip
                assert proof
                if old.status != "open" and checks.best(old.evidence):
                    assert len(new_.evidence) > len(old.evidence)
        for item in now.items:
            assert item.status == "open" or any(is_evidence(fact) for fact in item.evidence)
            assert item.text and item.prediction


# -- voices ----------------------------------------------------------------------------------------


def voice(keys: str = "", body: str = "Because.") -> str:
    return f'---\nposition: "the pool"\nconfidence: 0.6\n{keys}\n---\n\n{body}\n'


H1 = "hypotheses: [{id: H1, text: the pool is empty, prediction: waits grow}]"


def bringing(evidence: str) -> str:
    return H1.replace("}]", f", evidence: [{evidence}]}}]")


@pytest.mark.parametrize(
    ("keys", "place", "shown"),
    [
        (
            H1.replace("the pool is empty", '"<one cause, in one sentence>"'),
            "hypotheses.0.text",
            "<one cause, in one",
        ),
        ("hypotheses: [{id: H1, status: <open|supported>}]", "hypotheses.0.status", "<open|supported>"),
        (bringing("'<path:line \"words that stand there\">'"), "hypotheses.0.evidence.0", "<path:line"),
        (bringing("'observed: \"<words from the question>\"'"), "hypotheses.0.evidence.0", "observed: "),
        ('no_fix: "<why there is none>"', "no_fix", "<why there is none>"),
    ],
)
def test_a_placeholder_that_comes_back_is_refused(keys: str, place: str, shown: str) -> None:
    (found,) = problems(CaseFormat(ledger(new()), ()), voice(keys))
    assert found.startswith(f"The front matter: `{place}`: `{shown}")
    assert found.endswith("is a placeholder of the example: write your own text, or leave it out.")
    if "hypotheses" in keys and "no_fix" not in keys:
        text = synthesis(keys)
        assert found.replace("The front matter", "The directive") in problems(form(), text)
        repaired = form().repair(text)
        assert repaired and repaired[1] and "<" not in str(form().parse(repaired[0]).hypotheses)


@pytest.mark.parametrize(
    "code", ['a.html:3 "<div class=wide>"', "`if a < b and c > d:` stands there", "Map<String, Pool>"]
)
def test_code_with_angle_brackets_is_no_placeholder(code: str) -> None:
    data = CaseFormat().parse(voice(bringing(json.dumps(code))))
    assert data.hypotheses[0].evidence == (code,)


def test_a_voice_brings_hypotheses() -> None:
    data = CaseFormat(Hypotheses(), ("hypothesis",)).parse(voice(H1))
    assert [(item.id, item.status, item.evidence) for item in data.hypotheses] == [("H1", "open", ())]
    assert data.position == "the pool"
    assert CaseFormat().parse(agent_text("no hypothesis")).hypotheses == ()


@pytest.mark.parametrize(
    ("form", "text", "sentence"),
    [
        (CaseFormat(), "no front matter", "The reply must start with YAML front matter"),
        (CaseFormat(), voice("hypotheses: [{id: 1}]"), "The front matter: `hypotheses.0.id`: must match"),
        (CaseFormat(), voice("hypotheses: [{id: H1, status: dead}]"), "must be 'open', 'supported' or 'ruled-out'"),
        (CaseFormat(), voice(H1.replace("}]", "}, {id: H1, text: y, prediction: z}]")), "the id H1 is used twice"),
        (CaseFormat(), voice("hypotheses: [{id: H4}]"), "H4 is new: it needs `text`"),
        (CaseFormat(Hypotheses(), ("hypothesis",)), voice(), "`hypotheses` must hold at least one"),
        (CaseFormat(ledger(new()), ("test",)), voice(), "`hypotheses` must say of at least one of H1"),
        (CaseFormat(ledger(new()), ("test",)), voice("hypotheses: [{id: H1}]"), "must say of at least one of H1"),
        (CaseFormat(ledger(new())), voice("hypotheses: [{id: H1, status: ruled-out}]"), "needs evidence"),
        (CaseFormat(Hypotheses(), ("fix",)), voice(), "Give one fenced ```diff block (0 were found), or `no_fix`"),
        (CaseFormat(Hypotheses(), ("fix",)), voice("", "```diff\nnonsense\n```"), "The diff: line 1: a file begins"),
        (
            CaseFormat(Hypotheses(), ("fix",)),
            voice("no_fix: x", f"```diff\n{DIFF}```\n\n```diff\n{DIFF}```"),
            "(2 were found)",
        ),
    ],
)
def test_a_voice_is_sent_back_with_what_is_wrong(form: CaseFormat, text: str, sentence: str) -> None:
    assert any(sentence in problem for problem in problems(form, text)), problems(form, text)


def test_the_fix_is_the_diff_of_the_body() -> None:
    form = CaseFormat(Hypotheses(), ("fix",))
    assert (
        form.parse(voice("fix: 'from the front matter'", f"So:\n\n```diff\n{DIFF}```")).fix
        == DIFF.rstrip("\n") + "\n"
    )
    assert form.parse(voice("no_fix: nothing is supported")).fix == ""
    assert CaseFormat().parse(voice("fix: x", "```diff\nnonsense\n```")).fix == ""  # only this phase owes one


# -- diffs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        DIFF,
        "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b",
        "--- /dev/null\n+++ b/new.txt\n@@ -0,0 +1,2 @@\n+a\n+b",
        "diff --git a/x b/x\nindex 12ab..34cd 100644\n--- a/x\t2026-01-01\n+++ b/x\n@@ -1 +1 @@ def f():\n-a\n+b\n"
        "\\ No newline at end of file",
        "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n@@ -9,2 +9,1 @@\n a\n-b\n\n--- a/y\n+++ b/y\n@@ -1 +0,0 @@\n-a",
        "--- a/x\n+++ b/x\n@@ -1,1 +1,1 @@\n--- old\n+++ new",
    ],
)
def test_a_well_formed_diff(text: str) -> None:
    assert diff_problem(text) == ""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it changes no file"),
        ("some words", "line 1: a file begins with"),
        ("--- a/x", "line 1: a file begins with"),
        ("@@ -1 +1 @@\n-a\n+b", "line 1: a file begins with"),
        ("--- a/x\n+++ b/x\n", "line 3: a file needs at least one `@@"),
        ("--- a/x\n+++ b/x\n@@ -1,2 +1 @@\n-a\n+b", "line 3: the lines under this `@@` are not as many as it says"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n+c", "line 3: the lines under"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n?b", "line 3: the lines under"),
        ("--- a/x\n+++ b/x\n@@ @@\n-a", "line 3: a file needs at least one"),
        ("--- /etc/passwd\n+++ /etc/passwd\n@@ -1 +1 @@\n-a\n+b", "line 1: the path must be relative"),
        ("--- a/../x\n+++ b/../x\n@@ -1 +1 @@\n-a\n+b", "line 1: the path must be relative"),
        ("--- a/x\n+++ b/../../x\n@@ -1 +1 @@\n-a\n+b", "line 1: the path must be relative"),
        ("--- a/~/x\n+++ ~/x\n@@ -1 +1 @@\n-a\n+b", "line 1: the path must be relative"),
        ("--- a/.git/config\n+++ b/.git/config\n@@ -1 +1 @@\n-a\n+b", "line 1: the path must not be inside .git"),
        ("--- a/x\\y\n+++ b/x\\y\n@@ -1 +1 @@\n-a\n+b", "line 1: the path is not one that can be read"),
        ("--- a/C:/y\n+++ C:/y\n@@ -1 +1 @@\n-a\n+b", "line 1: the path is not one that can be read"),
        ("--- a/\x1b[2J\n+++ b/x\n@@ -1 +1 @@\n-a\n+b", "line 1: the path is not one that can be read"),
        ("--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-a\n+b", "line 1: both sides are /dev/null"),
        ("x\n" * 2000, "it has 2001 lines, at most 2000 are read"),
    ],
)
def test_what_cannot_be_applied_is_said(text: str, problem: str) -> None:
    assert diff_problem(text).startswith(problem), diff_problem(text)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([*DIFF.split("\n"), "+++ b/../x", "-x", "\\ No", "@@ -1 +1 @@", "words", "+y", " z"]))
)
def test_any_lines_are_read_to_an_end(lines: list[str]) -> None:
    assert isinstance(diff_problem("\n".join(lines)), str)


# -- syntheses -------------------------------------------------------------------------------------


def synthesis(reported: str, base: str = "") -> str:
    """A synthesis whose directive also has these lines."""
    return (base or synthesis_text()).replace("\n```\n", f"\n{reported}\n```\n")


NO_GAPS = re.sub(r"gaps: .*\n", "", synthesis_text())


def form(known: Hypotheses | None = None) -> CaseSynthesis:
    return CaseSynthesis(SynthesisFormat(), known or Hypotheses())


def test_a_synthesis_reports_the_ledger() -> None:
    text = synthesis(f'hypotheses:\n  - {{id: H1, status: supported, evidence: ["{SEEN}"], merges: [critic/H2]}}')
    found = form(ledger(new())).parse(text)
    assert [(item.id, item.status, item.merges) for item in found.hypotheses] == [("H1", "supported", ("critic/H2",))]
    assert found.focus == "what the first month of figures has to show"
    assert form().parse(synthesis_text()).hypotheses == ()


@pytest.mark.parametrize(
    ("reported", "sentence"),
    [
        ("hypotheses: [{id: H1, status: supported}]", "H1: `supported` needs evidence"),
        ("hypotheses: [{id: H1, text: another}]", "H1 stands as"),
        ("hypotheses: [{id: H9}]", "H9 is new"),
        ("hypotheses: x", "`hypotheses.0` must be a mapping"),
        ("hypotheses: [{id: x}]", "`hypotheses.0.id`: must match"),
        ("hypotheses: [{]", "is not valid YAML"),
        ("mood: grim", "`mood` is not a key"),
        ("hypotheses: []\nwidth: 0", "the key `width` is there twice"),
    ],
)
def test_a_synthesis_is_sent_back_with_what_is_wrong(reported: str, sentence: str) -> None:
    found = problems(form(ledger(new())), synthesis(reported))
    assert any(sentence in problem for problem in found), found


def entries(count: int, size: int) -> str:
    return "hypotheses:\n" + "".join(
        f'  - {{id: H{number}, text: "cause {number}", prediction: p, evidence: ["a.py:1 {"x" * size}"]}}\n'
        for number in range(1, count + 1)
    )


def test_directive_and_ledger_have_a_bound_each() -> None:
    assert len(form().parse(synthesis(entries(20, 1000))).hypotheses) == 20
    found = problems(form(), synthesis(entries(20, 1000) + f"gaps: [{', '.join(['x' * 3000] * 6)}]", base=NO_GAPS))
    assert any("bytes of YAML, at most 16,384 are read" in problem for problem in found), found
    found = problems(form(), synthesis(entries(34, 1000)))
    assert any(f"at most {MAX_LEDGER} are read: report only what is new" in problem for problem in found), found
    found = problems(form(), synthesis(entries(64, 1000)))
    assert any("at most 49,152 are read" in problem for problem in found), found
    repaired = form().repair(synthesis(entries(34, 1000)))
    assert repaired and "hypothesis H34 as it stood" in repaired[1]
    assert len(form().parse(repaired[0]).hypotheses) < 34


def test_both_kinds_of_problems_are_told_at_once() -> None:
    text = synthesis("hypotheses: [{id: H1, status: supported}]").replace("## Gaps", "## Nothing")
    found = problems(form(ledger(new())), text)
    assert len(found) == 2 and "`## Gaps` is missing" in found[0] and found[1].startswith("H1: ")


def test_a_synthesis_is_mended_without_settling_anything() -> None:
    known = ledger(new(), new("H2", "the cache is stale"))
    reported = (
        f'hypotheses: [{{id: H1, status: supported}}, {{id: H2, status: ruled-out, evidence: ["{SEEN}"]}}, {{id: 7}}]'
    )
    text = synthesis(reported).replace("## Gaps", "## Nothing")
    repaired = form(known).repair(text)
    assert repaired is not None
    assert repaired[1] == ("section Gaps", "hypothesis H1 as it stood", "hypotheses as they stood")
    after = known.after(2, form(known).parse(repaired[0]).hypotheses)
    assert [item.status for item in after.items] == ["open", "ruled-out"]


@pytest.mark.parametrize("text", ["", "no directive", "```yaml\n[\n```", "```yaml\nhypotheses: {a: b}\n```"])
def test_what_has_no_directive_is_not_mended(text: str) -> None:
    assert form().repair(text) is None


# -- the report ------------------------------------------------------------------------------------

KNOWN = ledger(
    new(), new("H2", "the cache is stale"), new("H10", "the disk\n# is full", status="supported", evidence=[SEEN])
).after(2, [wish(status="ruled-out", evidence=["src/pool.py:12 shows a limit of 90"])])
RCA = RcaFormat(FinalFormat(), KNOWN, (("t5-implementer", DIFF),))
UNSOLVED = RcaFormat(FinalFormat(outside=(("T1", "now or later"),)), Hypotheses())
TOLD = (
    "- H1 was ruled out: src/pool.py:12 shows a limit of 90 (cited)\n- H2: open, nobody looked\n"
    "- **H10** (supported)\n  It gave 504, as was reported, not checked; see src/proxy.py:88"
)


OTHER = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b"


def report(told: str = TOLD, fix: str = f"```diff\n{DIFF}```", decision: str = "The cause is H10.") -> str:
    rest = f"## Timeline\n\nRun it twice.\n\n## Hypotheses\n\n{told}\n\n## Fix\n\n{fix}\n\n## Validation\n\nNone."
    return f"{final_text(decision)}\n{rest}\n"


def test_a_whole_report_is_taken() -> None:
    assert RCA.parse(report()).sections[-4:] == RCA_SECTIONS
    blanks = DIFF.replace("import x\n", "import x  \n").rstrip("\n") + "\n"
    assert RCA.parse(report(fix=f"It must not be applied.\n\n```diff\n{blanks}```"))
    assert UNSOLVED.parse(
        report("None.", "No fix is proposed: x", f"{NO_CAUSE}.")
        .replace("## Action Items\n", "## Action Items\n\nAsk when it began [T1].\n")
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (final_text("H10"), "The section `## Timeline` is missing."),
        (final_text("H10"), "The section `## Validation` is missing."),
        (report(TOLD.replace("- H2", "- It")), "Hypotheses must give the fate of H2 (`open`)"),
        (report(TOLD.replace("ruled out", "unlikely")), "Hypotheses must give the fate of H1 (`ruled-out`)"),
        (report(TOLD.replace("(supported)", "(unsupported)")), "Hypotheses must give the fate of H10"),
        (report(TOLD.replace("src/proxy.py:88", "there")), "Hypotheses must give the fate of H10"),
        (report(TOLD.replace("reported, not checked", "seen")), "its evidence with the word `reported`: the disk"),
        (report(TOLD.replace("(cited)", "")), "its evidence with the word `cited`: the pool"),
        (report(TOLD.replace("- H1 was", "- H11 was")), "Hypotheses must give the fate of H1 "),
        (report(decision="It is the disk."), "Decision must name the supported cause by its id: H10."),
        (report(decision="It is H1."), "Decision must name the supported cause by its id: H10."),
        (
            report(fix="Raise the limit."),
            "Fix must hold a diff on record (t5-implementer) in a fenced ```diff block.",
        ),
        (report(fix="No fix is proposed: validation broke it."), "Fix must hold a diff on record (t5-implementer)"),
        (report(fix="```diff\n-a\n```"), "Fix: a diff in the report is not on record: repeat one that is (t5-impl"),
        (report(fix=f"```diff\n{DIFF.replace('25', '26')}```"), "Fix: a diff in the report is not on record"),
        (report(fix=f"```diff\n{DIFF}```", decision=f"H10:\n\n```patch\n{OTHER}\n```"), "is not on record"),
        (report(decision=""), "The section `## Decision` is empty."),
    ],
)
def test_a_report_is_sent_back_with_what_is_left_out(text: str, sentence: str) -> None:
    found = problems(RCA, text)
    assert any(sentence in problem for problem in found), found


def test_without_a_supported_cause_none_is_named() -> None:
    found = problems(UNSOLVED, report("None.", "No fix is proposed: x", "It is the disk."))
    assert f"No hypothesis is supported: Decision must say `{NO_CAUSE}`." in found


def test_without_a_fix_on_record_none_is_reported() -> None:
    found = problems(UNSOLVED, report("None.", f"```diff\n{DIFF}```", f"{NO_CAUSE}."))
    assert "Fix: a diff in the report is not on record: repeat one that is (there is none) word for word." in found
    found = problems(UNSOLVED, report("None.", "Raise it.", f"{NO_CAUSE}."))
    assert "Fix must say `No fix is proposed: …`, with the reason." in found


def test_the_last_fix_on_record_is_put_in_place_of_an_invented_one() -> None:
    two = RcaFormat(FinalFormat(), KNOWN, (("t5-implementer", DIFF), ("t5-minimalist", OTHER)))
    repaired = two.repair(report(fix=f"So:\n\n```diff\n{DIFF.replace('25', '26')}```"))
    assert repaired and repaired[1] == ("the fix on record",)
    assert f"{UNKNOWN_FIX}\n\n```text\n--- a/src/proxy.py" in repaired[0]
    assert f"On record, from t5-minimalist *(added by cdo)*:\n\n```diff\n{OTHER}\n```" in repaired[0]
    only = two.repair(report(decision=f"H10:\n\n```diff\n{DIFF}x\n```"))
    assert only and "On record" not in only[0] and only[0].count("```diff") == 1
    none = two.repair(report(fix="No fix is proposed: it failed."))
    assert none and f"```diff\n{OTHER}\n```" in none[0]


def test_a_diff_too_large_for_a_grammar_is_put_in_afterwards() -> None:
    for diff in (DIFF.replace("x", "é"), f"{DIFF.rstrip()}\n{'--- a/y' + chr(10) + '+++ b/y' + chr(10)}" + LONG):
        kind = RcaFormat(FinalFormat(), KNOWN, (("t5-x", diff),))
        tree = re._parser.parse(test_gbnf.as_regex(kind.grammar()))  # type: ignore[attr-defined]
        text = test_gbnf._walk(tree, random.Random(1))
        assert "The one on record is in t5-x.md." in text
        repaired = kind.repair(text)
        assert repaired and repaired[1] == ("the fix on record",) and diff.rstrip() in repaired[0]


LONG = f"@@ -1 +1 @@\n-{'a' * IN_GRAMMAR}\n+b"


@pytest.mark.parametrize("kind", [RCA, UNSOLVED])
@pytest.mark.parametrize(
    "text",
    [
        "## Decision\n\nIt is the disk.",
        final_text("It is the disk."),
        report("Nothing.", "```diff\n-a\n```", "It is the disk."),
        report("Nothing.", "~~~ patch\n-a\n~~~\n\nand words", "It is the disk."),
    ],
)
def test_what_is_left_out_is_added_from_the_record(kind: RcaFormat, text: str) -> None:
    repaired = kind.repair(text)
    assert repaired is not None
    kind.parse(repaired[0])
    ids = {f"hypothesis {item.id}" for item in kind.ledger.items}
    assert ids <= set(repaired[1]) and {"the root cause on record", "the fix on record"} <= set(repaired[1])
    assert "\n# is full" not in repaired[0]
    assert kind.repair(repaired[0]) == (repaired[0].strip(), ()) or kind.repair(repaired[0]) == (repaired[0], ())


def test_a_report_without_decision_is_not_mended() -> None:
    assert RCA.repair("## Timeline\n\nx") is None


# -- grammars --------------------------------------------------------------------------------------

HELD: list[ReplyFormat] = [
    CaseFormat(),
    CaseFormat(KNOWN, ("hypothesis", "test")),
    CaseFormat(Hypotheses(), ("test",)),
    CaseFormat(KNOWN, ("fix",)),
    form(KNOWN),
    RCA,
    UNSOLVED,
    RcaFormat(FinalFormat(), ledger(new("H1", "é" * 600, status="supported", evidence=["é" * 900 + " a.py:3"]))),
    RcaFormat(
        FinalFormat(),
        ledger(new("H1", 'a "quoted" \\ cause', status="ruled-out", evidence=['"the log line says so"'])),
    ),
]


@pytest.mark.wide
@pytest.mark.parametrize("held", HELD, ids=lambda held: held.name)
def test_whatever_a_grammar_lets_a_small_model_write_is_valid(held: ReplyFormat) -> None:
    tree = re._parser.parse(test_gbnf.as_regex(held.grammar()))  # type: ignore[attr-defined]
    for seed in range(25):
        held.parse(test_gbnf._walk(tree, random.Random(seed)))


@pytest.mark.wide
def test_a_small_model_settles_nothing() -> None:
    held = CaseFormat(KNOWN, ("hypothesis", "test"))
    tree = re._parser.parse(test_gbnf.as_regex(held.grammar()))  # type: ignore[attr-defined]
    for seed in range(25):
        data = held.parse(test_gbnf._walk(tree, random.Random(seed)))
        assert [item.status for item in KNOWN.after(3, data.hypotheses).items[:3]] == [
            "ruled-out",
            "open",
            "supported",
        ]


@pytest.mark.wide
@settings(max_examples=80, deadline=None)
@given(st.text(max_size=200), st.sampled_from(HELD))
def test_no_text_does_harm(text: str, held: ReplyFormat) -> None:
    for whole in (text, f"---\n{text}\n---\n", f"```yaml\n{text}\n```", f"## Decision\n\n{text}"):
        try:
            held.parse(whole)
        except InvalidReply as invalid:
            assert invalid.problems
        repaired = held.repair(whole)
        if repaired:
            held.parse(repaired[0])


def test_the_ledger_as_data_is_plain() -> None:
    assert strict_yaml.load(strict_yaml.dump({"items": KNOWN.data()})) == {"items": KNOWN.data()}


def test_the_evidence_of_a_voice_is_kept_where_the_synthesis_leaves_it_out() -> None:
    first = HypothesisWish(id="H1", text="The pool starves.", prediction="More workers cure it.")
    ledger = Hypotheses().after(1, [first])
    said = first.model_copy(
        update={"status": "supported", "evidence": ("observed: eight workers stay up for an hour",)}
    )
    after = ledger.after(2, [], [("tester", said)])
    (item,) = after.items
    assert item.status == "open" and item.evidence == said.evidence
    assert after.after(3, [], [("critic", said)]).items == after.items, "said twice, kept once"
