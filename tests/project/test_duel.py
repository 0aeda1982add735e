"""The duel (benchmarks/duel.py) and the provider whose replies are written by hand (benchmarks/by_hand.py)."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cdo.core.errors import UsageError
from cdo.core.steps import InvalidReply
from cdo.repository.citation_marks import cited_in_words
from tests.conftest import Desk
from tests.support.answers import RequestInfo, agent_text, final_text, synthesis_text
from tests.support.harness import ROOT, Done, finish, kill_group, spawned, wait_for
from tests.support.provider import Provider

sys.path.append(str(ROOT / "benchmarks"))

import duel_cases
import duel_texts

NOTE = "a very good answer names the second shift"
SINGLE = final_text("Keep the rota: one call says so.")
CRITERIA = duel_texts.CRITERIA


def case(root: Path, name: str, question: str = "Should we change the rota?") -> Path:
    """Write a case and return its folder."""
    folder = root / name
    (folder / "material" / "logs").mkdir(parents=True)
    (folder / "question.txt").write_text(f"{question}\n")
    (folder / "material" / "rota.md").write_text("# Rota\n\nSix people, two shifts, 14 pages a night.\n")
    (folder / "material" / "logs" / "pages.csv").write_text("night,pages\n1,14\n2,9\n")
    (folder / "case.yaml").write_text(
        f'kind: policy\nabout: "A rota that {name}"\ndate: "2026-05-04"\njudge_notes:\n  - "{NOTE}"\n'
    )
    return folder


def judged(preferred: str, strength: int = 2, /, **other: str) -> str:
    """A judge's reply that says the same by every criterion but those of `other`."""
    said = "\n".join(
        f'{item}:\n  preferred: {other.get(item, preferred)}\n  strength: {strength}\n  reason: "it says why"'
        for item in CRITERIA
    )
    return f"I checked the pages.\n\n```yaml\n{said}\n```\n"


def fair(info: RequestInfo, **other: str) -> str:
    """A judge who prefers the report of cdo, wherever it stands."""
    first = info.prompt.partition("<first>")[2].partition("</first>")[0]
    return judged("second" if "one call says so" in first else "first", **other)


def script(info: RequestInfo) -> str | None:
    """One call, the judge; cdo's own calls get the usual answers."""
    if info.kind == "judge":
        return fair(info)
    return SINGLE if info.kind == "single" else None


def start(desk: Desk, *args: str, script: str = "duel.py", **env: str) -> subprocess.Popen[str]:
    """Start a benchmark as a process."""
    return spawned([sys.executable, str(ROOT / "benchmarks" / script), *args], desk.path, desk.environment(env))


def words(*more: str, command: str = "run") -> tuple[str, ...]:
    """The words of a duel over the cases in `cases`, kept in `out`."""
    return (command, "--cases", "cases", "--model", "openai/bench", "--out", "out", *more)


def duel(desk: Desk, *args: str) -> Done:
    """Run `duel.py` to its end."""
    return finish(start(desk, *args), timeout=90)


def asked(provider: Provider) -> Counter[str]:
    """How often each call was asked, by session and name."""
    return Counter(f"{info.headers['X-Cdo-Session']}/{info.call}" for info in provider.calls)


def results(desk: Desk) -> Any:
    """What `results.json` holds."""
    return json.loads((desk.path / "out" / "results.json").read_text())


# -- the whole of it ---------------------------------------------------------------------------------


