"""Plans a new run: its models, what is around it, its plan, and its context.

The command line and whoever else starts a run use these. Nothing here is paid for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from cdo.core.errors import UsageError
from cdo.core.formatting import one_line

if TYPE_CHECKING:
    from cdo.content.library import Library
    from cdo.planning.arguments import Invocation
    from cdo.planning.mixed_models import Mix
    from cdo.planning.plan import CheckCommand, Plan
    from cdo.planning.plan_builder import PlanEnvironment
    from cdo.planning.settings import Resolved
    from cdo.providers.models import ModelSpec
    from cdo.repository.context import Context

# Of past runs that --recall puts into the context: how many at most, and their estimated tokens in all.
RECALLED, RECALL_TOKENS = 3, 2000
GIVEN_TOKENS = 24_000  # most estimated tokens of the files given with -c, unless `context_tokens` is set


class Wishes(Struct, frozen=True):
    """What a new run is asked for beside its words and settings.

    `context` are files to show, `look` whether the voices may see the repository, `trust` whether this project's
    skills are trusted from now on. `check` is the person's command, `seats` are those of people as they were given,
    `remarks` what a person should read before the run. With `recall`, decisions of similar past runs are shown.
    """

    context: Sequence[str] = ()
    look: bool = True
    trust: bool = False
    recall: bool = False
    check: CheckCommand | None = None
    seats: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


class NewRun(Struct, frozen=True):
    """A run that has not begun: its plan, its models, the text of its context, and notes for the person."""

    plan: Plan
    specs: Sequence[ModelSpec]
    context: str
    notes: tuple[str, ...]


def planned(words: Invocation, problem: str, resolved: Resolved, library: Library, wishes: Wishes) -> NewRun:
    """Plan a new run. Raises `UsageError`, `ConfigError` or `ContentError`."""
    from cdo.app import seats
    from cdo.planning import plan_builder

    root = looked_at(wishes.context, look=wishes.look)
    mixed = plan_builder.preset_of(words, problem, library)[2].mixed
    mix = models_of(resolved, library, every="lev-exec" in words.modifiers, mixed=mixed)
    specs = seats.specs(mix.names, library, resolved.values, os.environ)
    around, notes = environment(resolved, specs, library, root, trust_all=wishes.trust)
    remarks = (*mix.notes(), *wishes.remarks)
    around = replace(around, mixed=mix.several, remarks=remarks, check=wishes.check, seats=wishes.seats)
    plan = plan_builder.make(words, problem, resolved, library, mix.names, around)
    context = context_of(wishes.context, plan, resolved, specs, problem, root)
    if wishes.recall:
        context, note = with_recall(resolved, library, problem, context)
        notes = (*notes, note)
    return NewRun(plan, specs, context, notes)


def models_of(resolved: Resolved, library: Library, *, every: bool, mixed: bool) -> Mix:
    """The models of a run: those given with -m, all that there are (`every`), those set, or the best ones.

    The best one, unless the preset asks for models of different makers (`mixed`).
    """
    from cdo.app import seats
    from cdo.planning.mixed_models import Mix, mix
    from cdo.providers import models

    values, ollama = resolved.values, seats.first_of_ollama
    if values.model and not (every and resolved.sources["model"] != "--model"):
        return Mix(values.model)
    if every and (found := models.available(library, os.environ, ollama)):
        return Mix(tuple(dict.fromkeys([*values.model, *(name for name, _ in found)])))
    if mixed and not every:
        return mix(library, os.environ, ollama, values.prices, capped=values.budget is not None)
    return Mix((models.choose(library, os.environ, ollama)[0],))


def looked_at(given: Sequence[str], *, look: bool) -> Path | None:
    """The top of the repository here, in which a run looks around; None without `look` or a repository.

    Raises `UsageError` where files are `given` with -c although nothing may be shown.
    """
    from cdo.repository.work_tree import root_of

    if given and not look:
        raise UsageError("--context and --no-context exclude each other.", "Leave one out.")
    return root_of(Path.cwd()) if look else None


def environment(
    resolved: Resolved, specs: Sequence[ModelSpec], library: Library, root: Path | None, *, trust_all: bool
) -> tuple[PlanEnvironment, tuple[str, ...]]:
    """What there is around a run (skills, a repository to look into), and what a person should know of it.

    With `trust_all` the skills of this project are trusted from now on as they are. `root` is the repository
    that is looked into.
    """
    from cdo.content import skill_files
    from cdo.planning import settings
    from cdo.planning.plan_builder import PlanEnvironment
    from cdo.security.trust import Trust

    folders = [Path(folder).expanduser() for folder in resolved.values.skills]
    chosen = settings.skill_folders(resolved, library)
    found = skill_files.discover(Path.cwd(), Path.home(), *chosen, built_in=skill_files.BUILT_IN)
    trust = Trust.load()
    if trust_all:
        trust.pin(skill_files.KIND, [(card.path, card.sha256) for card in found.untrusted(trust)])
    usable = found.usable(trust)
    vendors = {spec.name: spec.vendor for spec in specs}
    seen, looks = seen_repository(resolved, specs, library, root)
    place = root or Path.cwd()
    return (
        PlanEnvironment(
            skills=usable.skills,
            asked=bool(folders),
            vendors=vendors,
            looks=looks,
            root=seen,
            untrusted=found.untrusted(trust),
            today=resolved.values.today or time.strftime("%Y-%m-%d"),
            has_folder=lambda folder: (place / folder).is_dir(),
        ),
        usable.notes,
    )


def seen_repository(
    resolved: Resolved, specs: Sequence[ModelSpec], library: Library, root: Path | None
) -> tuple[str, tuple[int, int] | None]:
    """The repository `root` as seen from a session's folder, and how often a model may look into it.

    "" without one; None if no model can use tools, or there is no file to look at.
    """
    if root is None:
        return "", None
    from cdo.repository.tools import ToolBox
    from cdo.repository.visible_files import has_files

    box = library.read("dispatch/tools", ToolBox)[0]
    able = any(spec.tools for spec in specs) and has_files(root)
    seen = os.path.relpath(root, Path(resolved.values.out).absolute() / "session")
    return seen, (box.max_requests, box.max_rounds) if able else None


def room_for_files(resolved: Resolved, specs: Sequence[ModelSpec], wanted: int = 0) -> int:
    """Estimated tokens that the context may have: those that are set, or a quarter of the smallest model's window.

    Unless they are set, they are at most `GIVEN_TOKENS`, or `wanted` if that is more.
    """
    from cdo.planning.settings import narrowed

    most = max(GIVEN_TOKENS, wanted)
    usual = resolved.values.context_tokens or min(most, min(spec.window for spec in specs) // 4)
    return int(narrowed("context_tokens", usual, resolved.ceilings))


def _gathered(paths: Sequence[str], root: Path | None, room: int) -> Context | None:
    """The files given with `-c`, named as citations name them: from the top of the repository; None without `-c`."""
    if not paths:
        return None
    from cdo.repository.context import gather

    here = Path.cwd()
    return gather([here / path for path in paths], root or here, room)


def context_of(
    given: Sequence[str],
    plan: Plan,
    resolved: Resolved,
    specs: Sequence[ModelSpec],
    problem: str,
    root: Path | None,
) -> str:
    """The text of 00-context.md, within what the smallest model can read beside the rest.

    It holds the files `given` with `-c`, and what a look around the repository `root` found: at most the
    `context_tokens` of the plan, beside the files given.
    """
    from cdo.repository.shown_files import NO_CONTEXT

    gathered = plan.context_tokens or 0
    room = room_for_files(resolved, specs, gathered)
    files = _gathered(given, root, room)
    if root is None:
        return files.markdown() if files else NO_CONTEXT
    from cdo.repository import survey

    return survey.survey(root, problem, min(room, (files.tokens if files else 0) + gathered), files)


def with_recall(resolved: Resolved, library: Library, problem: str, context: str) -> tuple[str, str]:
    """The context with what earlier runs of the same folder decided on similar questions, and a note of which."""
    from cdo.history.recall import recalled

    found = recalled(problem, Path(resolved.values.out), library, RECALLED, RECALL_TOKENS)
    if not found.text:
        return context, "no earlier run decided on a similar question"
    return f"{context.rstrip()}\n\n{found.text}", one_line(f"recalled: {', '.join(found.names)}")


def require_writable(folder: Path) -> None:
    """Raise `UsageError` where no file can be put into a folder: before a run is paid for, not after."""
    there = next((place for place in (folder, *folder.absolute().parents) if place.exists()), Path("/"))
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UsageError(f"Nothing can be written into {folder}.", "Give another folder with --adr-dir.")
