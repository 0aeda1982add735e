"""What a run can use beside models: the repository, commands that check, skills.

What they need is imported only for runs that use it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from cdo.content import skill_files
from cdo.content.library import Library
from cdo.content.skill_ranking import SkillInjection, resolve
from cdo.core.steps import CheckRun, CitationCheck, RunCheck, Survey
from cdo.planning.plan import Plan
from cdo.planning.settings import Settings
from cdo.repository.shown_files import shown_files
from cdo.runner.prompts import fit
from cdo.runner.requests import Toolbox
from cdo.session.store import Session


def citation_checker(session: Session, root: Path | None) -> Callable[[str], tuple[CitationCheck, ...]] | None:
    """What checks citations: against the repository, or where there is none the folder that `-c` was relative to."""
    place = root or (Path.cwd() if shown_files(session.read("00-context.md") or "") else None)
    if place is None:
        return None
    from cdo.repository.citations import check_all

    return lambda text: check_all([text], place)


def repository_search(root: Path) -> Callable[[Sequence[str]], frozenset[str]]:
    """What searches the repository for words."""
    from cdo.repository.citations import standing_in

    return lambda words: standing_in(words, root)


def toolbox(root: Path | None, plan: Plan, library: Library) -> Toolbox | None:
    """What answers the requests of models that look into the repository; None without a repository or tools."""
    if not root or not plan.tools:
        return None
    from cdo.repository.tools import Tools

    return Tools(root, library, plan.tools)


def surveyor(session: Session, root: Path) -> Callable[[Survey], str]:
    """What chooses further files for a focus: those that the context of the run does not show whole."""

    def text(step: Survey) -> str:
        from cdo.repository.survey import further

        return further(root, step.focus, step.tokens, session.read("00-context.md") or "")

    return text


def check_runner(
    session: Session, plan: Plan, settings: Settings, say: Callable[[str], None]
) -> Callable[[RunCheck], Awaitable[CheckRun]] | None:
    """What runs the person's command, or those of a mission's team; None for a run without any."""
    if plan.check is None and not (plan.crew and plan.crew.exec):
        return None
    from cdo.runner import check_command
    from cdo.session import session_file

    if plan.check is None:
        root, created = plan.crew.root if plan.crew else "", session_file.load(session).created
        return check_command.team_runner(session.path, created, root, settings.check_timeout, say)

    return check_command.runner(plan.check, session.path, settings.check_timeout, say)


def skill_bodies(plan: Plan, library: Library) -> Callable[[str], str]:
    """What reads the body of a skill of the plan's catalogue; raises `SessionError` where it has changed since."""

    def body(name: str) -> str:
        most = library.read("dispatch/skill-injection", SkillInjection)[0].max_chars
        card = resolve(name, plan.skills)
        return fit(skill_files.body(card), most) if card else ""

    return body