@pytest.mark.wide
def test_a_duel_compares_both_answers_blind_in_both_orders(cdo: Desk, provider: Provider) -> None:
    for name in ("crowded", "quiet"):
        case(cdo.path / "cases", name)
    provider.script = script
    done = duel(cdo, *words()).ok()
    assert "**cdo was preferred in 2 of 2 cases**, the single call in 0; 0 ended in a tie" in done.out
    found = results(cdo)
    assert (found["model"], found["judge"], found["preset"]) == ("openai/bench", "openai/bench", "think")
    assert found["summary"]["bar_met"] is True
    assert found["summary"]["orders_agree"] == dict.fromkeys(CRITERIA, 2)
    for held in found["cases"]:
        assert held["scores"] == dict.fromkeys(CRITERIA, 2.0)
        assert set(held["orders"]) == {"single call first", "cdo first"}
        assert (held["single"]["calls"], held["cdo"]["calls"], held["judge"]["calls"]) == (1, 13, 2)
        assert held["cdo"]["status"] == "max_turns"
        assert held["cdo"]["turns"] == 3
        assert held["cdo"]["material_whole"] is True
        assert held["cdo"]["prompts_shortened"] is False
        assert held["cdo"]["cost"] is None, "an unknown price is not zero"
        assert held["cut"] == ["Record", "Worth of the run"]
    judges = [info.prompt for info in provider.calls if info.kind == "judge"]
    firsts = [prompt.partition("<first>")[2].partition("</first>")[0] for prompt in judges]
    assert sorted("one call says so" in first for first in firsts) == [False, False, True, True]
    for prompt in judges:
        assert "Worth of the run" not in prompt and "## Record" not in prompt
        assert "uncalibrated" not in prompt
        assert "sha256" not in prompt
    for info in provider.calls:
        assert NOTE not in info.prompt
        assert "A rota that" not in info.prompt, "what a case is about gives its answer away"
        if info.kind in ("single", "judge", "agent"):
            assert "3| Six people, two shifts, 14 pages a night." in info.prompt
            assert "material/logs/pages.csv" in info.prompt


@pytest.mark.wide
def test_what_is_on_disk_is_not_asked_again(cdo: Desk, provider: Provider) -> None:
    case(cdo.path / "cases", "crowded")
    provider.script = script
    first = duel(cdo, *words()).ok()
    before = {path: path.read_bytes() for path in (cdo.path / "out").glob("*.*")}
    provider.reset()
    assert duel(cdo, *words()).ok().out == first.out
    assert duel(cdo, "report", "out").ok().out == first.out
    assert not provider.calls
    assert before == {path: path.read_bytes() for path in (cdo.path / "out").glob("*.*")}
    duel(cdo, *words("--preset", "quick")).failed(2, "holds a duel of another preset")
    (cdo.path / "cases" / "crowded" / "question.txt").write_text("Something else?\n")
    duel(cdo, *words()).failed(1, "was made from other material")
    assert not provider.calls


@pytest.mark.wide
def test_a_judge_who_prefers_a_place_is_found_out(cdo: Desk, provider: Provider) -> None:
    case(cdo.path / "cases", "crowded")

    def placed(info: RequestInfo) -> str | None:
        return judged("first", 4) if info.kind == "judge" else script(info)

    provider.script = placed
    done = duel(cdo, *words("--preset", "quick")).ok()
    (held,) = results(cdo)["cases"]
    assert held["preferred"] == "tie"
    assert held["agree"] == dict.fromkeys(CRITERIA, False)
    assert held["scores"]["overall"] == 0
    assert "Both orders agree overall in 0 of 1 cases" in done.out
    assert "The bar (preferred in three of four cases, never below in correctness) is not met on" in done.out


@pytest.mark.wide
def test_one_criterion_in_which_cdo_is_worse_fails_the_bar(cdo: Desk, provider: Provider) -> None:
    case(cdo.path / "cases", "crowded")

    def wrong(info: RequestInfo) -> str | None:
        if info.kind != "judge":
            return script(info)
        good = fair(info)
        return fair(info, correctness="first" if "overall:\n  preferred: second" in good else "second")

    provider.script = wrong
    done = duel(cdo, *words("--preset", "quick")).ok()
    assert "Below the single call in correctness: crowded." in done.out
    assert "**cdo was preferred in 1 of 1 cases**" in done.out
    assert results(cdo)["summary"]["bar_met"] is False


# -- stopping and going on ---------------------------------------------------------------------------


