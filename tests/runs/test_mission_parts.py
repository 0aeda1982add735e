"""What is valid of a reply counts, and only the rest is asked for again. Real processes against a scripted team."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.conftest import Desk
from tests.runs.test_mission import TEAM, Said, files, names, tells, told
from tests.support.answers import Answer, RequestInfo
from tests.support.cabal_team import (
    ALEX,
    JORDAN,
    REQUEST,
    assignment,
    bootstrap,
    inspect,
    inspection,
    of_product,
    plan,
    product,
    review,
    todo_script,
    version,
    write,
)
from tests.support.provider import Provider
from tests.support.repositories import git

IDS = ("p2", "p3", "p4")
ONE_ROUND = (*TEAM, "--rounds", "1", "Write it down")


def text(id: str) -> str:
    return f"# Part {id}\n\nThe part {id} says all that it has to say about its subject."


def script(**changes: Said) -> dict[str, Said]:
    """One operative writes three parts in one round, and all is accepted."""
    parts = [product(f"Part {id}", "Content", "Says what it has to", new_id=f"new-{id[1]}") for id in IDS]
    versions = [version(id, f"Part {id}", text(id)) for id in IDS]
    found: dict[str, Said] = {
        "r0-bootstrap": bootstrap(objectives=["All is said"], initial_products=parts),
        "r1-plan": plan(*(assignment(id, ALEX, JORDAN) for id in IDS)),
        f"r1-write-{ALEX}": write(*versions),
        f"r1-review-{JORDAN}": review(),
        **{
            f"r1-inspect-{id}": inspect(inspection(id, f"v{place}", {"d1": "says all that it has to say"}))
            for place, id in enumerate(IDS, 1)
        },
        "r1-inspect-p1": inspect(inspection("p1", "", {"d1": "says all that it has to say"})),
        "r1-present": tells(("chair-1", "The parts are written.")),
    }
    return found | {name.replace("_", "-"): reply for name, reply in changes.items()}


def section(session: Path, title: str) -> str:
    return (session / "FINAL.md").read_text().partition(f"## {title}\n")[2].partition("\n## ")[0].strip()


def proved_again(desk: Desk, provider: Provider) -> None:
    """Verify, replay and resume the session, which asks nobody."""
    before = files(desk.session())
    provider.reset()
    desk("verify", "a").ok()
    desk("replay", "a", "--strict").ok()
    desk("resume", "a")
    assert provider.calls == [] and files(desk.session()) == before


def test_one_round_delivers_what_passes_its_inspection(cdo: Desk, provider: Provider) -> None:
    provider.script = told(script())
    ended = cdo(*ONE_ROUND, "--json").ok()
    assert ended.json["status"] == "done" and len(ended.json["deliverables"]) == 3
    assert "at most 1 round)" in ended.err
    assert "**Done**: all of 4 products accepted after 1 round." in section(cdo.session(), "Result")
    proved_again(cdo, provider)


def test_one_bad_version_goes_back_alone(cdo: Desk, provider: Provider) -> None:
    bad = version("p3", "Part p3", "As [[v:v77]] says.")
    once = write(version("p2", "Part p2", text("p2")), bad, version("p4", "Part p4", text("p4")))
    again = {f"r1-write-{ALEX}-p3": write(version("p3", "Part p3", text("p3")))}
    order = {f"r1-inspect-{id}": inspect(inspection(id, f"v{place}", {"d1": "says all that it has to say"}))
             for place, id in enumerate(("p2", "p4", "p3"), 1)}  # fmt: skip
    provider.script = told(script() | {f"r1-write-{ALEX}": once} | again | order)
    cdo(*ONE_ROUND).ok()
    assert [name for name in names(provider) if "write" in name] == [f"r1-write-{ALEX}", f"r1-write-{ALEX}-p3"]
    asked = next(info.prompt for info in provider.calls if info.call == f"r1-write-{ALEX}-p3")
    own = asked.partition("# What you are to write")[2]
    assert "## p3" in own and "## p2" not in own
    assert "- p3: " in own.partition("# Not taken of your last reply")[2] and "v77" in own
    proved_again(cdo, provider)


def test_a_version_that_stays_bad_is_the_only_one_missing(cdo: Desk, provider: Provider) -> None:
    bad = version("p4", "Part p4", "As [[v:v77]] says.")
    once = write(version("p2", "Part p2", text("p2")), version("p3", "Part p3", text("p3")), bad)
    provider.script = told(script() | {f"r1-write-{ALEX}": once, f"r1-write-{ALEX}-p4": write(bad)})
    result = cdo(*ONE_ROUND, "--json").failed(3).json
    assert len(result["deliverables"]) == 2
    assert "it has no version" in section(cdo.session(), "What is missing")
    assert "not taken on Part p4" in section(cdo.session(), "Concerns on record")
    proved_again(cdo, provider)


def test_one_wrong_quote_is_nothing_to_the_other_inspections(cdo: Desk, provider: Provider) -> None:
    wrong = inspect(inspection("p3", "v2", {"d1": "these words stand nowhere"}))
    provider.script = told(script() | {"r1-inspect-p3": wrong})
    result = cdo(*ONE_ROUND, "--json").failed(3).json
    assert len(result["deliverables"]) == 2 and names(provider).count("r1-inspect-p3") == 3
    missing = section(cdo.session(), "What is missing")
    assert "has not been inspected" in missing and "Draft, not accepted: [version 1](products/p3-" in missing


def test_of_a_reply_that_is_cut_off_the_complete_documents_count(cdo: Desk, provider: Provider) -> None:
    entries = [{"product_id": id, "title": f"Part {id}", "change_summary": "First draft"} for id in IDS]
    head = json.dumps({"response_type": "final_output", "versions": entries})
    blocks = "".join(f"\n=====BEGIN {id}=====\n{text(id)}\n=====END {id}=====\n" for id in IDS[:2])
    cut = Answer(f"{head}\n{blocks}\n=====BEGIN p4=====\n# Part p4\n\nThe part", finish="length")
    again = {f"r1-write-{ALEX}-p4": write(version("p4", "Part p4", text("p4")))}
    rest = told(script() | again)
    provider.script = lambda info: cut if info.call == f"r1-write-{ALEX}" else rest(info)
    cdo(*ONE_ROUND).ok()
    asked = next(info.prompt for info in provider.calls if info.call == f"r1-write-{ALEX}-p4")
    assert "p4 is cut off" in asked and "## p2" not in asked.partition("# What you are to write")[2]
    assert len(list((cdo.session() / "deliverables").iterdir())) == 3
    proved_again(cdo, provider)


def test_an_accepted_version_stays_delivered_while_a_newer_one_is_refused(cdo: Desk, provider: Provider) -> None:
    second = "# Part p2\n\nAnother text, which no longer does what it should do, at some length, so that it differs."
    flaw = {"category": "quality", "severity": 9, "issue": "It says nothing", "recommendation": "Say it."}
    refused = inspect({**inspection("p2", "v4", {"d1": ""}), "findings": [flaw]})
    later: dict[str, Said] = {
        f"r2-reflect-{ALEX}": review(), "r2-plan": plan(assignment("p2", ALEX, JORDAN)),
        f"r2-write-{ALEX}": write(version("p2", "Part p2", second, "All new")), f"r2-review-{JORDAN}": review(),
        "r2-inspect-p2": refused, "r2-present": tells(("chair-1", "The new text is refused.")),
    }  # fmt: skip
    provider.script = told(script() | later)
    cdo(*TEAM, "--rounds", "2", "Write it down").failed(3)
    session = cdo.session()
    kept = next(path for path in (session / "deliverables").iterdir() if "p2" in path.name)
    assert kept.read_text().strip() == text("p2")
    assert "1 (v1); a newer one is not accepted" in section(session, "Deliverables")
    missing = section(session, "What is missing")
    assert "Draft, not accepted: [version 2](products/p2-" in missing and "version 1 stays delivered" in missing
    inspected = [name for name in names(provider) if name.startswith("r2-inspect")]
    assert inspected == ["r2-inspect-p2"], "what has not changed is not inspected again"
    proved_again(cdo, provider)
    kept.write_text("Something else")
    assert kept.name in cdo("verify", "a").failed(8).out


@pytest.mark.parametrize("taken", ["", "P3.TXT"])
def test_git_gets_what_is_delivered_and_no_newer_draft(taken: str, cdo: Desk, provider: Provider) -> None:
    """A repository has no commit yet, or a file whose name differs only in case, which many systems cannot hold."""
    git(cdo.path, "init", "-q", "-b", "main")
    if taken:
        cdo.write(taken, "Mine")
        git(cdo.path, "add", taken)
        git(cdo.path, "commit", "-q", "-m", "Begin")
    parts = [product(f"Part {id}", "Content", "Says it", new_id=f"new-{id[1]}", path=f"{id}.txt") for id in IDS]
    flaw = {"category": "quality", "severity": 9, "issue": "It says nothing", "recommendation": "Say it."}
    later: dict[str, Said] = {
        f"r2-reflect-{ALEX}": review(), "r2-plan": plan(assignment("p2", ALEX, JORDAN)),
        f"r2-write-{ALEX}": write(version("p2", "Part p2", "A draft that is refused", "All new")),
        f"r2-review-{JORDAN}": review(),
        "r2-inspect-p2": inspect({**inspection("p2", "v4", {"d1": ""}), "findings": [flaw]}),
        "r2-present": tells(("chair-1", "The new text is refused.")),
    }  # fmt: skip
    begun = bootstrap(objectives=["All is said"], initial_products=parts)
    provider.script = told(script(r0_bootstrap=begun) | later)
    ended = cdo(*TEAM, "--rounds", "2", "--deliver", "branch", "--json", "Write it down").failed(3)
    if taken:
        assert "p3.txt differs only in case from P3.TXT of the repository" in ended.json["handed_over"]
        return
    assert "3 files in one commit, the first of this repository." in ended.json["handed_over"]
    assert git(cdo.path, "show", "cdo/a-files:p2.txt") == text("p2")
    assert (cdo.session() / "deliverables/p2.txt").read_text().strip() == text("p2")


def test_a_flag_that_the_watchdog_forgets_to_close_is_asked_about(cdo: Desk, provider: Provider) -> None:
    """The flag of round 1 stands against p3; the inspection of its next version passes it, and says nothing of it."""

    def forgets(info: RequestInfo) -> str:
        reply = json.loads(of_product(todo_script(info) or "", info.call))
        return json.dumps({**reply, "confirms": []} if info.attempt == 1 else reply)

    provider.script = told({"r2-inspect-p3": forgets})
    cdo(*TEAM, REQUEST).ok()
    first, second = (info for info in provider.calls if info.call == "r2-inspect-p3")
    assert "your flag on p3, is still open" in second.prompt and "is still open" not in first.prompt
    assert "status: done" in (cdo.session() / "FINAL.yaml").read_text()
    proved_again(cdo, provider)


def test_acceptances_count_as_progress(cdo: Desk, provider: Provider) -> None:
    """Three rounds bring nothing but one acceptance each, and none of them is counted as idle."""

    def late(info: RequestInfo) -> str:
        """An inspection of p3 counts from round 2 on, one of p4 from round 3 on, one of p5 from round 4 on."""
        number, product_ = (int(digits) for digits in re.findall(r"r(\d+)-inspect-p(\d+)", info.call)[0])
        quote = "says all that it has to say" if number >= product_ - 1 or product_ == 1 else "stands nowhere"
        return inspect(inspection(f"p{product_}", "" if product_ == 1 else f"v{product_ - 1}", {"d1": quote}))

    ids = ("p2", "p3", "p4", "p5")
    later: dict[str, Said] = {f"r{round_}-plan": plan() for round_ in (2, 3, 4)}
    later |= {f"r{round_}-reflect-{ALEX}": review() for round_ in (2, 3, 4)}
    later |= {f"r{round_}-inspect-{id}": late for round_ in (1, 2, 3, 4) for id in (*ids, "p1")}
    later |= {f"r{round_}-present": tells(("chair-1", "One more is accepted.")) for round_ in (1, 2, 3, 4)}
    parts = [product(f"Part {id}", "Content", "Says what it has to", new_id=f"new-{id[1]}") for id in ids]
    provider.script = told(script() | later | {
        "r0-bootstrap": bootstrap(objectives=["All is said"], initial_products=parts),
        "r1-plan": plan(*(assignment(id, ALEX, JORDAN) for id in ids)),
        f"r1-write-{ALEX}": write(*(version(id, f"Part {id}", text(id)) for id in ids)),
    })  # fmt: skip
    result = cdo(*TEAM, "--rounds", "4", "--json", "Write it down").ok().json
    assert result["status"] == "done" and result["turns"] == 4
    plans = [info.prompt for info in provider.calls if info.kind == "plan"]
    assert len(plans) == 4 and not any("No progress" in prompt for prompt in plans)
    assert not [name for name in names(provider) if re.match("r[234]-write", name)]


def test_no_rating_is_asked_for_and_one_that_is_given_changes_nothing(cdo: Desk, provider: Provider) -> None:
    def rated(info: RequestInfo) -> str:
        data = json.loads(str(script()[info.call]))
        for item in data["inspections"]:
            item["ratings"] = {"clarity": 1, "actionability": 1, "dod_fit": 1}
        return json.dumps(data)

    provider.script = told(script() | {f"r1-inspect-{id}": rated for id in IDS})
    assert cdo(*ONE_ROUND, "--json").ok().json["status"] == "done"
    assert not any(re.search(r"\brat(e|ing)", info.prompt, re.IGNORECASE) for info in provider.calls)
    pages = ["FINAL.md", "CERTIFICATE.yaml", "CHAT.md", "TREE.md"]
    assert not any("rating" in (cdo.session() / page).read_text() for page in pages)
