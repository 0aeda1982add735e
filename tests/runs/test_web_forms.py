"""Forms of the browser view: what people may edit is written where an editor would write it, and nothing else is.

Real sessions against a scripted provider; `submit` is what the server calls.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from urllib.parse import urlencode

import pexpect
import pytest
import yaml

from cdo.app.waiting import StateChanged
from cdo.core.errors import CdoError, SessionError, UsageError
from cdo.history.pending import pending
from cdo.session.reader import SessionFolder
from cdo.web_view.form_fields import Form, RefusedForm
from cdo.web_view.forms import filled_forms, open_forms, submit
from tests.conftest import A, Desk
from tests.runs.test_hitl_run import paused, paused_team, roles
from tests.runs.test_mission import TEAM, told
from tests.runs.test_mission_authority import hello, section
from tests.runs.test_mission_sign_off import SIGNED, SIGNED_OFF, WRONG, desk, mission
from tests.support.cabal_team import done, question
from tests.support.harness import QUESTION, tree, wait_for
from tests.support.provider import Provider
from tests.support.web import served

__all__ = ["desk", "paused", "paused_team"]  # fixtures


def form(session: Path, kind: str) -> Form:
    (found,) = [item for item in open_forms(session) if item.kind == kind]
    return found


def values(of: Form, **changes: str) -> dict[str, str]:
    """What a browser sends of a form that a person changed: boxes and buttons that are not chosen are left out."""
    sent = {field.name: field.value for field in of.fields}
    new = {name.replace("_", "-"): value for name, value in changes.items()}
    assert new.keys() <= sent.keys()
    sent |= new
    return {field.name: sent[field.name] for field in of.fields if sent[field.name] or field.type != "checkbox"}


def sent(session: Path, kind: str, **changes: str) -> str:
    shown = form(session, kind)
    return submit(session, kind, values(shown, **changes), shown.seen)


def refused(session: Path, kind: str, **changes: str) -> dict[str, list[str]]:
    """The problems by field; nothing was written."""
    before = tree(session)
    with pytest.raises(RefusedForm) as caught:
        sent(session, kind, **changes)
    assert tree(session) == before
    return {name: list(found) for name, found in caught.value.problems.items()}


def terminal_of(desk: Desk, *words: str) -> pexpect.spawn:
    env = {**desk.environment(), "TERM": "dumb"}
    return pexpect.spawn(
        sys.executable, ["-m", "cdo", *words], cwd=str(desk.path), env=env, encoding="utf-8", timeout=60
    )


# -- the plan of a turn ------------------------------------------------------------------------------


def test_a_plan_changed_by_fields_is_what_is_held(paused: Desk, provider: Provider) -> None:
    session = paused.session()
    told = sent(
        session, "plan", voice_1_role="historian", voice_1_charge="look for: the last attempt", voice_2_role="",
        voice_new_role="lawyer", voice_new_charge="read the contracts", note="mind the users in Peru\r\nand Chile",
        message_to="pragmatist", message_text="count the phones", turns_low="1", turns_most="1",
    )  # fmt: skip
    assert "to hold turn 1" in told and "`cdo resume a`" in told
    text = (session / "t1-plan.yaml").read_text()
    assert "# The plan of turn 1" in text, "as cdo writes it, with its comments"
    assert yaml.safe_load(text)["note"] == "mind the users in Peru\nand Chile"
    done = paused("resume", "a", "--json").ok()
    assert roles(paused, 1) == ["historian", "lawyer", "pragmatist"] and done.json["turns"] == 1
    prompts = {info.call: info.prompt for info in provider.calls}
    assert "look for: the last attempt" in prompts["t1-historian"] and "read the contracts" in prompts["t1-lawyer"]
    assert "count the phones" in prompts["t1-pragmatist"] and "count the phones" not in prompts["t1-lawyer"]
    assert all("and Chile" in prompts[name] for name in ("t1-lawyer", "t1-synthesis"))


def test_a_plan_is_changed_by_its_text_or_its_fields_and_never_by_both(paused: Desk) -> None:
    session = paused.session()
    both = refused(session, "plan", focus="costs", text="note: think of Peru\n")
    assert "both the fields and the text" in both[""][0]
    wrong = refused(session, "plan", text="note: x\nvoices:\n  - role: critic\n  - role: ../etc\n")
    assert "line 4, column 11" in wrong["text"][0]
    aliased = refused(session, "plan", text="note: &x one\nfocus: *x\n")
    assert "anchors" in aliased["text"][0]
    mistyped = refused(session, "plan", text="voices:\n  - role: critic\n  - role: pragmatst\n")
    assert "Did you mean pragmatist?" in mistyped["text"][0]
    sent(session, "plan", text="combo: architect + critic + pragmatist\nnote: think of Peru\n")
    assert (session / "t1-plan.yaml").read_text() == "combo: architect + critic + pragmatist\nnote: think of Peru\n"
    assert form(session, "plan").fields[2].value == "think of Peru", "what was left out is as it was proposed"
    paused("resume", "a").failed(6, "t2-plan.yaml")
    assert roles(paused, 1) == ["architect", "critic", "pragmatist"]
    sent(session, "plan", decision="done")
    assert paused("resume", "a", "--json").ok().json["status"] == "stopped"
    assert (session / "FINAL.md").is_file() and open_forms(session) == []


def test_what_a_plan_cannot_be_is_told_at_its_field(paused: Desk) -> None:
    session = paused.session()
    assert "a letter first" in refused(session, "plan", voice_1_role="../etc")["voice-1-role"][0]
    assert "Did you mean pragmatist?" in refused(session, "plan", voice_3_role="pragmatst")["voice-3-role"][0]
    assert "no choice done" in refused(session, "plan", decision="done")["decision"][0]
    assert "no choice evil" in refused(session, "plan", voice_1_model="evil")["voice-1-model"][0]
    assert "skill" in refused(session, "plan", voice_1_skills="none-such")["voice-1-skills"][0]
    assert "from 0 to 1" in refused(session, "plan", criteria_exit_confidence="7")["criteria-exit-confidence"][0]
    assert "U+0007" in refused(session, "plan", note="bell\a")["note"][0]
    assert "at most 2,000" in refused(session, "plan", focus="x" * 3000)["focus"][0]
    assert "one line" in refused(session, "plan", voice_1_role="a\nb: c")["voice-1-role"][0]
    shown = form(session, "plan")
    with pytest.raises(RefusedForm, match="no field path"):
        submit(session, "plan", {**values(shown), "path": "/etc/passwd"}, shown.seen)
    with pytest.raises(UsageError, match="no form"):
        submit(session, "../plan", {}, shown.seen)
    wrong = RefusedForm({"voice-1-role": ["Not so."]})
    (again, *_) = filled_forms(session, "plan", values(shown, voice_1_role="x y"), wrong)
    role = next(field for field in again.fields if field.name == "voice-1-role")
    assert (role.value, role.problems, again.wrong) == ("x y", ("Not so.",), True)


def test_nothing_is_overwritten_that_the_person_has_not_seen(paused: Desk) -> None:
    session = paused.session()
    shown = form(session, "plan")
    (session / "t1-plan.yaml").write_text("note: from an editor\n")
    with pytest.raises(StateChanged):
        submit(session, "plan", values(shown, note="from a phone"), shown.seen)
    assert (session / "t1-plan.yaml").read_text() == "note: from an editor\n"
    (session / "t1-plan.yaml").write_text("voices: [critic\n")
    broken = form(session, "plan")
    assert [field.name for field in broken.fields] == ["text", "new-roles"] and "line 2" in broken.problems[0]
    sent(session, "plan", text="decision: go\n")
    paused("resume", "a").failed(6, "t2-plan.yaml")
    with pytest.raises(StateChanged):
        submit(session, "plan", values(shown), shown.seen)


def test_links_lead_nowhere_and_secrets_stay_out(paused: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    session, plan = paused.session(), paused.session() / "t1-plan.yaml"
    monkeypatch.setenv("BANK_API_KEY", "hunter2-hunter2-hunter2")
    sent(session, "plan", note="the key is hunter2-hunter2-hunter2")
    assert "hunter2" not in plan.read_text() and "the key is" in plan.read_text()
    shown, kept = form(session, "plan"), plan.rename(paused.path / "elsewhere.yaml")
    plan.symlink_to(kept)
    before = kept.read_text()
    for act in (lambda: open_forms(session), lambda: submit(session, "plan", values(shown, note="x"), shown.seen)):
        with pytest.raises(SessionError, match="symbolic link"):
            act()
    assert kept.read_text() == before


def test_a_plan_under_review_at_a_terminal_is_approved_from_elsewhere(cdo: Desk, provider: Provider) -> None:
    terminal = terminal_of(cdo, "hitl,think", "--turns", "1", *A, QUESTION)
    terminal.expect("Enter goes on with it")
    session = cdo.session()
    assert "waits with this plan at its terminal" in form(session, "plan").explanation and provider.calls == []
    assert "The process that waits with it goes on." in sent(session, "plan", note="mind the users in Peru")
    terminal.expect("t1-plan.yaml was saved")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0 and (session / "FINAL.md").is_file()
    assert any("mind the users in Peru" in info.prompt for info in provider.calls)


def test_a_plan_saved_while_no_process_runs_is_approved_and_not_shown_again(paused: Desk, provider: Provider) -> None:
    session = paused.session()
    assert "Saving the plan approves it" in form(session, "plan").explanation
    assert pending(SessionFolder(session))
    sent(session, "plan", note="mind the users in Peru", turns_low="1", turns_most="1")
    assert pending(SessionFolder(session)) is None, "it waits for no answer any more"
    assert "You approved this plan" in form(session, "plan").explanation, "and can be changed until it is held"
    assert paused("list", "--json").ok().json[0]["status"] == "answered"
    sent(session, "plan", note="mind the users in Chile")
    terminal = terminal_of(paused, "resume", "a")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0 and "Enter goes on with it" not in (terminal.before or "")
    voices = [info.prompt for info in provider.calls if info.kind == "agent"]
    assert len(voices) == 3 and all("Chile" in prompt and "Peru" not in prompt for prompt in voices)
    assert (session / "FINAL.md").is_file() and open_forms(session) == []


# -- answers, verdicts, letters ----------------------------------------------------------------------


def test_a_mission_is_sent_back_and_signed_off(desk: Desk) -> None:
    desk(*SIGNED).failed(6)
    session = desk.session()
    assert [item.kind for item in open_forms(session)] == ["verdict", "letter"]
    assert "has to be filled in" in refused(session, "verdict")["verdict"][0]
    for note in ("", "1", "Accept."):
        assert "Say in words" in refused(session, "verdict", verdict="back", note=note)["note"][0]
    assert "Leave it empty" in refused(session, "verdict", verdict="accept", note=WRONG)["note"][0]
    shown = form(session, "verdict")
    assert "`cdo resume a` goes on" in sent(session, "verdict", verdict="back", note=WRONG)
    with pytest.raises(StateChanged):
        submit(session, "verdict", values(shown, verdict="accept"), shown.seen)
    assert (session / "inbox/answer.md").read_text() == f"{WRONG}\n"
    desk("resume", "a").failed(6)
    assert [item.kind for item in open_forms(session)] == ["verdict", "letter"], "the concern is confirmed as met"
    sent(session, "verdict", verdict="accept")
    desk("resume", "a").ok()
    assert f"{SIGNED_OFF}4." in section(session, "Result") and WRONG in section(session, "Questions and answers")
    desk("verify", "a").ok()


def test_a_mission_that_waits_at_a_terminal_takes_the_verdict(desk: Desk) -> None:
    terminal = terminal_of(desk, *SIGNED)
    terminal.expect("Your answer")
    told = sent(desk.session(), "verdict", verdict="accept")
    assert "The process that waits for it goes on." in told
    terminal.expect("inbox/answer.md answers: accept")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0 and f"{SIGNED_OFF}2." in section(desk.session(), "Result")
    assert (desk.session() / "taken/answer.md").is_file()
    desk("verify", "a").ok()


def test_a_question_of_the_team_is_answered_by_a_choice_or_in_own_words(cdo: Desk, provider: Provider) -> None:
    begun = hello()
    asks = {"r1-plan": question("Which <b>pages</b>?", "one", "all of them"), "r1-plan-2": question("Who pays?")}
    provider.script = told(begun | asks | {"r1-plan-3": begun["r1-plan"]})
    cdo(*TEAM, "--rounds", "1", "Make an app").failed(6)
    session = cdo.session()
    assert [item.kind for item in open_forms(session)] == ["answer", "letter"]
    shown = form(session, "answer")
    assert "Which <b>pages</b>?" in shown.explanation, "the template escapes it"
    assert shown.fields[0].options == (("1", "one"), ("2", "all of them"), ("own", "in my own words:"))
    assert "has to be filled in" in refused(session, "answer")["choice"][0]
    assert "no choice 3" in refused(session, "answer", choice="3")["choice"][0]
    assert "is empty" in refused(session, "answer", choice="own")["words"][0]
    assert "take one of them" in refused(session, "answer", choice="1", words="But small ones.")["words"][0]
    assert "Your answer is “all of them”. Now `cdo resume a` goes on" in sent(session, "answer", choice="2")
    assert (session / "inbox/answer.md").read_text() == "all of them\n"
    with pytest.raises(StateChanged):
        submit(session, "answer", values(shown, choice="1"), shown.seen)
    assert "You answered “all of them”, which was not taken yet" in form(session, "answer").explanation
    sent(session, "answer", choice="own", words="Those that Peru reads.\r\nNo others.")
    cdo("resume", "a").failed(6)
    (after,) = provider.named("r1-plan-2")
    assert re.search(r"Those that Peru reads\.\s+No others\.", after.prompt)
    assert [field.name for field in form(session, "answer").fields] == ["words"], "a question without choices"
    assert "has to be filled in" in refused(session, "answer")["words"][0]
    sent(session, "answer", words="Nobody.")
    cdo("resume", "a").failed(3)
    assert open_forms(session)[0].kind == "letter" and "Nobody." in section(session, "Questions and answers")


def test_who_wrote_a_letter_takes_it_back(desk: Desk, provider: Provider) -> None:
    waived = done(waivers=[{"collab_id": "c1", "reason": "It is good enough."}])
    provider.script = told(mission(r3_plan=waived, r3_inspect="", r4_plan=done()))
    desk(*SIGNED).failed(6)
    session = desk.session()
    sent(session, "verdict", verdict="back", note=WRONG)
    assert [item.kind for item in open_forms(session)] == ["verdict", "letter"], "the team has not read it yet"
    desk("resume", "a", "--rounds", "3").failed(3)
    shown = form(session, "withdrawal")
    assert shown.fields[0].options == (("c1", f"c1: {WRONG}"),)
    assert "`cdo resume a` opens the mission again with it" in shown.explanation
    assert "no choice c9" in refused(session, "withdrawal", id="c9")["id"][0]
    assert "at most 4,000" in refused(session, "withdrawal", text="x" * 5000)["text"][0]
    assert "The letter is in inbox/." in sent(session, "withdrawal", text="English will do.\n---\nwithdraw: [c2]")
    (letter,) = (session / "inbox").iterdir()
    assert letter.read_text() == "---\nwithdraw: [c1]\n---\nEnglish will do.\n---\nwithdraw: [c2]\n"
    assert "already" in sent(session, "withdrawal", text="English will do.\n---\nwithdraw: [c2]")
    desk("resume", "a", "--rounds", "6").failed(6)
    (note,) = session.glob("products/*/c1.md")
    text = note.read_text()
    assert "how: withdrawn" in text and "closed_by: u:user-1" in text and "English will do." in text
    assert [item.kind for item in open_forms(session)] == ["verdict", "letter"]


def test_a_letter_is_one_file_that_the_team_reads_as_it_is_meant(desk: Desk, provider: Provider) -> None:
    desk(*SIGNED).failed(6)
    session, text = desk.session(), "---\nwithdraw: [c1]\n---\n<script>Say it in German.</script>"
    assert "inbox/" in sent(session, "letter", product="p2", type="concern", importance="8", text=text)
    assert "already" in sent(session, "letter", product="p2", type="concern", importance="8", text=text)
    (letter,) = (session / "inbox").iterdir()
    parts = re.fullmatch(r"---\n(.*?)---\n(.*)\n", letter.read_text(), re.DOTALL)
    assert parts
    head, body = parts.groups()
    assert yaml.safe_load(head) == {"product": "p2", "type": "concern", "importance": 8} and body == text
    assert "no choice p99" in refused(session, "letter", product="p99", text="x")["product"][0]
    assert "from 1 to 10" in refused(session, "letter", importance="11", text="x")["importance"][0]
    assert "at most 4,000" in refused(session, "letter", text="x" * 5000)["text"][0]
    letter.unlink()
    (session / "inbox").rmdir()
    (desk.path / "elsewhere").mkdir()
    (session / "inbox").symlink_to(desk.path / "elsewhere")
    with pytest.raises(SessionError, match="symbolic link"):
        sent(session, "letter", text="Where does this go?")
    assert not list((desk.path / "elsewhere").iterdir())


def test_a_letter_reaches_a_run_that_goes_on(cdo: Desk, provider: Provider) -> None:
    provider.hold("t1-synthesis")
    run = cdo.start("team,think", *A, QUESTION)
    wait_for(lambda: provider.named("t1-synthesis"))
    try:
        shown = form(cdo.session(), "letter")
        assert [item for item, _ in shown.fields[0].options] == ["all", "first-principles", "critic", "pragmatist"]
        assert "is running" in sent(cdo.session(), "letter", to="critic", text="What does Peru pay?")
    finally:
        provider.release()
        run.communicate()
    heard = {info.call for info in provider.calls if "What does Peru pay?" in info.prompt and info.kind == "agent"}
    assert "t2-critic" in heard and {name.partition("-")[2] for name in heard} == {"critic"}


def test_a_person_with_a_seat_answers_in_the_browser(cdo: Desk, provider: Provider) -> None:
    cdo("quick", "--seat", "human:anna", *A, QUESTION).failed(6)
    shown = form(cdo.session(), "seat")
    assert "anna, what is your answer to turn 1?" in shown.explanation
    pages = ("/file/t1-critic.md", "/report", "/file/calls/0001.jsonl", "/file/seats/briefs/t1-anna.md")

    def read() -> list[str]:
        with served(cdo, "a") as client:
            assert client.begin().status == 200
            return [client.session("a", page).text for page in pages]

    *blind, brief = read()
    assert all("in which anna answers without seeing it" in text and "een from critic" not in text for text in blind)
    assert QUESTION in brief and "as seen by" not in brief
    assert "no choice bob" in refused(cdo.session(), "seat", person="bob", answer="Keep it.")["person"][0]
    with pytest.raises(UsageError, match="60 or 70"):
        sent(cdo.session(), "seat", answer="Keep it.", sure="60 or 70")
    assert "has to be filled in" in refused(cdo.session(), "seat", reasons="- four people")["answer"][0]
    with served(cdo, "a") as client:
        assert client.begin().status == 200
        page, stands = client.session("a", "/edit").text, client.session("a").text
    assert QUESTION in page and f'href="{client.home}/session/a/file/seats/briefs/t1-anna.md"' in page
    assert 'type="text" id="seat-sure"' in page and ">stopped<" not in re.sub(r"practitioner.*?</tr>", "", stands)
    assert stands.count(">answered<") == 2, "the models, whose words are not shown"
    told = sent(cdo.session(), "seat", answer="Keep it whole.", reasons="- four people cannot run six services")
    assert "seats/t1-anna.md" in told and "`cdo resume a` goes on" in told
    with pytest.raises(StateChanged):
        submit(cdo.session(), "seat", values(shown, answer="Split it."), shown.seen)
    cdo("resume", "a").ok()
    file, report, *_ = read()
    assert "<summary>Its data</summary>" in file and "confidence: 0.6" in file
    assert "Seen from critic, the question turns on" in file and "Keep it whole" in report
    heard = next(info.prompt for info in provider.calls if info.call == "t1-synthesis")
    assert "four people cannot run six services" in heard and "Split it." not in heard


def test_a_damaged_session_is_an_error_and_changes_nothing(paused: Desk) -> None:
    session = paused.session()
    (session / "session.yaml").write_text("plan: 1\n")
    before = tree(session)
    for act in (
        lambda: open_forms(session),
        lambda: submit(session, "plan", {}, ""),
        lambda: open_forms(paused.path),
    ):
        with pytest.raises(CdoError):
            act()
    assert tree(session) == before


def test_the_server_takes_forms_of_its_own_pages_alone(paused: Desk) -> None:
    session = paused.session()
    with served(paused, "a") as client:
        assert client.begin().status == 200
        page = client.session("a", "/edit")
        csrf = re.findall(r'name="csrf" value="([^"]+)"', page.text)[0]
        shown = form(session, "plan")
        body = {**values(shown, note="<b>Peru</b>"), "seen": shown.seen, "csrf": csrf}
        heads = {"Origin": f"http://{client.netloc}", "Content-Type": "application/x-www-form-urlencoded"}
        text = (session / "t1-plan.yaml").read_text()
        for changed, more in (
            ({"csrf": "x"}, {}),
            ({"csrf": ""}, {}),
            ({}, {"Origin": "http://evil.example"}),
            ({}, {"Origin": ""}),
            ({}, {"Cookie": "a=b"}),
        ):
            got = client.ask("/session/a/edit/plan", {**heads, **more}, method="POST", body=urlencode(body | changed))
            assert got.status == 403 and (session / "t1-plan.yaml").read_text() == text
        wrong = urlencode(body | {"focus": "x" * 3000, "voice-1-role": "<i>"})
        again = client.ask("/session/a/edit/plan", heads, method="POST", body=wrong)
        assert again.status == 422 and "&lt;b&gt;Peru&lt;/b&gt;" in again.text and "at most 2,000" in again.text
        assert 'value="&lt;i&gt;"' in again.text and (session / "t1-plan.yaml").read_text() == text
        none = client.ask("/session/none/edit/plan", heads, method="POST", body=urlencode(body))
        assert none.status == 404 and f'href="{client.home}/"' in none.text, "the error leads to the list"
        got = client.ask("/session/a/edit/plan", heads, method="POST", body=urlencode(body))
        assert (got.status, got.headers["location"]) == (303, f"{client.home}/session/a")
        assert yaml.safe_load((session / "t1-plan.yaml").read_text())["note"] == "<b>Peru</b>"
        once, later = client.session("a").text, client.session("a").text
        assert "to hold turn 1" in once and "to hold turn 1" not in later
        assert "You approved the plan of turn 1." in later and "Answer here" not in later
        listed = client.ask("/").text
        assert ">answered<" in listed and "waits for you" not in listed
        late = client.ask("/session/a/edit/plan", heads, method="POST", body=urlencode(body))
        assert late.status == 409 and "has changed since" in late.text