@pytest.mark.wide
@pytest.mark.parametrize("held", ["t2-synthesis", "judge-2"])
def test_a_duel_that_was_killed_goes_on(cdo: Desk, provider: Provider, held: str) -> None:
    """Where cdo was at work, its process is waited for; where the judge was, it is asked again."""
    case(cdo.path / "cases", "crowded")
    provider.script = script
    provider.hold(held)
    process = start(cdo, *words())
    wait_for(lambda: provider.named(held))
    wait_for(lambda: (cdo.path / "out" / "crowded" / "single.md").exists() or held == "t2-synthesis")
    wait_for(lambda: "I checked" in (text(cdo, "judge-1.json") + text(cdo, "judge-2.json")) or held == "t2-synthesis")
    wait_for(lambda: "one call says so" in text(cdo, "single.json"))
    kill_group(process.pid)
    process.communicate()
    again = start(cdo, *words())
    if held == "t2-synthesis":
        assert process.returncode == -9
        assert "waiting for it" in read_until(again, "waiting for it")
    provider.release()
    out, err = again.communicate(timeout=60)
    assert again.returncode == 0, err
    assert "**cdo was preferred in 1 of 1 cases**" in out
    twice = {call for call, count in asked(provider).items() if count > 1}
    assert twice == ({"crowded/judge-2"} if held == "judge-2" else set())


def text(desk: Desk, name: str) -> str:
    """A file of the case `crowded`; "" where there is none."""
    path = desk.path / "out" / "crowded" / name
    return path.read_text() if path.exists() else ""


def read_until(process: subprocess.Popen[str], said: str) -> str:
    """What a process says on stderr, up to the line that holds `said`."""
    assert process.stderr is not None
    told = ""
    while said not in told:
        line = process.stderr.readline()
        assert line, told
        told += line
    return told


@pytest.mark.wide
def test_a_duel_that_is_told_to_stop_stops_cdo_too(cdo: Desk, provider: Provider) -> None:
    case(cdo.path / "cases", "crowded")
    provider.script = script
    provider.hold("t1-*")
    process = start(cdo, *words())
    wait_for(lambda: len(provider.named("t1-critic")) == 1 and "one call says so" in text(cdo, "single.json"))
    process.terminate()
    finish(process, timeout=30).failed(130, "the same command goes on from here")
    (run,) = json.loads(text(cdo, "cdo/ended.json"))["runs"]
    assert (run["words"][0], run["code"]) == ("think", 130)
    provider.release()
    duel(cdo, *words()).ok()
    runs = json.loads(text(cdo, "cdo/ended.json"))["runs"]
    assert [run["code"] for run in runs] == [130, 0]
    assert runs[1]["words"][:2] == ["resume", "crowded"]
    assert asked(provider)["crowded/single"] == 1


@pytest.mark.wide
def test_an_invalid_judgement_is_sent_back_once(cdo: Desk, provider: Provider) -> None:
    case(cdo.path / "cases", "crowded")
    replies = {"judge-1": ["I like both.", judged("first", 3)], "judge-2": ["No.", "No.", judged("second", 1)]}

    def hesitant(info: RequestInfo) -> str | None:
        return replies[info.call].pop(0) if info.kind == "judge" else script(info)

    provider.script = hesitant
    duel(cdo, *words("--preset", "quick")).failed(1, "crowded, judge-2: the reply was invalid twice", "exactly one")
    (held,) = results(cdo)["cases"]
    assert held["complete"] is False
    sent_back = provider.named("judge-1")[1]
    assert "exactly one fenced block" in sent_back.body["messages"][-1]["content"]
    assert sent_back.body["messages"][1] == {"role": "assistant", "content": "I like both."}
    before = asked(provider)
    duel(cdo, *words("--preset", "quick")).ok()
    assert asked(provider) - before == Counter({"crowded/judge-2": 1})
    assert len(provider.named("judge-2")[2].body["messages"]) == 1, "the next run asks from the start"
    (held,) = results(cdo)["cases"]
    assert (held["complete"], held["judge"]["calls"]) == (True, 5)


@pytest.mark.wide
def test_a_case_that_fails_leaves_the_others(cdo: Desk, provider: Provider) -> None:
    for name in ("crowded", "quiet"):
        case(cdo.path / "cases", name)

    def refused(info: RequestInfo) -> str | None:
        return "No report." if (info.kind, info.headers["X-Cdo-Session"]) == ("single", "quiet") else script(info)

    provider.script = refused
    done = duel(cdo, *words("--preset", "quick"))
    done.failed(1, "quiet, single: the reply was invalid twice", "The section `## Decision` is missing")
    assert (
        "**cdo was preferred in 1 of 2 cases**, the single call in 0; 0 ended in a tie, 1 not judged yet" in done.out
    )
    assert asked(provider)["quiet/final"] == 1, "cdo's part of the case is kept for the next run"


