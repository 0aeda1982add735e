"""The modes as real processes: a root-cause analysis in seven phases, and a parliament that votes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.conftest import A, Desk
from tests.support.answers import Answer, RequestInfo, final_text, synthesis_text
from tests.support.harness import tree
from tests.support.provider import Provider

GATEWAY = (
    "The gateway crashes. With eight workers the gateway stays up for an hour; with one it fails within a minute. "
    "Memory stays flat at 80 MB."
)
DIFF = "--- a/gateway.py\n+++ b/gateway.py\n@@ -1,2 +1,2 @@\n-pool = Pool(1)\n+pool = Pool(8)\n serve(pool)\n"


def reply(body: str = "Because.", **keys: Any) -> Answer:
    head = {"position": "The pool is too small.", "confidence": 0.7, **keys}
    lines = [f"{key}: {json.dumps(value)}" for key, value in head.items()]
    return Answer("\n".join(["---", *lines, "---", "", body, ""]))


# -- debug -----------------------------------------------------------------------------------------


def case(info: RequestInfo) -> Answer | None:
    """A case that is solved: H1 is supported by what was observed, H2 ruled out."""
    turn = int(found[1]) if (found := re.match(r"t(\d)-", info.call)) else 0
    observed = ["observed: with eight workers the gateway stays up for an hour"]
    both = [
        {"id": "H1", "text": "The pool starves.", "prediction": "More workers cure it.", "status": "open"},
        {"id": "H2", "text": "Memory leaks.", "prediction": "It grows.", "status": "open"},
    ]
    if turn >= 4:
        both[0] |= {"status": "supported", "evidence": observed}  # type: ignore[dict-item]
        both[1] |= {"status": "ruled-out", "evidence": ["observed: memory stays flat at 80 MB"]}  # type: ignore[dict-item]
    if info.kind == "agent":
        keys = {"hypotheses": both} if turn >= 3 else {}
        return reply(f"The fix:\n\n```diff\n{DIFF}```\n" if turn == 5 else "Because.", **keys)
    if info.kind == "synthesis":
        text = synthesis_text(focus="go on", gaps=[f"gap {turn}"])
        wishes = f"hypotheses: {json.dumps(both)}\n" if turn >= 3 else ""
        return Answer(text.replace("gaps: ", f"{wishes}gaps: "))
    if info.kind == "final":
        report = final_text("The pool starves (H1); give it eight workers.", minority="None.")
        more = (
            "\n## Timeline\n\nReproduced in turn 1.\n\n## Hypotheses\n\n"
            "- H1 (supported): with eight workers it stays up, as was reported.\n"
            "- H2 (ruled out): memory stays flat at 80 MB, as was reported, not checked.\n\n"
            f"## Fix\n\n```diff\n{DIFF}```\n\n## Validation\n\nRun it for an hour.\n"
        )
        return Answer(report + more)
    return None


@pytest.mark.quick
def test_debug_goes_through_its_seven_phases_and_reports_the_cause(cdo: Desk, provider: Provider) -> None:
    provider.script = case
    done = cdo("debug", "--json", *A, GATEWAY).ok()
    assert (done.json["turns"], done.json["status"]) == (7, "converged")
    prompts = {info.call: info.prompt for info in provider.calls if info.attempt == 1}
    phases = ("reproduce", "isolate", "hypothesize", "verify", "fix", "validate", "document")
    for turn, phase in enumerate(phases, 1):
        voices = [text for call, text in prompts.items() if call.startswith(f"t{turn}-") and "synthesis" not in call]
        assert 1 <= len(voices) <= 3 and all(phase in text for text in voices)
        assert "hypotheses" in prompts[f"t{turn}-synthesis"]
    text = (cdo.session() / "FINAL.md").read_text()
    assert "H1" in text and "H2" in text and "+pool = Pool(8)" in text
    assert any(
        flag.startswith("H1 is supported by what the question or the context reports alone")
        for flag in done.json["flags"]
    )
    before, calls = tree(cdo.session()), len(provider.calls)
    cdo("resume", "a").ok()
    assert tree(cdo.session()) == before and len(provider.calls) == calls


def test_a_hypothesis_is_not_settled_by_opinion(cdo: Desk, provider: Provider) -> None:
    def opinion(info: RequestInfo) -> Answer | None:
        found = case(info)
        text = found.text.replace("observed: memory stays flat at 80 MB", "surely not") if found else ""
        return Answer(text) if found and info.kind != "final" else found

    provider.script = opinion
    done = cdo("debug", "--json", *A, GATEWAY)
    asked_again = [info.attempt for info in provider.calls if info.call.startswith("t4-") and info.kind == "agent"]
    assert max(asked_again) > 1, "a reply that rules something out by opinion is sent back"
    assert done.code != 0 or done.json["status"] != "converged"


def test_a_cause_that_rests_on_words_that_are_not_there_is_none(cdo: Desk, provider: Provider) -> None:
    cdo.write("gateway.py", "pool = Pool(8)\nserve(pool)\n")
    proof = "gateway.py:1 (“pool = Pool(1)”)"

    def invented(info: RequestInfo) -> Answer | None:
        found = case(info)
        text = found.text if found else ""
        for seen in ("with eight workers the gateway stays up for an hour", "memory stays flat at 80 MB"):
            text = text.replace(f"observed: {seen}", proof)
        return Answer(text) if found and info.kind != "final" else None

    provider.script = invented
    done = cdo("debug", "--json", "-c", "gateway.py", *A, GATEWAY)
    assert done.json["status"] == "max_turns", done.json
    flags = [flag for flag in done.json["flags"] if "stays open" in flag]
    assert "turn 4: H1 stays open: what was to make it supported cites what does not hold" in flags
    text = (cdo.session() / "FINAL.md").read_text()
    assert "Root cause not established" in text and "+pool = Pool(8)" in text


LEAKED = {
    "id": "H1",
    "text": "one possible cause, in one sentence",
    "prediction": "what one would see if it is true, and not otherwise",
    "status": "supported",
    "evidence": ["observed: 504 after exactly 30 s in 5 of 5 runs", "gateway/proxy.py:88 sets no timeout"],
}


def copying(info: RequestInfo, example: str) -> Answer | None:
    """A reply that is what `example` (YAML) says of hypotheses."""
    if info.kind == "agent":
        return Answer(f'---\nposition: "It is slow."\nconfidence: 0.9\n{example}\nno_fix: none\n---\n\nBecause.\n')
    if info.kind == "synthesis":
        return Answer(synthesis_text(gaps=["one"]).replace("\ngaps: ", f"\n{example}\ngaps: "))
    return None


def test_an_answer_that_everybody_makes_up_alike_establishes_no_cause(cdo: Desk, provider: Provider) -> None:
    """Neither the observation stands anywhere, nor the place: with a repository and without one."""
    provider.script = lambda info: copying(info, f"hypotheses: {json.dumps([LEAKED])}")
    done = cdo("debug", "--json", *A, "Payments are slow").ok()
    assert done.json["status"] == "max_turns" and "the root cause is not established; open: H1" in done.json["why"]
    text = (cdo.session() / "FINAL.md").read_text()
    assert "Root cause not established" in text.partition("## Confidence")[0]
    told = text.partition("## Hypotheses")[2]
    assert (
        "not found in the question, the context or a record: observed: 504 after exactly 30 s in 5 of 5 runs" in told
    )


def test_the_example_of_the_prompt_establishes_no_cause(cdo: Desk, provider: Provider) -> None:
    """Everybody sends it back as it stands, is told so, and then only takes the brackets off."""
    again = {"id": "H1", "status": "supported", "evidence": ['observed: "words that you were given"']}

    def script(info: RequestInfo) -> Answer | None:
        examples = re.findall(r"```yaml\n(hypotheses:.*?)\n```", info.prompt, re.DOTALL)
        if info.attempt == 1 or not examples:
            return copying(info, examples[0]) if examples else None
        assert info.attempt > 2 or "is a placeholder of the example: write your own text" in info.prompt
        bare = re.sub(r"[<>]", "", examples[0]).replace("open|supported|ruled-out", "supported")
        return copying(info, bare if info.attempt == 2 else f"hypotheses: {json.dumps([again])}")

    provider.script = script
    done = cdo("debug", "--json", *A, "Payments are slow").ok()
    assert {info.call for info in provider.calls if info.attempt > 1} >= {"t1-tester", "t4-critic", "t4-synthesis"}
    assert done.json["status"] == "max_turns"
    text = (cdo.session() / "FINAL.md").read_text()
    assert "Root cause not established" in text.partition("## Confidence")[0]
    assert "**H1** (open): one possible cause, in one sentence." in text


def test_a_domains_team_takes_part_in_each_phase(cdo: Desk, provider: Provider) -> None:
    provider.script = case
    cdo("exec", "dev", "debug", *A, GATEWAY).ok()
    sat = {info.call for info in provider.calls}
    assert {"t1-dev-lead", "t1-tester", "t2-implementer", "t3-reviewer", "t7-dev-lead"} <= sat


# -- parliament ------------------------------------------------------------------------------------

HOUSE = ("-m", "openai/gpt-4.1", "-m", "anthropic/claude-sonnet-4-5")


def house(info: RequestInfo) -> Answer | None:
    """One motion, seconded and carried against the critic."""
    if info.kind == "agent":
        me, turn = info.call.partition("-")[2], info.call[1]
        if turn == "1":
            motions = [{"text": "Split it in May."}] if me == "pragmatist" else []
            return reply(stance=f"{me} stands for its cause", motions=motions)
        if turn == "2":
            return reply(seconds=[] if me == "pragmatist" else ["M1"])
        vote = {"item": "M1", "vote": "no" if me == "critic" else "yes", "reason": f"{me} has looked at the cost"}
        return reply(ballot=[vote])
    if info.kind == "final":
        return Answer(final_text("M1 carried: split it in May.", minority="critic: has looked at the cost (M1)."))
    return None


@pytest.fixture
def sitting(cdo: Desk, provider: Provider) -> Desk:
    provider.script = house
    return cdo.having(ANTHROPIC_API_KEY="x-test-key-654321", ANTHROPIC_API_BASE=provider.url)


def test_a_parliament_votes_and_the_tally_is_the_codes_own(sitting: Desk, provider: Provider) -> None:
    done = sitting("parliament,full", "--json", "--width", "5", *HOUSE, *A, "Who is right?").ok()
    text = (sitting.session() / "FINAL.md").read_text()
    assert done.json["turns"] == 3
    assert re.search(r"votes:[^\n]*\n?.*M1.*4 yes.*1 no", (sitting.session() / "FINAL.yaml").read_text())
    assert "1 of 2 vendors" in text and "critic" in text and "has looked at the cost" in text
    record = text.partition("## Record of votes")[2]
    assert "4 yes / 1 no; 1 of 2 vendors: Split it in May." in record and "critic: no, critic has looked" in record
    models = {info.call: info.body["model"] for info in provider.calls if info.kind == "agent"}
    assert len(set(models.values())) == 2
    for seat in {call.partition("-")[2] for call in models}:
        assert len({model for call, model in models.items() if call.partition("-")[2] == seat}) == 1, (
            "a seat keeps it"
        )
    names = "claude|gpt|anthropic|openai"
    assert not any(re.search(names, info.prompt) for info in provider.calls if info.kind == "synthesis")


def test_a_house_of_one_family_says_so(cdo: Desk, provider: Provider) -> None:
    provider.script = house
    done = cdo("parliament,full", "--json", "--width", "5", *A, "Who is right?").ok()
    assert any("one vendor" in flag for flag in done.json["flags"])
    assert "1 vendor" in (cdo.session() / "FINAL.md").read_text()


@pytest.mark.quick
def test_a_domains_team_sits_in_a_parliament(cdo: Desk, provider: Provider) -> None:
    provider.script = house
    cdo("exec", "arch", "parliament", "--width", "5", *A, "Who is right?")
    sat = [info.call for info in provider.calls if info.call.startswith("t1-") and info.kind == "agent"]
    assert {"t1-architect", "t1-critic", "t1-systems-thinker", "t1-pragmatist"} <= set(sat)
    prompts = [info.prompt for info in provider.calls if info.call == "t1-architect"]
    assert "You are the seat architect and sit for what works today" in prompts[0]
