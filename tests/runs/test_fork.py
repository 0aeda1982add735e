"""`cdo fork`, as real processes: the past is shared and never asked again, changes hold from the next turn on."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cdo.app.fork import base, changed, role, shared
from cdo.core.errors import SessionError, UsageError
from cdo.core.formatting import money
from cdo.planning.plan import Change
from cdo.session.artifact import from_file
from cdo.session.reader import InMemorySession, SessionFolder
from cdo.session.records import group_file, group_records, read_session
from tests.conftest import A, Desk, explained
from tests.runs.test_modes_run import GATEWAY, HOUSE, case, house
from tests.runs.test_modes_run import reply as speech
from tests.runs.test_seats_run import AGENT
from tests.support.answers import Answer, RequestInfo, synthesis_text
from tests.support.harness import QUESTION, Done, exchanges, sampled, sensitive, tree, wait_for
from tests.support.provider import Provider
from tests.support.records import EXCHANGE
from tests.support.repositories import git, repository
from tests.unit.programs.test_deliberation import plan

T1 = ["t1-critic", "t1-first-principles", "t1-pragmatist", "t1-synthesis"]
T2 = ["t2-architect", "t2-critic", "t2-pragmatist", "t2-synthesis"]
T3 = ["t3-architect", "t3-critic", "t3-pragmatist", "t3-synthesis"]
WHOLE = [*T1, *T2, *T3]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The session of an undisturbed run of three turns; only to be copied."""
    with Provider(script=sensitive) as running:
        base = tmp_path_factory.mktemp("whole")
        (base / "work").mkdir()
        desk = Desk(base / "work", running.url)
        desk("think", *A, QUESTION).ok()
        yield desk.session()


@pytest.fixture
def ran(whole: Path, cdo: Desk, provider: Provider) -> Desk:
    """A desk with a finished run of three turns, and a provider that nobody asked anything."""
    shutil.copytree(whole, cdo.session())
    provider.script = sensitive
    return cdo


def asked(provider: Provider) -> list[str]:
    """The calls that the provider got, by name; none of them twice."""
    names = [info.call for info in provider.calls]
    assert len(names) == len(set(names)), names
    return sorted(names)


def prompts(provider: Provider) -> dict[str, str]:
    return {info.call: info.prompt for info in provider.calls}


def data(path: Path) -> dict[str, bytes]:
    """Every file of a session, byte for byte."""
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def past(session: Path, turn: int) -> dict[str, bytes]:
    """The artifacts of the turns up to one."""
    files = {path.name: path.read_bytes() for path in session.glob("t*.md")}
    return {name: text for name, text in files.items() if int(name[1 : name.index("-")]) <= turn}


# -- the past --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("turn", "rest"), [(0, WHOLE), (1, [*T2, *T3]), (2, T3)], ids=["nothing", "one", "two"])
def test_a_fork_asks_only_for_the_turns_after_the_shared_ones(
    ran: Desk, provider: Provider, turn: int, rest: list[str]
) -> None:
    before = data(ran.session())
    done = ran("fork", "a", "--turn", str(turn), "--json").ok()
    assert asked(provider) == sorted([*rest, "final"])
    assert done.json["session"] == "a-2" and done.json["calls"] == len(rest) + 1
    assert past(ran.session("a-2"), turn) == past(ran.session(), turn)
    assert data(ran.session()) == before, "the source stays as it is"
    # Nothing was changed, and the provider answers by the prompt alone: the second try comes to the same.
    final = (ran.session("a-2") / "FINAL.md").read_text().partition("## Decision")[2]
    final = re.sub(r" \(of it \$[0-9.]+ taken over with the fork\)", "", final)
    assert turn == 0 or final == (ran.session() / "FINAL.md").read_text().partition("## Decision")[2]