@pytest.mark.wide
def test_a_duel_does_not_stand_in_a_repository(cdo: Desk, provider: Provider) -> None:
    case(cdo.path / "cases", "crowded")
    subprocess.run(["git", "init", "-q", str(cdo.path)], check=True)
    duel(cdo, *words()).failed(2, "lies in the git repository", "--out")
    assert not provider.calls


# -- cases -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("question.txt", None, "question.txt: this file is missing"),
        ("question.txt", b" \n", "question.txt: it is empty"),
        ("case.yaml", None, "case.yaml: this file is missing"),
        ("case.yaml", b"kind: policy\nabout: x\n", "judge_notes"),
        ("case.yaml", b'kind: policy\nabout: x\ndate: "2026-05-04"\njudge_notes: y\nprice: 1\n', "price"),
        ("case.yaml", b"kind: [\n", "case.yaml: line 2"),
        ("material/photo.png", b"\x89PNG\r\n\x1a\n\x00\x00", "photo.png"),
        ("material/.env", b"PASSWORD=1\n", ".env"),
    ],
)
def test_a_wrong_case_is_named(tmp_path: Path, name: str, content: bytes | None, why: str) -> None:
    folder = case(tmp_path, "crowded")
    duel_cases.load(tmp_path, "crowded")
    (folder / name).unlink(missing_ok=True)
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(UsageError) as error:
        duel_cases.load(tmp_path, "crowded")
    assert why in error.value.message


def test_the_cases_that_ship_can_be_read() -> None:
    found = [duel_cases.load(duel_cases.CASES, name) for name in duel_cases.names(duel_cases.CASES)]
    assert len(found) == 8
    assert len({case.told.kind for case in found}) == 8
    for case in found:
        assert 500 < case.tokens < 20_000, "one to thirty pages"
        assert all(note not in case.text + case.question for note in (*case.notes, case.told.about))


@pytest.mark.wide
def test_cases_are_listed_with_what_is_wrong_with_one(bare: Desk) -> None:
    case(bare.path / "cases", "crowded")
    (case(bare.path / "cases", "quiet") / "case.yaml").unlink()
    done = duel(bare, "cases", "--cases", "cases")
    assert done.code == 2
    one, other = done.out.splitlines()
    assert re.fullmatch(r"crowded  policy  2 files, \d+ tokens  A rota that crowded", one)
    assert other.startswith("quiet  WRONG  ")
    assert NOTE in duel(bare, "cases", "--cases", "cases", "--notes").out


# -- texts -------------------------------------------------------------------------------------------

FINAL = f"""---
confidence: 0.79
session: kafka
---

## Decision
**No.** The lock is the cause (worker.py:19 ✓), not `T ✗` (a.md:5 ✗ (no such file), a.md:7 ○ (found as d/a.md)), 25 ✓.

## Confidence

**0.79 (moderate; the last synthesis said 0.80, bounded by 2 open tensions, uncalibrated)**

High for the lock, low for the date.
{cited_in_words(84, 7, 1)}

- ✗ `Incidents.md:5`: no such file

## Tensions

On record: T1 accepted, T2 open.

- Speed against safety.

## Why not Kafka
It costs seven weeks.

## Minority Reports
- The other side says wait. *(added by cdo)*

# Action items

1. Ship the index.

```sql
## Worth of the run
```

## Tensions and objections on record
- T1: accepted.

## Worth of the run
One call would have done as well; one call would have given the same decision here.
"""


OPENED = "# Should we move?\n\n- **Decision:** No.\n- **Confidence:** 0.79 (uncalibrated)\n- **Cost:** $1.00\n\n"


def test_the_judge_does_not_see_how_final_md_opens() -> None:
    line = "**0.79, lowered from 0.80: 2 questions are still open**"
    opened = re.sub(r"(?m)^\*\*0\.79 .*$", line, OPENED + FINAL.partition("---\n\n")[2])
    assert duel_texts.of_final(opened) == duel_texts.of_final(FINAL)


