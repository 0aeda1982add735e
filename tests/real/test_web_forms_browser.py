"""The forms of `cdo watch --web` in a real browser: a plan approved from a phone, a mission signed off by keyboard.

These need Chromium (tests/support/browser/install.sh); without it they are skipped.
"""

from __future__ import annotations

import pexpect
from playwright.sync_api import Browser, expect

from tests.conftest import A, Desk
from tests.real.test_web_browser import PATIENCE, chromium, opened
from tests.runs.test_mission_authority import section
from tests.runs.test_mission_sign_off import SIGNED, SIGNED_OFF, desk
from tests.runs.test_web_forms import terminal_of
from tests.support.harness import QUESTION
from tests.support.provider import Provider
from tests.support.web import served

__all__ = ["chromium", "desk"]  # fixtures

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


def test_a_plan_is_approved_from_a_phone_while_another_window_follows(
    cdo: Desk, provider: Provider, chromium: Browser
) -> None:
    terminal = terminal_of(cdo, "hitl,think", "--turns", "1", *A, QUESTION)
    terminal.expect("Enter goes on with it")
    with served(cdo, "a") as client, opened(chromium, client, **PHONE) as phone:
        page, desktop = phone.page, phone.page.context.new_page()
        desktop.goto(page.url)
        expect(desktop.get_by_role("status").first).to_have_text("A plan waits for you.")
        page.get_by_role("link", name="Answer here").tap()
        page.get_by_label("What every voice of this turn should know").fill("Mind the users in Peru.")
        page.locator("summary", has_text="Voice 2: critic").tap()
        page.locator("#plan-voice-2-role").fill("pragmatst")
        page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true; })")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        small = page.evaluate(
            "[...document.querySelectorAll('button, select, textarea, input[type=text], label.option')]"
            ".filter(e => e.getBoundingClientRect().height < 40).map(e => e.outerHTML.slice(0, 80))"
        )
        assert small == [], "each can be hit with a finger"
        assert not phone.complaints
        page.get_by_role("button", name="Go on with this plan").tap()
        wrong = page.locator("#plan-voice-2-role")
        expect(page.get_by_role("alert")).to_contain_text("not saved")
        described = (wrong.get_attribute("aria-describedby") or "").split()
        assert "Did you mean pragmatist?" in page.locator(f"#{described[0]}").inner_text()
        assert (
            page.get_by_label("What every voice of this turn should know").input_value() == "Mind the users in Peru."
        )
        page.wait_for_timeout(200)
        assert [text for text in phone.complaints if "422" not in text] == [], "Chromium tells of the status"
        phone.complaints.clear()
        wrong.fill("historian")
        page.get_by_role("button", name="Go on with this plan").tap()
        expect(page.get_by_text("The process that waits with it goes on.")).to_be_visible()
        for window in (page, desktop):
            expect(window.get_by_role("heading", name="Decision")).to_be_visible(timeout=PATIENCE)
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0
    heard = {info.call: info.prompt for info in provider.calls if info.kind == "agent"}
    assert {"t1-first-principles", "t1-historian", "t1-pragmatist"} == set(heard)
    assert all("Mind the users in Peru." in prompt for prompt in heard.values())


def test_a_mission_is_signed_off_by_keyboard(desk: Desk, chromium: Browser) -> None:
    desk(*SIGNED).failed(6)
    with served(desk, "a") as client, opened(chromium, client, viewport={"width": 1280, "height": 900}) as window:
        page = window.page
        page.get_by_role("link", name="change", exact=True).press("Enter")
        expect(page.get_by_role("heading", name="Sign the mission off")).to_be_visible()
        unnamed = page.evaluate(
            "[...document.querySelectorAll('main section, fieldset, input:not([type=hidden]), textarea, select')]"
            ".filter(e => !e.getAttribute('aria-labelledby') && !e.querySelector('legend') && !e.labels?.length)"
            ".map(e => e.outerHTML.slice(0, 80))"
        )
        assert unnamed == []
        page.get_by_label("Accept: the mission is done").focus()
        page.keyboard.press("Space")
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Give the verdict"
        page.keyboard.press("Enter")
        expect(page.get_by_text("Your answer is “accept”. Now `cdo resume a` goes on with it.")).to_be_visible()
    desk("resume", "a").ok()
    assert f"{SIGNED_OFF}2." in section(desk.session(), "Result")