def test_what_is_shared_is_told_and_paid_only_by_its_source(ran: Desk, provider: Provider) -> None:
    records = exchanges(ran.session())
    once = sum(record["cost"] for record in records if record["call"] in T1)
    done = ran("fork", "a", "--turn", "1", "--json").ok()
    assert f"shares turn 1 with a ({money(once)}, 4 calls): not asked, not paid again" in done.err
    assert "turn 2: held with nothing changed" in done.err
    own = [record for record in exchanges(ran.session("a-2")) if "from" not in record]
    assert sorted(record["call"] for record in own) == sorted([*T2, *T3, "final"])
    assert done.json["cost"] == pytest.approx(sum(record["cost"] for record in own))
    head = yaml.safe_load((ran.session("a-2") / "FINAL.yaml").read_text())
    assert head["cost"] == pytest.approx(done.json["cost"])
    shown = ran("show", "a-2", "--json").ok().json
    assert shown["cost"] == pytest.approx(done.json["cost"]) and shown["calls"] == 9
    assert shown["forked"] == "from a after turn 1"
    assert {row["call"] for row in shown["ledger"] if row.get("from") == "a"} == set(T1)


def test_the_caps_of_a_fork_are_its_own(ran: Desk, provider: Provider) -> None:
    ran("fork", "a", "--turn", "2", "--max-calls", "4").failed(5, "The cap of 4 calls is reached")
    assert asked(provider) == T3
    ran("resume", "a-2", "--max-calls", "5").ok()
    assert asked(provider) == sorted([*T3, "final"])


def test_a_fork_is_called_after_its_source(ran: Desk) -> None:
    runs = [ran("fork", "a", "--no-run").ok() for _ in range(2)]
    assert [done.out.strip() for done in runs] == ["tmp/cdo-a-2", "tmp/cdo-a-3"]
    ran("fork", "a", "--no-run", "--session", "other").ok()
    before = data(ran.session("other"))
    explained(ran("fork", "a", "--no-run", "--session", "other"), 8, "already")
    assert data(ran.session("other")) == before
    explained(ran("fork", "a", "--no-run", "--session", "../other"), 2, "cannot be the name")


def test_without_running_nothing_is_sent_and_a_resume_goes_on(ran: Desk, provider: Provider) -> None:
    done = ran(
        "fork", "a", "--turn", "2", "--no-run", "--json", env={"OPENAI_API_KEY": "", "OPENAI_BASE_URL": ""}
    ).ok()
    assert done.json["shared"]["calls"] == 8 and (done.json["source"], done.json["turn"]) == ("a", 2)
    assert provider.calls == [] and not (ran.session("a-2") / "FINAL.md").exists()
    ran("resume", "a-2").ok()
    assert asked(provider) == sorted([*T3, "final"])
    before = tree(ran.session("a-2"))
    ran("resume", "a-2").ok()
    assert tree(ran.session("a-2")) == before and len(provider.calls) == 5


def test_a_fork_lives_without_its_source(ran: Desk, provider: Provider) -> None:
    ran("fork", "a", "--turn", "1", "--no-run").ok()
    shutil.rmtree(ran.session())
    ran("resume", "a-2").ok()
    assert asked(provider) == sorted([*T2, *T3, "final"])


def test_the_edits_of_a_person_are_part_of_the_past(ran: Desk, provider: Provider) -> None:
    file = ran.session() / "t2-synthesis.md"
    file.write_text(file.read_text().replace("what ", "whether Peru ", 1))
    edited = file.read_text()
    done = ran("fork", "a", "--turn", "2").ok()
    assert asked(provider) == sorted([*T3, "final"])
    assert (ran.session("a-2") / "t2-synthesis.md").read_text() == edited
    assert "edited" in next(line for line in done.err.splitlines() if line.startswith("  t2-synthesis"))
    assert from_file(edited, "t2-synthesis.md").edited


def test_an_unfinished_run_is_forked_after_its_last_complete_turn(cdo: Desk, provider: Provider) -> None:
    cdo("think", "--max-calls", "6", *A, QUESTION).failed(5)
    explained(
        cdo("fork", "a", "--turn", "2", "--no-run"), 2, "has not held turn 2", "The last complete one is turn 1"
    )
    explained(cdo("fork", "a", "--turn", "-1", "--no-run"), 2, "--turn", "-1")
    before = len(provider.calls)
    done = cdo("fork", "a", "--max-calls", "99").ok()
    assert "shares turn 1 with a" in done.err
    assert sorted(info.call for info in provider.calls[before:]) == sorted([*T2, *T3, "final"])