def test_the_judge_gets_what_the_author_wrote_and_nothing_else() -> None:
    shown = duel_texts.of_final(FINAL)
    assert shown.cut == ("Tensions and objections on record", "Worth of the run")
    assert (
        shown.text
        == """## Decision
**No.** The lock is the cause (worker.py:19), not `T ✗` (a.md:5, a.md:7), 25 ✓.

## Confidence

0.79

High for the lock, low for the date.

## Key Tensions

- Speed against safety.

## Why not Kafka
It costs seven weeks.

## Minority Reports
- The other side says wait.

## Action Items

1. Ship the index.

```sql
## Worth of the run
```
"""
    )
    assert duel_texts.of_reply(f"```markdown\n{shown.text}```").text == shown.text
    assert "given the same decision" in duel_texts.says_enough(FINAL)
    assert not duel_texts.says_enough("What one voice, or a plain vote of the blind first turn, answers.")
    told = duel_texts.of_final("## Decision\nAll voices agree in turn 2; cdo's refuter, T6 and o1 (5) do not.\n")
    assert told.tells == {"voices": 1, "turn 2": 1, "cdo": 1, "refuter": 1, "t6": 1, "o1": 1}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("preferred: first", "preferred: cdo"), "preferred"),
        (("strength: 2", "strength: 6"), "strength"),
        (("strength: 2", "strength: 1.5"), "strength"),
        (("strength: 2", "strength: 0"), "strength must be 0 for `tie`"),
        (("preferred: first", "preferred: tie"), "strength must be 0 for `tie`"),
        (('reason: "it says why"', 'reason: "<why>"'), "placeholder"),
        (("overall:", "total:"), "overall"),
        (("```yaml", "```yaml\nx: 1\n```\n```yaml"), "there are 2"),
        (("```yaml", "```text"), "there are 0"),
    ],
)
def test_a_judgement_is_read_strictly(change: tuple[str, str], why: str) -> None:
    said = judged("first")
    assert duel_texts.judgement(said).scores("second") == dict.fromkeys(CRITERIA, -2)
    with pytest.raises(InvalidReply) as error:
        duel_texts.judgement(said.replace(change[0], change[1], 1))
    assert why in " ".join(error.value.problems)


def test_a_judgement_may_be_json() -> None:
    item = {"preferred": "tie", "strength": 0, "reason": "both say it"}
    said = f"```json\n{json.dumps(dict.fromkeys(CRITERIA, item), indent=1)}\n```"
    assert duel_texts.judgement(said).scores("first") == dict.fromkeys(CRITERIA, 0)


# -- by hand -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def by_hand(desk: Desk) -> Iterator[str]:
    """A provider that waits for files in `hand`; its address."""
    process = start(desk, "--folder", "hand", script="by_hand.py")
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        _, err = process.communicate(timeout=20)
        assert process.returncode == 0, err


