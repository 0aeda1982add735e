"""`from cdo import deliberate, Session`, from outside: real Python programs, real files, a provider that counts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runs.test_modes_run import GATEWAY, case
from tests.support.harness import Done, Place, finish, kill_group, spawned, wait_for
from tests.support.provider import Provider
from tests.support.traces import LoopbackCollector, attributes, whole

QUESTION = "Should we split the service?"


class Desktop:
    """A folder in which Python programs that import cdo are run."""

    def __init__(self, path: Path, url: str) -> None:
        self.place = Place(path, url)

    def python(self, code: str, *, code_expected: int = 0, library: Path | None = None) -> Done:
        """Run a program to its end; its last line of output is JSON."""
        done = finish(self.start(code, library))
        assert done.code == code_expected, (done.code, done.out, done.err)
        return done

    def start(self, code: str, library: Path | None = None) -> subprocess.Popen[str]:
        """Start a program that has imported what `cdo` exports."""
        env = self.place.environment({"OPENAI_MODEL": ""})
        if library:
            env["PYTHONPATH"] = f"{library}:{env['PYTHONPATH']}"
        program = "import asyncio, json\nfrom cdo import *\n" + textwrap.dedent(code)
        return spawned([sys.executable, "-W", "error", "-c", program], self.place.path, env)


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as started:
        yield started


@pytest.fixture
def desk(tmp_path: Path, provider: Provider) -> Desktop:
    return Desktop(tmp_path, provider.url)


OPTIONS = f'"{QUESTION}", preset="quick", models=["openai/bench"], look=False'


@pytest.mark.quick
def test_the_package_loads_nothing_before_a_name_is_used(desk: Desktop) -> None:
    code = "import cdo, sys; print([name for name in sys.modules if name.startswith('cdo.')])"
    assert finish(spawned([sys.executable, "-c", code], desk.place.path, desk.place.environment())).out == "[]\n"


@pytest.mark.quick
def test_a_program_gets_what_the_command_line_prints(desk: Desktop, provider: Provider) -> None:
    done = desk.python(f"""
        result = deliberate({OPTIONS}, session="a")
        found = Session.open("a")
        same = found.run()  # from the record: nothing is asked again
        texts = [found.question, found.status, found.final, sorted(found.files())]
        print(json.dumps([result.json(), same.json(), found.used.calls, texts]))
    """)
    result, same, calls, (question, status, final, files) = done.json
    assert not done.err and result == same and result["calls"] == calls == len(provider.calls)
    assert desk.place.resume("--json").ok().json == {**result, "path": "tmp/cdo-a"}
    assert (question, status) == (QUESTION, result["status"])
    assert final == (desk.place.session() / "FINAL.md").read_text() and result["decision"] in final
    assert {"FINAL.md", "t1-synthesis.md"} <= set(files)


def test_several_run_at_once_and_tell_what_happens(desk: Desktop, provider: Provider) -> None:
    provider.latency = 0.2
    done = desk.python(f"""
        from cdo.api import events
        async def follow(name):
            seen = []
            async for event in Session.begin({OPTIONS}, session=name).events():
                seen.append(event)
            (ended,) = [event for event in seen if isinstance(event, events.RunEnded)]
            assert ended.result.session == name
            return [type(event).__name__ for event in seen]
        async def main():
            return await asyncio.gather(*map(follow, "abc"), deliberate_async({OPTIONS}, session="d"))
        found = asyncio.run(main())
        print(json.dumps([*found[:3], found[3].session]))
    """)
    *told, last = done.json
    assert last == "d" and all(
        {"BatchBegan", "CallSent", "ReplyAccepted", "RunEnded"} <= set(names) for names in told
    )
    assert provider.peak["all"] > 2, "they ran one after the other: one run has two voices"


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("signal", id="Ctrl-C"),
        pytest.param("cancel", id="a cancelled task"),
        pytest.param("left", id="an iteration that is left early"),
    ],
)
def test_a_program_that_stops_a_run_can_go_on_with_it(way: str, desk: Desktop, provider: Provider) -> None:
    provider.hold("t1-synthesis")
    code = {
        "signal": f'deliberate({OPTIONS}, session="a")',
        "cancel": f"""
        async def main():
            task = asyncio.create_task(deliberate_async({OPTIONS}, session="a"))
            while not task.done() and not Path("tmp/cdo-a/t1-synthesis-was-asked").exists():
                await asyncio.sleep(0.01)
            task.cancel()
            await task
        from pathlib import Path
        try:
            asyncio.run(main())
        except asyncio.CancelledError:
            print(json.dumps("cancelled"))
        """,
        "left": f"""
        from cdo.api import events
        async def main():
            session = Session.begin({OPTIONS}, session="a")
            stream = session.events()
            async for event in stream:
                if isinstance(event, events.CallSent) and event.name == "t1-synthesis":
                    break
            await stream.aclose()
        asyncio.run(main())
        print(json.dumps("left"))
        """,
    }[way]
    process = desk.start(code)
    wait_for(lambda: provider.named("t1-synthesis"))
    if way == "signal":
        process.send_signal(signal.SIGINT)
    elif way == "cancel":
        (desk.place.session() / "t1-synthesis-was-asked").touch()
    done = finish(process)
    if way == "signal":
        assert done.code == -signal.SIGINT and "KeyboardInterrupt" in done.err
    else:
        assert done.code == 0 and not done.err, done.err
    provider.release()
    before = [info.call for info in provider.calls]
    desk.place.resume("--json").ok()
    after = [info.call for info in provider.calls[len(before) :]]
    assert after == ["t1-synthesis", "final"] and before.count("t1-synthesis") == 1
    kill_group(process.pid)


def test_what_is_not_agreed_to_or_wrong_is_said_before_anything_is_sent(desk: Desktop, provider: Provider) -> None:
    done = desk.python(f"""
        from cdo.api import CdoError
        def told(call):
            try:
                call()
            except CdoError as error:
                return [type(error).__name__, error.message, error.hint]
        async def within():
            return told(lambda: deliberate({OPTIONS}))
        models = dict(models=["openai/bench"], look=False)
        print(json.dumps([
            told(lambda: deliberate("Q?", ask_above=0, models=["openai/gpt-4o"], look=False)),
            told(lambda: deliberate("Q?", preset="quik", **models)),
            told(lambda: deliberate("  ", **models)),
            told(lambda: deliberate("Q?", models=["nosuch/model"])),
            told(lambda: Session.open("nosuch")),
            told(lambda: deliberate("Q?", context=["nosuch.md"], models=["openai/bench"])),
            asyncio.run(within()),
            told(lambda: deliberate("Q?", bugdet=1, **models)),
            told(lambda: Session.open("nosuch", preset="quick")),
            told(lambda: deliberate("Q?", models="openai/bench")),
            told(lambda: deliberate("Q?", width=0, **models)),
            told(lambda: deliberate("Q?", budget=1, **models)),
            told(lambda: deliberate("Q?", modifiers=["hitll"], **models)),
        ]))
    """)
    kinds = ["NeedsHuman", "UsageError", "UsageError", "ConfigError", "SessionError", "UsageError", "UsageError"]
    assert [found and found[0] for found in done.json] == [*kinds, *["UsageError"] * 4, "ConfigError", "UsageError"]
    words = ["agreed=True", "quick", "question", "PROVIDER/MODEL", "cdo list", "", "run_async"]
    words += ["Did you mean `budget`?", "no option `preset` here", "models=['openai/bench']"]
    words += ["`width` cannot be `0`", "cap with `max_calls` or `max_tokens`", "`hitll` is not one of the modifiers"]
    assert all(word in " ".join(found[1:]) for word, found in zip(words, done.json, strict=True)), done.json
    assert not provider.calls and len(list(desk.place.path.glob("tmp/cdo-*"))) <= 1


def test_a_program_sends_the_trace_of_its_runs_and_is_told_of_a_collector_that_fails(desk: Desktop) -> None:
    code = """
        from cdo.api import UsageError, events
        async def run(name, url):
            found = Session.begin(OPTIONS, session=name, otlp=url)
            return [event.text async for event in found.events() if isinstance(event, events.NoteTold)]
        async def main():
            return await asyncio.gather(run("a", URL), run("b", "http://127.0.0.1:1"))
        told = []
        for begin in (lambda: Session.begin(OPTIONS, otlp="h"), lambda: Session.open("a", otlp="h")):
            try:
                begin()
            except UsageError as error:
                told.append(error.message)
        print(json.dumps([*asyncio.run(main()), Session.open("b").status, told]))
    """.replace("OPTIONS", OPTIONS)
    with LoopbackCollector().running() as collector:
        well, failed, status, told = desk.python(code.replace("URL", repr(collector.url))).json
        root = whole(list(collector.spans.values()))
    assert attributes(root)["cdo.session"] == "a" and attributes(root)["cdo.status"] == status
    assert not any("trace:" in note for note in well) and sum("trace:" in note for note in failed) == 1
    assert len(told) == 2 and all("is not the address of a collector" in text for text in told)
    assert QUESTION.encode() not in b"".join(collector.bodies)


def test_a_program_collects_what_waits_at_a_batch_endpoint(desk: Desktop, provider: Provider) -> None:
    done = desk.python(f"""
        from cdo.api import WaitsForBatch
        found = Session.begin({OPTIONS.replace("openai/bench", "openai/gpt-5-mini")}, session="a", batch_api=True)
        told = []
        while True:
            try:
                result = found.run()
                break
            except WaitsForBatch as error:
                told.append([error.message, error.hint])
        print(json.dumps([told, result.json()]))
    """)
    told, result = done.json
    assert not provider.calls and sum(len(batch.requests) for batch in provider.batches.batches) == result["calls"]
    assert len(told) == len(provider.batches.batches) > 1 and set(Counter(provider.batches.asked).values()) == {1}
    for message, hint in told:
        assert "at" in message and 'Session.open("a").run()' in hint
    assert desk.place.resume("--json").ok().json == {**result, "path": "tmp/cdo-a"}


def test_a_run_in_a_thread_and_a_run_with_a_person(desk: Desktop, provider: Provider) -> None:
    done = desk.python(f"""
        import threading
        from cdo.api import Human
        found = []
        thread = threading.Thread(target=lambda: found.append(deliberate({OPTIONS}, session="a").status))
        thread.start()
        thread.join()
        async def review(editing):
            found.append(editing.path.name)
            return editing.text.replace("decision: ", "decision: go #", 1)
        session = Session.begin({OPTIONS}, modifiers=["hitl"], session="b")
        found.append(session.run(human=Human(review=review)).status)
        print(json.dumps(found))
    """)
    assert done.json[0] == done.json[-1] and done.json[1].endswith(".yaml"), done.json


# -- what other packages add -----------------------------------------------------------------------------------

PACKAGE = '''
from cdo.api import ConfigError, ModelDescription, Outcome, Response, RunState, StopReason, Usage, Voice, conclude
from tests.support.answers import agent_text, final_text, synthesis_text

class Echo:
    """A provider whose models answer at once."""

    def describe(self, model):
        if model == "none":
            raise ConfigError("Echo has no model `none`.", "Name another one.")
        return ModelDescription(input_price=1.0, output_price=2.0, window=50_000)

    def backend(self, model):
        return EchoBackend(model)

class EchoBackend:
    streams = True

    def __init__(self, model):
        self.model = model

    async def complete(self, request, on_text):
        if self.model == "faulty":
            raise KeyError("choices")
        kind = request.headers["X-Cdo-Kind"]
        texts = {"synthesis": synthesis_text(exit_ready=True, confidence=0.9), "final": final_text("Stage it.")}
        text = texts.get(kind, agent_text("Stage it."))
        on_text(text)
        return Response(text, usage=Usage(1000, 500))

    async def close(self):
        pass

def three_turns(plan, mode):
    """Hold a set number of turns, whatever is agreed before."""
    course = RunState(plan)
    for _ in range(mode["rounds"]):
        voices = yield from course.prepare([Voice(name=role, role=role) for role in plan.roles[: plan.start]])
        heard = yield from course.hear(voices)
    return (yield from conclude(course, StopReason("converged", "all rounds were held"), heard))
'''
MODE = """---
purpose: A set number of turns.
load_when: rounds
about: three turns, whatever is agreed
program: set-turns
ends: after its turns
rounds: 3
least_turns: 3
---
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A folder with an installed package that adds a provider and a program, and one that cannot be imported."""
    folder = tmp_path / "site"
    info = folder / "echo_cdo-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "echo_cdo.py").write_text(PACKAGE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: echo-cdo\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[cdo.providers]\necho = echo_cdo:Echo\nbroken = no_such_module:It\nopenai = echo_cdo:Echo\n"
        "[cdo.programs]\nset-turns = echo_cdo:three_turns\n"
    )
    return folder


def test_other_packages_add_providers_and_programs(tmp_path: Path, library: Path) -> None:
    place = Place(tmp_path / "work", env={"PYTHONPATH": f"{library}:{Place(tmp_path).environment()['PYTHONPATH']}"})
    place.path.mkdir()
    modes = place.path / ".config" / "cdo" / "modes"
    modes.mkdir(parents=True)
    (modes / "rounds.md").write_text(MODE)
    words = ("full", "rounds", "-m", "echo/one", "-m", "echo/two", "--session", "a", "--json", QUESTION)
    result = place.cdo(*words).ok().json
    assert (result["turns"], result["status"], result["why"]) == (3, "converged", "all rounds were held")
    assert result["cost"] == pytest.approx(result["calls"] * (1000 * 1.0 + 500 * 2.0) / 1e6)
    assert place.resume("--json").ok().json == result
    listed = place.cdo("models", "--json").ok().json
    assert "echo" in json.dumps(listed)
    place.cdo("quick", "-m", "echo/none", "Q?").failed(4, "Echo has no model `none`.")
    place.cdo("quick", "-m", "echo/faulty", "Q?").failed(7, "`echo` raised KeyError: 'choices'")
    place.cdo("quick", "-m", "broken/x", "Q?").failed(4, "entry point `broken` of echo-cdo cannot be imported")
    place.cdo("quick", "-m", "openai/x", "Q?").failed(6, "price of openai/x is not known")  # cdo's own stays
    seated = ("full", "rounds", "--seat", "human:anna", "-m", "echo/one", "--session", "b", QUESTION)
    place.cdo(*seated).failed(2, "A person has no seat in `rounds`")
    (modes / "rounds.md").write_text(MODE.replace("program:", "people: true\nprogram:"))
    place.cdo(*seated, "--yes").failed(6, "seats/t1-anna.md")
    without = Place(place.path)
    without.cdo("resume", "a").failed(4, "echo")


def test_a_program_hands_in_what_a_person_says(desk: Desktop, provider: Provider) -> None:
    done = desk.python(f"""
        from pathlib import Path
        from cdo.api import CdoError, Human, events
        seated = dict(seats=["human:anna", "human:bert=operator"], turns=2)
        async def follow():
            session, seen = Session.begin({OPTIONS}, session="a", wait=True, width=2, **seated), []
            async for event in session.events():
                if isinstance(event, events.AnswerAwaited):
                    seen.append([event.person, event.turn, Path(event.path).is_file(), event.until[:4].isdigit()])
                    brief = session.read(f"seats/briefs/t{{event.turn}}-{{event.person}}")
                    assert "You cannot see the other voices" in brief and "as seen by" not in brief
                    assert event.person in session.awaited
                    said = f"Keep it whole, says {{event.person}} in turn {{event.turn}}."
                    session.answer(said, person=event.person)
            return seen, session.awaited
        seen, awaited = asyncio.run(follow())

        later = Session.begin({OPTIONS}, session="b", seats=["human:anna"], turns=1)
        said = []
        for text in ("", "How sure? 60", "## Your answer\\nIt.\\n## How sure you are\\n60 or 70"):
            try:
                later.answer(text) if later.awaited else later.run()
            except CdoError as error:
                said.append(type(error).__name__)
        later.answer("Stage it, said anna.")
        result = later.run()

        async def speak(form):
            form.write(f"As asked in {{form.path.name}}.")
        asked = Session.begin({OPTIONS}, session="c", seats=["human:anna"], turns=1).run(human=Human(speak=speak))
        lone = Session.begin({OPTIONS}, session="d", seats=["human:anna"], turns=1, seat_wait=0.001)
        absent = lone.run().json()["missing_voices"]
        print(json.dumps([seen, awaited, said, [later.read("t1-practitioner"), asked.status], absent]))
    """)
    seen, awaited, said, (practitioner, status), absent = done.json
    assert not done.err and seen == [[who, turn, True, True] for turn in (1, 2) for who in ("anna", "bert")]
    assert not awaited and status
    assert said == ["NeedsHuman", "UsageError"]
    for name, text in (("t2-operator", "says bert in turn 2"), ("t1-practitioner", "says anna in turn 1")):
        assert text in (desk.place.session() / f"{name}.md").read_text()
    assert "Stage it, said anna." in practitioner
    assert "As asked in t1-anna.md." in (desk.place.session("c") / "t1-practitioner.md").read_text()
    assert absent == ["t1-practitioner: absent: anna did not answer turn 1 within 0.001 s"]
    assert "says anna in turn 1" in next(call for call in provider.calls if call.call == "t1-synthesis").prompt


def test_an_engineer_who_was_there_sits_in_a_root_cause_analysis(desk: Desktop, provider: Provider) -> None:
    provider.script = case
    done = desk.python(f"""
        from cdo.api import Human
        async def speak(form):
            form.write(f"## Your answer\\nThe pool is full in turn {{form.turn}}.\\n## Reasons\\n- dmesg said so")
        session = Session.begin(
            {json.dumps(GATEWAY)}, preset="debug", models=["openai/bench"], look=False, session="a",
            seats=["human:anna=maintainer"],
        )
        result = session.run(human=Human(speak=speak))
        briefs = [session.read(f"seats/briefs/t{{turn}}-anna") for turn in range(1, 8)]
        print(json.dumps([result.status, result.turns, briefs]))
    """)
    status, turns, briefs = done.json
    assert (status, turns) == ("converged", 7)
    assert "Phase 1 of 7: reproduce" in briefs[0] and "Hypotheses on record" not in briefs[0]
    assert "H1 [open, since turn 3]: The pool starves." in briefs[3]
    assert not any("The key `hypotheses`" in brief or "```diff" in brief for brief in briefs), "rules for models"
    prompts = {info.call: info.prompt for info in provider.calls}
    assert all(f"The pool is full in turn {turn}." in prompts[f"t{turn}-synthesis"] for turn in range(1, 8))
    assert not [call for call in prompts if call.endswith("-maintainer")], "the role is taken"
    assert "t7-historian" in prompts, "the only model of its phase sits in another role then"
    assert "The pool is full" not in prompts["t2-tester" if "t2-tester" in prompts else "t1-tester"]
    assert "same" in desk.place.cdo("replay", "a").ok().out.lower()