def test_a_run_in_progress_can_be_forked(cdo: Desk, provider: Provider) -> None:
    cdo("think", "--max-calls", "4", *A, QUESTION).failed(5)
    provider.hold()
    process = cdo.start("resume", "a", "--max-calls", "99")
    wait_for(lambda: len(provider.calls) > 4)
    done = cdo("fork", "a", "--no-run").ok()
    assert "shares turn 1 with a" in done.err
    assert process.poll() is None
    process.kill()
    process.communicate()


@pytest.mark.parametrize("wait", sampled((0.0, 0.002, 0.01, 0.03), (0.002, 0.03)))
def test_a_fork_that_is_killed_leaves_all_of_a_session_or_none(ran: Desk, provider: Provider, wait: float) -> None:
    import time

    process = ran.start("fork", "a", "--turn", "2", "--no-run")
    wait_for(lambda: process.poll() is not None or list((ran.path / "tmp").glob(".cdo-a-2.*")))
    time.sleep(wait)
    process.kill()
    process.communicate()
    if ran.session("a-2").exists():
        ran("resume", "a-2").ok()
        assert asked(provider) == sorted([*T3, "final"])
    done = ran("fork", "a", "--turn", "2", "--no-run").ok()
    assert done.out.strip() in ("tmp/cdo-a-2", "tmp/cdo-a-3")


def test_a_fork_of_a_fork_keeps_who_paid(ran: Desk, provider: Provider) -> None:
    ran("fork", "a", "--turn", "1", "--focus", "the way back").ok()
    before = len(provider.calls)
    ran("fork", "a-2", "--turn", "2", "--note", "mind Peru", "--session", "b").ok()
    assert sorted(info.call for info in provider.calls[before:]) == sorted([*T3, "final"])
    froms = {record["call"]: record.get("from") for record in exchanges(ran.session("b"))}
    assert {froms[name] for name in T1} == {"a"} and {froms[name] for name in T2} == {"a-2"}
    assert froms["final"] is None
    frozen = yaml.safe_load((ran.session("b") / "session.yaml").read_text())
    assert [change["turn"] for change in frozen["plan"]["changes"]] == [2, 3]
    assert (frozen["forked"]["session"], frozen["forked"]["turn"]) == ("a-2", 2)


# -- its options -----------------------------------------------------------------------------------


def test_the_limits_of_a_fork_are_frozen_with_their_source(ran: Desk) -> None:
    limits = ("--budget", "9", "--max-calls", "8", "--max-tokens", "70000", "--timeout", "600", "--concurrency", "2")
    ran("fork", "a", "--no-run", *limits, "--strict").ok()
    frozen = yaml.safe_load((ran.session("a-2") / "session.yaml").read_text())
    found = {key: frozen["settings"][key] for key, where in frozen["sources"].items() if where.startswith("--")}
    assert found == {
        "budget": 9.0, "max_calls": 8, "max_tokens": 70000, "timeout": 600.0, "concurrency": 2, "strict": True
    }  # fmt: skip
    assert ran("resume", "a-2").code == 3, "--strict: at its cap it has not converged"


def test_each_cap_stops_a_fork(ran: Desk, provider: Provider) -> None:
    caps = [("--budget", "0.0001"), ("--max-tokens", "100"), ("--timeout", "0.001")]
    for done in ran.several(*(("fork", "a", "--turn", "2", *cap, "--session", cap[0][2:]) for cap in caps)):
        assert done.code == 5, (done.out, done.err)
    provider.latency = 0.1
    ran("fork", "a", "--turn", "2", "--concurrency", "1", "--strict").failed(3)
    assert provider.peak["all"] == 1


def test_a_fork_lives_and_says_what_its_options_ask_for(ran: Desk, provider: Provider) -> None:
    done = ran("fork", "a", "--no-run", "--quiet").ok()
    assert (done.out, done.err) == ("tmp/cdo-a-2\n", "")
    shutil.copytree(ran.session(), ran.path / "away" / "cdo-a")
    assert ran("fork", "a", "--no-run", "-q", "--out", "away").ok().out == "away/cdo-a-2\n"
    assert ran("fork", "away/cdo-a", "--no-run", "-q").ok().out == "tmp/cdo-a-3\n"
    assert "Traceback" in ran("fork", "a", "--turn", "9", "--verbose").err


