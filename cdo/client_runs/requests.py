"""Turns what a client asks for into the words of a command line, and refuses what only a person may ask for.

A client names no folder outside the project, no model file and no script, gives no trust and runs no commands: what
is not named here never reaches the command line.
"""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

from cdo.content.library import Library
from cdo.core.errors import UsageError
from cdo.core.people import HUMAN
from cdo.planning import arguments
from cdo.planning.settings import Resolved
from cdo.repository.visible_files import forbidden

MISSION = "cabal"  # in place of a preset: a team makes deliverables
_MODIFIERS = ("hitl", "adaptive", "team")  # those that start no other program and ask no model that nobody named
_PLACEHOLDER = "?"  # stands for the question while the words before it are read
_NAME = 300  # characters of a model's name
_PATH = 4096  # characters of a path


class RunRequest(Struct, frozen=True):
    """What a client wants to be deliberated. `evidence` are files and folders of the project.

    `preset` are the words that the command line takes before the question, "" to let the question decide. `budget` is
    in dollars, None for what the person allows. `seat` is the name of the person if they have a voice in every turn.
    """

    question: str
    preset: str = ""
    models: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    budget: float | None = None
    seat: str = ""

    @property
    def mission(self) -> bool:
        return self.preset.strip() == MISSION


def command_words(asked: RunRequest, library: Library, resolved: Resolved, root: Path) -> tuple[list[str], bool]:
    """Return the arguments of `cdo` for a request, which reads the question from stdin, and whether plans wait.

    Raises `UsageError`, and `ConfigError` for a model that cannot be reached.
    """
    if not asked.question.strip():
        raise UsageError("There is no question to deliberate.", "Ask one, with what a reader needs to answer it.")
    words, waits = ([MISSION], False) if asked.mission else _run_words(asked.preset, library)
    for name in asked.models:
        words += ["--model", _model(name, library, resolved)]
    if asked.seat:
        words += ["--seat", f"{HUMAN}{asked.seat}"]
    for path in asked.evidence:
        words += ["--context", _inside(path, root)]
    return [*words, "-"], waits


def _run_words(preset: str, library: Library) -> tuple[list[str], bool]:
    """Return `run` with the words of a preset, and whether a person sees the plan of each turn."""
    vocabulary = arguments.vocabulary(library.names("presets"), library.names("modes"))
    words = preset.split()
    found = arguments.parse([*words, _PLACEHOLDER], vocabulary)
    if found.problem != _PLACEHOLDER:
        named = ", ".join([*sorted(vocabulary.presets), MISSION])
        raise UsageError(f"`{preset.strip()[:60]}` is not a preset.", f"Name one of {named}, or leave it out.")
    if refused := [word for word in found.modifiers if word not in _MODIFIERS]:
        raise UsageError(
            f"`{refused[0]}` can only be given by a person, at the command line.",
            f"Leave it out; {', '.join(_MODIFIERS)} can be given.",
        )
    return ["run", *words], "hitl" in found.modifiers


def _model(name: str, library: Library, resolved: Resolved) -> str:
    """Return the name of a model that a client may choose; raise `UsageError` or `ConfigError`."""
    from cdo.providers import models
    from cdo.providers.model_names import meant

    shown = name[:60]
    if not name.strip() or len(name) > _NAME or name.startswith("-") or not name.isprintable():
        raise UsageError(
            f"`{shown}` cannot be the name of a model.", "Write PROVIDER/MODEL; `cdo models` lists some."
        )
    (full,) = meant([name], library)
    spec = models.resolve(full, library, resolved.values.prices, os.environ)
    if spec.route in ("local", "scripted") and full not in meant(resolved.values.model, library):
        raise UsageError(
            f"`{shown}` is a file on this machine, which a client cannot choose.",
            "Leave the model out, or have the person set it as `model` in the configuration of cdo.",
        )
    return full


def _inside(path: str, root: Path) -> str:
    """Return the absolute path of a file or folder of the project; raise `UsageError` for any other."""
    shown = path[:100]
    if not path.strip() or len(path) > _PATH or "\0" in path:
        raise UsageError(f"`{shown}` cannot be a path.", "Name files and folders relative to the project.")
    base = Path(os.path.realpath(root))
    place = Path(os.path.realpath(base / path))
    if not place.is_relative_to(base):
        raise UsageError(f"`{shown}` is outside the project {base}.", "Name files and folders of the project.")
    parts = place.relative_to(base).parts
    for above, part in zip(("", *parts), parts, strict=False):
        if why := forbidden(part, folder=False, above=above) or forbidden(part, folder=True):
            raise UsageError(f"`{shown}` is not shown to models: {why}.", "Name other files of the project.")
    if not place.exists():
        raise UsageError(f"There is no `{shown}` in the project {base}.", "Name files and folders relative to it.")
    return str(place)