def reply(path: Path, said: str) -> None:
    """Put a reply in its place at once."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(said)
    temporary.rename(path)


def writer(folder: Path, replies: Mapping[str, str], stop: threading.Event) -> None:
    """Answer each request that appears with the reply of its kind."""
    while not stop.wait(0.05):
        for path in folder.glob("*.prompt.md"):
            target = path.with_name(path.name.replace(".prompt.", ".reply."))
            if not target.exists():
                reply(target, replies[path.name.split(".")[1]])


@contextlib.contextmanager
def somebody(desk: Desk, **replies: str) -> Iterator[None]:
    """Somebody who answers by hand."""
    stop = threading.Event()
    thread = threading.Thread(target=writer, args=(desk.path / "hand", replies, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.wide
def test_cdo_runs_on_replies_that_are_written_by_hand(bare: Desk) -> None:
    replies = {
        "agent": agent_text("Keep the rota."),
        "synthesis": synthesis_text(confidence=0.9, exit_ready=True),
        "final": final_text("Keep the rota, says a hand."),
    }
    with by_hand(bare) as url, somebody(bare, **replies):
        desk = bare.having(OPENAI_BASE_URL=url, OPENAI_API_KEY="x")
        ask = ("quick", "--no-context", "-m", "openai/hand", "Should we change the rota?")
        first = desk(*ask, "--session", "a").ok()
        assert "Keep the rota, says a hand." in (desk.session() / "FINAL.md").read_text()
        hand = desk.path / "hand"
        names = sorted(path.name for path in hand.glob("*.prompt.md"))
        calls = [name.split(".") for name in names]
        assert [number for number, *_ in calls] == [f"{at:04}" for at in range(1, len(names) + 1)]
        assert [kind for _, kind, *_ in calls][-2:] == ["synthesis", "final"]
        assert {session for _, _, session, *_ in calls} == {"a"}
        prompt = (hand / names[0]).read_text()
        assert prompt.index("== SYSTEM (message 1 of 2) ==") < prompt.index("== USER (message 2 of 2) ==")
        assert "Should we change the rota?" in prompt
        listing = urllib.request.urlopen(url.removesuffix("/v1")).read().decode()
        assert listing.startswith(f"0 open, {len(names)} answered")
    with by_hand(bare) as url:  # another server, nobody at hand: all of it was answered before
        desk = bare.having(OPENAI_BASE_URL=url, OPENAI_API_KEY="x")
        again = desk(*ask, "--session", "b").ok()
        assert sorted(path.name for path in hand.glob("*.prompt.md")) == names
        assert again.out.splitlines()[0] == first.out.splitlines()[0].replace("cdo-a", "cdo-b")


def post(url: str, call: str, body: Mapping[str, Any]) -> Any:
    """Ask the provider for a reply in one piece."""
    headers = {
        "Content-Type": "application/json",
        "X-Cdo-Kind": "agent",
        "X-Cdo-Session": "s/1.x",
        "X-Cdo-Call": call,
    }
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), headers)
    return json.loads(urllib.request.urlopen(request, timeout=60).read())


@pytest.mark.wide
def test_a_reply_is_taken_when_it_is_whole(bare: Desk) -> None:
    hand, body = bare.path / "hand", {"model": "hand", "messages": [{"role": "user", "content": "Is it? ü"}]}
    got: list[Any] = []
    with by_hand(bare) as url:
        waiting = [threading.Thread(target=lambda: got.append(post(url, "t1-critic", body))) for _ in range(2)]
        for thread in waiting:
            thread.start()
        prompt = hand / "0001.agent.s-1-x.t1-critic.prompt.md"
        wait_for(prompt.exists)
        listed = finish(start(bare, "--folder", "hand", "--list", script="by_hand.py")).ok().out
        assert listed.splitlines()[0] == "1 open, 0 answered in hand"
        assert listed.splitlines()[1].startswith(f"{prompt.name}  agent  ")
        target = hand / "0001.agent.s-1-x.t1-critic.reply.md"
        target.write_text("The beginning")
        time.sleep(2)  # longer than a reply must rest that ends with a line break
        assert not got, "a reply without its last line break is taken for unfinished"
        with target.open("a") as file:
            file.write(" and the end.\n")
        for thread in waiting:
            thread.join(20)
        assert [item["choices"][0]["message"]["content"] for item in got] == ["The beginning and the end."] * 2
        assert got[0]["usage"] == {"prompt_tokens": 3, "completion_tokens": 7, "total_tokens": 10}
        assert len(list(hand.glob("*.prompt.md"))) == 1, "the same call with the same messages is one file"


@pytest.mark.wide
def test_a_duel_by_hand_has_all_its_requests_open_at_once(bare: Desk) -> None:
    names = [f"rota-{at}" for at in range(8)]
    for name in names:
        case(bare.path / "cases", name, f"Should we change {name}?")
    replies = {
        "single": SINGLE,
        "agent": agent_text("Keep the rota."),
        "synthesis": synthesis_text(confidence=0.9, exit_ready=True),
        "final": final_text("Keep the rota, says a hand."),
        "judge": judged("first", 1),
    }
    with by_hand(bare) as url:
        desk = bare.having(OPENAI_BASE_URL=url, OPENAI_API_KEY="x")
        args = ("run", "--cases", "cases", "--model", "openai/hand", "--out", "out", "--preset", "quick")
        process = start(desk, *args)
        hand = desk.path / "hand"
        wait_for(lambda: len({path.name.split(".")[2] for path in hand.glob("*.t1-*.prompt.md")}) == 8)
        wait_for(lambda: len(list(hand.glob("*.single.*.prompt.md"))) == 8)
        with somebody(bare, **replies):
            done = finish(process, timeout=110).ok()
    assert "8 ended in a tie, 0 not judged yet" in done.out