def test_what_an_edit_made_stale_is_asked_again_only_with_consent(ran: Desk, provider: Provider) -> None:
    file = ran.session() / "t1-critic.md"
    file.write_text(file.read_text().replace("Stage it", "Split it"))
    refused = explained(ran("fork", "a", "--turn", "2"), 2, "t1-critic.md changed since t1-synthesis.md was made")
    assert "`cdo resume a` takes the edit into account first; or fork after turn 0: --turn 0" in refused.err
    assert provider.calls == [] and not ran.session("a-2").exists()
    done = ran("fork", "a", "--turn", "1", "--yes").ok()
    assert "asked again is t1-synthesis, which an edit made stale" in done.err and "not paid" not in done.err
    assert asked(provider) == sorted(["t1-synthesis", *T2, *T3, "final"])
    assert (ran.session("a-2") / "superseded/1/t1-synthesis.md").exists() and file.exists()


def test_a_fork_ends_before_what_an_edit_made_stale_or_after_it_was_weighed(ran: Desk, provider: Provider) -> None:
    file = ran.session() / "t2-critic.md"
    file.write_text(file.read_text().replace("Stage it", "Split it"))
    explained(ran("fork", "a", "--turn", "3", "--no-run"), 2, "t2-critic.md changed", "fork after turn 1: --turn 1")
    assert "not asked, not paid again" in ran("fork", "a", "--turn", "1", "--no-run").ok().err
    ran("resume", "a", "--yes").ok()
    before = len(provider.calls)
    assert "not asked, not paid again" in ran("fork", "a", "--turn", "2").ok().err
    assert sorted(info.call for info in provider.calls[before:]) == sorted([*T3, "final"])


def test_the_caps_that_a_fork_takes_over_are_told(cdo: Desk, provider: Provider) -> None:
    cdo("think", "--max-calls", "6", "--budget", "9", *A, QUESTION).failed(5)
    assert "at most $9.00, 6 calls, as a was begun with" in cdo("fork", "a", "--no-run").ok().err
    told = cdo("fork", "a", "--no-run", "--max-calls", "7").ok().err
    assert "at most $9.00, as a was begun with" in told and "6 calls" not in told
    assert "at most" not in cdo("fork", "a", "--no-run", "--max-calls", "7", "--budget", "8").ok().err


def test_a_projects_command_agent_answers_in_a_fork_only_with_trust(ran: Desk, tmp_path: Path) -> None:
    program = tmp_path / "mine-agent"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    ran.write(".cdo/dispatch/agents/mine.yaml", AGENT)
    desk = ran.having(PATH=f"{tmp_path}:{os.environ['PATH']}")
    desk("fork", "a", "--no-run", "-m", "mine").failed(4, "which you do not trust as it is now", "--trust")
    assert not ran.session("a-2").exists()
    desk("fork", "a", "--no-run", "-m", "mine", "--trust").ok()
    frozen = yaml.safe_load((ran.session("a-2") / "session.yaml").read_text())
    assert frozen["plan"]["changes"][0]["models"] == ["mine"]


def test_a_fork_is_kept_in_git_unless_not_wanted(ran: Desk) -> None:
    repository(ran.path)
    ran("fork", "a", "--turn", "2").ok()
    ran("fork", "a", "--turn", "2", "--no-git").ok()
    ran("fork", "a", "--turn", "2", "--branch").ok()
    refs = git(ran.path, "for-each-ref", "--format=%(refname)", "refs/cdo", "refs/heads/cdo").split()
    assert refs == ["refs/cdo/a-2", "refs/heads/cdo/a-4"] and ran.session("a-3").exists()


# -- what is changed -------------------------------------------------------------------------------


@pytest.mark.quick
def test_focus_note_role_and_seats_hold_for_the_next_turn_alone(ran: Desk, provider: Provider) -> None:
    words = (
        "--focus",
        "What does Peru\npay?",
        "--note",
        "The budget was halved.",
        "--role",
        "lawyer=read the contracts",
    )
    done = ran("fork", "a", "--turn", "1", *words, "--without", "critic").ok()
    assert "with lawyer (“read the contracts”); without critic" in done.err
    found = prompts(provider)
    second = [name for name in found if name.startswith("t2-")]
    assert sorted(second) == ["t2-architect", "t2-lawyer", "t2-pragmatist", "t2-synthesis"]
    voices = [name for name in second if name != "t2-synthesis"]
    assert all("Focus of this turn: What does Peru pay?" in found[name] for name in voices)
    assert all("The budget was halved." in found[name] for name in second)
    assert "read the contracts" in found["t2-lawyer"] and "read the contracts" not in found["t2-architect"]
    third = [text for name, text in found.items() if name.startswith("t3-")]
    assert sorted(name for name in found if name.startswith("t3-")) == T3
    assert not any("Peru" in text or "halved" in text for text in third)


def test_a_role_takes_a_further_seat(ran: Desk, provider: Provider) -> None:
    ran("fork", "a", "--turn", "2", "--role", "economist", "--turns", "3").ok()
    assert asked(provider) == sorted([*T3, "t3-economist", "final"])


def test_other_models_are_asked_from_the_next_turn_on(ran: Desk, provider: Provider) -> None:
    done = ran("fork", "a", "--turn", "1", "-m", "openai/gpt-5", "-m", "openai/gpt-4.1-mini").ok()
    assert "asks openai/gpt-5, openai/gpt-4.1-mini from then on" in done.err
    models = {info.call: info.body["model"] for info in provider.calls}
    assert sorted(models) == sorted([*T2, *T3, "final"])
    assert set(models.values()) == {"gpt-5", "gpt-4.1-mini"} and models["t2-synthesis"] == "gpt-5"
    ran("resume", "a-2").ok()
    assert len(provider.calls) == 9


@pytest.mark.slow
def test_the_models_of_the_past_need_no_key(ran: Desk, provider: Provider) -> None:
    """Nobody asks them any more."""
    env = {"OPENAI_API_KEY": "", "OPENAI_BASE_URL": ""}
    env |= {"ANTHROPIC_API_KEY": "x-test-key-654321", "ANTHROPIC_API_BASE": provider.url}
    ran("fork", "a", "--turn", "2", env=env).failed(4)
    assert not ran.session("a-2").exists()
    words = ("-m", "anthropic/claude-sonnet-4-5")
    ran("fork", "a", "--turn", "2", *words, "--max-calls", "1", env=env).failed(5)
    ran("resume", "a-2", "--max-calls", "99", env=env).ok()
    assert asked(provider) == sorted([*T3, "final"])
    assert {info.body["model"] for info in provider.calls} == {"claude-sonnet-4-5"}


def test_a_resume_of_a_fork_can_ask_others_again(ran: Desk, provider: Provider) -> None:
    ran("fork", "a", "--turn", "2", "--no-run", "-m", "openai/gpt-5").ok()
    ran("resume", "a-2", "-m", "openai/gpt-4.1-mini").ok()
    assert {info.body["model"] for info in provider.calls} == {"gpt-4.1-mini"}


def test_a_run_that_converged_goes_on_where_it_is_forked(cdo: Desk, provider: Provider) -> None:
    settled = {"id": "T1", "title": "speed against safety", "status": "resolved"}
    ready = synthesis_text(confidence=0.9, exit_ready=True, tensions=[settled])
    provider.script = lambda info: Answer(ready) if info.call == "t2-synthesis" else None
    assert cdo("think", "--json", *A, QUESTION).ok().json["turns"] == 2
    before = len(provider.calls)
    done = cdo("fork", "a", "--focus", "Is it so?", "--json").ok()
    held = [info.call for info in provider.calls[before:]]
    assert not any(name.startswith(("t1-", "t2-")) for name in held) and "t3-synthesis" in held
    assert done.json["turns"] == 3, "it goes on until it converges again, or to its cap"


def test_a_run_at_its_cap_has_one_more_turn_or_as_many_as_asked(ran: Desk, provider: Provider) -> None:
    done = ran("fork", "a", "--json").ok()
    assert done.json["turns"] == 4 and {name[:2] for name in asked(provider)} == {"t4", "fi"}
    assert "at most 6 turns" in ran("fork", "a", "--turns", "6", "--json", "--session", "b").ok().err
    assert len(list(ran.session("b").glob("t6-*.md"))) == 4 and not list(ran.session("b").glob("t7-*.md"))
    explained(ran("fork", "a", "--turns", "3", "--no-run"), 2, "at least 4 turns")


@pytest.mark.slow
def test_a_conflict_is_not_asked_about_again_after_the_shared_turn(cdo: Desk, provider: Provider) -> None:
    provider.script = lambda info: (
        Answer(sensitive(info).text.replace("severity: 6", "severity: 9"))  # type: ignore[union-attr]
        if info.kind == "agent"
        else None
    )
    cdo("think", *A, QUESTION).ok()
    answers = [record["name"] for record in read_session(cdo.session()) if record["kind"] == "answer"]
    assert "t1-conflict" in answers
    cdo("fork", "a", "--turn", "1").ok()
    found = [record["name"] for record in read_session(cdo.session("a-2")) if record["kind"] == "answer"]
    assert "t1-conflict" not in found and "t2-conflict" in found


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--role", "Bad_Name"), "cannot be a role"),
        (("--role", "barrister"), "There is no role called"),
        (("--role", "criitc"), "Did you mean critic?"),
        (("--without", "nobody"), "There is no voice called"),
        (("--without", "a b"), "--without: `a b` cannot be a role"),
        (("--role", "critic", "--without", "critic"), "both seated and left out"),
        (("--focus", "x" * 2001), "--focus: must have at most 2000"),
        (("--turns", "0"), "--turns"),
        (("--turn", "x"), "is not a whole number"),
        (("-m", "nope/x"), "not a provider"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_made(
    ran: Desk, provider: Provider, words: tuple[str, ...], says: str
) -> None:
    done = ran("fork", "a", *words)
    assert done.code in (2, 4) and says in done.err, done.err
    assert len(done.complaint) == 2 and not ran.session("a-2").exists() and provider.calls == []


def test_a_missing_or_damaged_source_is_explained(ran: Desk) -> None:
    explained(ran("fork", "b"), 8, "There is no session tmp/cdo-b")
    group = next(iter(sorted((ran.session() / "calls").iterdir())))
    group.write_bytes(group.read_bytes()[:-9])
    explained(ran("fork", "a", "--no-run"), 8, "is damaged")
    (ran.session() / "session.yaml").write_text("plan: 1\n")
    explained(ran("fork", "a", "--no-run"), 8)
    assert not ran.session("a-2").exists()


# -- every way of going on ---------------------------------------------------------------------------


def replayed(desk: Desk, provider: Provider, turn: int, *words: str, code: int = 0) -> list[str]:
    """The calls that a fork of `a` after a turn asks for; none of the past may be among them."""
    before = len(provider.calls)
    done: Done = desk("fork", "a", "--turn", str(turn), *words)
    assert done.code == code, (done.out, done.err)
    calls = [info.call for info in provider.calls[before:]]
    assert not [name for name in calls if name != "final" and int(name[1 : name.index("-")]) <= turn]
    return calls


@pytest.mark.slow
def test_an_adaptive_run_of_many_vendors_repeats_nothing(cdo: Desk, provider: Provider) -> None:
    desk = cdo.having(ANTHROPIC_API_KEY="x-test-key-654321", ANTHROPIC_API_BASE=provider.url)
    desk("adaptive,lev-exec,think", "--turns", "3", *HOUSE, *A, QUESTION).ok()
    calls = replayed(desk, provider, 2, "-m", "openai/gpt-5", "--role", "lawyer=read the contracts")
    assert "t3-lawyer" in calls
    synthesis = prompts(provider)
    assert "t3-synthesis" in synthesis


@pytest.mark.slow
def test_a_team_with_its_person_repeats_nothing_and_is_asked_about_the_changed_plan(
    cdo: Desk, provider: Provider
) -> None:
    cdo("hitl,team,think", "--turns", "3", *A, QUESTION).failed(6)
    (cdo.session() / "t1-plan.yaml").write_text("note: mind the users\n")
    cdo("resume", "a").failed(6, "t2-plan.yaml")
    (cdo.session() / "team/inbox").mkdir(parents=True)
    (cdo.session() / "team/inbox/1.md").write_text("---\nto: critic\n---\nWhat does Chile pay?\n")
    cdo("resume", "a").failed(6, "t3-plan.yaml")
    words = ("--focus", "the cost", "--role", "economist", "--note", "mind Peru")
    assert replayed(cdo, provider, 1, *words, code=6) == []
    proposed = yaml.safe_load((cdo.session("a-2") / "t2-plan.yaml").read_text())
    assert (proposed["focus"], proposed["note"]) == ("the cost", "mind Peru")
    assert "economist" in [voice["role"] for voice in proposed["voices"]]
    assert not (cdo.session("a-2") / "team/messages").exists(), "letters of later turns are not taken"
    before = len(provider.calls)
    cdo("resume", "a-2").failed(6, "t3-plan.yaml")
    found = {info.call: info.prompt for info in provider.calls[before:]}
    assert "t2-economist" in found and all("mind Peru" in text for text in found.values())
    assert not any("Chile" in text for text in found.values())


@pytest.mark.slow
def test_debug_is_forked_within_its_phases(cdo: Desk, provider: Provider) -> None:
    provider.script = case
    cdo("debug", *A, GATEWAY).ok()
    explained(cdo("fork", "a"), 2, "7 phases of one turn each, and all were held")
    explained(cdo("fork", "a", "--turn", "4", "--turns", "9"), 2, "Leave --turns out")
    calls = replayed(cdo, provider, 4, "--role", "economist", "--focus", "the cost of the fix")
    assert "t5-economist" in calls and {name[:2] for name in calls} == {"t5", "t6", "t7", "fi"}


@pytest.mark.slow
def test_a_parliament_keeps_its_seats_and_sits_again(cdo: Desk, provider: Provider) -> None:
    provider.script = house
    cdo("parliament,full", "--width", "5", *A, "Who is right?").ok()
    explained(cdo("fork", "a", "--role", "economist"), 2, "Nobody joins or leaves a parliament")
    explained(cdo("fork", "a", "--without", "critic"), 2, "Nobody joins or leaves a parliament")
    explained(cdo("fork", "a", "-m", "openai/gpt-5"), 2, "keeps its model")
    again = replayed(cdo, provider, 2, "--note", "mind Peru")
    assert sorted(name for name in again if name[:2] == "t3") == sorted(
        path.stem for path in cdo.session().glob("t3-*.md")
    )
    assert "1 vendor: Split it in May." in (cdo.session("a-2") / "FINAL.md").read_text()
    provider.script = lambda info: house(info) if info.kind != "agent" or info.call < "t4" else speech()
    risen = replayed(cdo, provider, 3, "--focus", "the day after")
    assert {name[:2] for name in risen} == {"t4", "fi"}, "nothing new was moved, so that the house rises"
    assert "Focus of this turn: the day after" in prompts(provider)["t4-critic"]


@pytest.mark.slow
def test_tools_and_checked_citations_are_shared(cdo: Desk, provider: Provider) -> None:
    cdo.write("gateway.py", "pool = Pool(8)\n")

    def cites(info: RequestInfo) -> Answer | None:
        found = sensitive(info)
        return found and Answer(found.text.replace('"reasoning"', json.dumps('gateway.py:1 "pool = Pool(8)"')))

    provider.script = cites
    cdo("think", "-c", "gateway.py", *A, QUESTION).ok()
    cdo.write("gateway.py", "pool = None\n")
    assert len(replayed(cdo, provider, 2)) == 5
    kinds = [record["sha"] for record in read_session(cdo.session("a-2")) if record["kind"] == "checked"]
    assert len(kinds) == len(set(kinds)) >= 8


# -- what is taken along, by hand --------------------------------------------------------------------


def test_only_the_past_is_taken(whole: Path) -> None:
    found = shared(SessionFolder(whole), 2)
    assert set(found.files) == {
        "00-input.md", "00-context.md", "calls/0001.jsonl", *(f"{name}.md" for name in (*T1, *T2))
    }  # fmt: skip
    assert (found.spent.calls, found.turn, found.source) == (8, 2, "a")
    nothing = shared(SessionFolder(whole), 0)
    assert set(nothing.files) == {"00-input.md", "00-context.md"} and nothing.words.endswith("no turn")


def test_a_session_that_is_kept_elsewhere_is_forked_alike(whole: Path) -> None:
    folder = SessionFolder(whole)
    files = {name: folder.data(name) or b"" for name in folder.files()}
    kept = InMemorySession("a", "branch cdo/a", {**files, "../t1-evil.md": b"x", "skills/../t1-x.md": b"x"})
    assert shared(kept, 2).files == shared(folder, 2).files
    with pytest.raises(SessionError, match="there is no question"):
        shared(InMemorySession("a", "here", {"session.yaml": b""}), 0)


def test_a_conversation_that_an_agent_keeps_is_not_gone_on_with() -> None:
    exchange = {
        **EXCHANGE, "thread": "critic", "cost": 0.1,
        "response": {"text": "x", "finish": "stop", "thread": {"id": "7"}},
    }  # fmt: skip
    later = {**exchange, "call": "t2-critic"}
    name, body = group_file(1, [exchange, later, {"kind": "bd", "op": "epic", "call": "t1-critic"}])
    files = shared(InMemorySession("a", "here", {"00-input.md": b"Q", f"calls/{name}": body}), 1).files
    (record,) = InMemorySession("b", "here", files).records()
    assert record["response"] == {"text": "x", "finish": "stop"} and record["from"] == "a"


def test_the_last_complete_turn_has_no_gap_before_it() -> None:
    kept = InMemorySession("a", "here", dict.fromkeys(["t1-synthesis.md", "t3-synthesis.md", "t2-critic.md"], b""))
    assert base(kept, None) == 1 and base(kept, 0) == 0
    with pytest.raises(UsageError):
        base(kept, 3)
    assert base(InMemorySession("a", "here", {}), None) == 0


def test_changes_of_a_fork_are_kept_merged_or_left_out() -> None:
    first = Change(turn=2, focus="cost", note="mind Peru")
    what = plan(changes=(first, Change(turn=4, note="later", models=("x/1",))))
    assert what.asked == ("x/1",) and what.named == ("m/a", "x/1")
    after, notes = changed(what, Change(turn=3, focus="time"), "")
    assert after.changes == (first, Change(turn=3, focus="time"))
    assert notes == ["what its source changed with turn 4 is left out"] and after.asked == ("m/a",)
    again, _ = changed(what, Change(turn=2, focus="time"), "")
    assert again.changes == (Change(turn=2, focus="time", note="mind Peru"),)


def test_a_role_may_have_a_charge() -> None:
    assert role(" Critic ") == ("critic", "") and role("lawyer = read = all ") == ("lawyer", "read = all")


def test_a_session_of_somebody_else_lifts_none_of_your_caps(cdo: Desk, provider: Provider) -> None:
    """Its prices, its budget and what it says was paid are not the reader's; nor does it begin a branch unasked."""
    cdo("think", "--max-calls", "3", "--no-git", *A, QUESTION).failed(5)
    session = cdo.session()
    text = (session / "session.yaml").read_text()
    free = re.sub(r"(?m)^  prices: .*$", "  prices:\n    openai/gpt-6.1-sol: {input: 0, output: 0}", text, count=1)
    free = free.replace("max_calls: 3", "max_calls: null").replace("  budget: null", "  budget: 1000.0")
    assert free.count("input: 0") == 1 and "budget: 1000.0" in free and "max_calls: null" in free
    (session / "session.yaml").write_text(free)
    mine = {"CDO_CONFIG_DIR": str(cdo.path / "user")}
    cdo.write("user/config.yaml", "budget: 0.02\nno_git: true\n")
    before = len(provider.calls)
    for words in (("resume", "a"), ("fork", "a", "--turn", "0", "--session", "b")):
        done = cdo(*words, "--yes", env=mine).failed(5, "budget of $0.02")
        assert words[0] == "fork" or "budget is lowered by" in done.err
    assert len(provider.calls) - before <= 3
    cdo("resume", "a", "--yes", "--budget", "9", env=mine).ok()
    # A recorded cost below zero would make room under the budget.
    (group, *_) = sorted((session / "calls").glob("*.jsonl"))
    records = group_records(group.read_bytes(), group.name)
    found = next(record for record in records if record["kind"] == "exchange")
    found["cost"] = -5.0
    group.write_bytes(group_file(1, records)[1])
    (session / "FINAL.md").unlink()
    for command in ("resume", "fork", "show", "report", "replay"):
        explained(cdo(command, "a"), 8, f"calls/{group.name}, record ", "is damaged: `cost`")
    assert "Left out, as they are damaged: a." in cdo("cost").ok().err
