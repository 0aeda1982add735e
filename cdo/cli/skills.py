"""Implements the commands about skills: list, search, show, trust, install-cdo. They send and run nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins

from cdo.cli.common import JSON, VERBOSE, dumps, library_here, print_table, print_text
from cdo.core.errors import CdoError, ConfigError, UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from cdo.content.skill_files import FoundSkills
    from cdo.content.skill_ranking import SkillCard
    from cdo.security.trust import Trust

TEMPLATE = "templates/skill"
HOSTS = (".agents/skills/cdo", ".claude/skills/cdo")
EXTRA = click.option(
    "--skills", "extra", multiple=True, metavar="DIR", help="Look for skills in this folder first (repeatable)."
)


@click.group()
def skills() -> None:
    """List and show skills, and trust those of a project.

    A skill is a folder with a SKILL.md in .cdo/skills, .agents/skills or .claude/skills, of the project or of your
    home. A few ship with cdo. A project's skills are used only after you trusted them. No file of a skill is ever
    executed.
    """


@skills.command("list")
@EXTRA
@JSON
@VERBOSE
def skills_list(extra: tuple[str, ...], as_json: bool) -> None:
    """List skills with place and state.

    The place is given (--skills), project, user or built in; the first of each name counts. A skill is ready, not
    trusted yet, or for hosts: for agents that run cdo, not for its voices.
    """
    from cdo.core.formatting import visible

    found, trust = _found(extra)
    for note in found.notes:
        click.echo(visible(note), err=True)
    _print_cards(found.skills, found, trust, as_json)


@skills.command("search")
@click.argument("words", nargs=-1, required=True)
@EXTRA
@JSON
@VERBOSE
def skills_search(words: tuple[str, ...], extra: tuple[str, ...], as_json: bool) -> None:
    """List skills that match, best first.

    They are ranked on this machine by name, tags and description, as a run does it.
    """
    from cdo.content.skill_ranking import rank

    found, trust = _found(extra)
    ranked = rank(found.skills, " ".join(words))
    _print_cards(ranked, found, trust, as_json)
    if not ranked and not as_json:
        click.echo("No skill matches.", err=True)


def _complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the names of skills that begin with `incomplete`."""
    from click.shell_completion import CompletionItem

    try:
        names = [card.name for card in _found(())[0].skills]
    except CdoError:  # the command itself reports the error
        return []
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]


@skills.command("show")
@click.argument("name", shell_complete=_complete)
@EXTRA
@JSON
@VERBOSE
def skills_show(name: str, extra: tuple[str, ...], as_json: bool) -> None:
    """Print the path and text of a skill."""
    from cdo.content.skill_files import text
    from cdo.content.skill_ranking import resolve

    found, trust = _found(extra)
    card = resolve(name, found.skills)
    if card is None:
        raise _unknown(name, found)
    content = text(card)
    if as_json:
        (row,) = _rows([card], found, trust)
        click.echo(dumps({**row, "text": content}))
        return
    print_text(f"{card.path}\n\n{content}")


@skills.command("trust")
@click.argument("names", nargs=-1, shell_complete=_complete)
@VERBOSE
def skills_trust(names: tuple[str, ...]) -> None:
    """Trust skills of this project.

    All of them without NAMES. They are pinned by hash: one that changes has to be trusted again.
    """
    from cdo.content.skill_files import KIND
    from cdo.content.skill_ranking import slug

    found, trust = _found(())
    open_ = found.untrusted(trust)
    wanted = {slug(name.removeprefix("skill://")): name for name in names}
    known = {card.name for card in found.every}
    if missing := [name for key, name in wanted.items() if key not in known]:
        raise _unknown(missing[0], found)
    chosen = [card for card in open_ if not wanted or card.name in wanted]
    if not chosen:
        click.echo("There is nothing to trust: a project's skills need it once, yours never.", err=True)
        return
    trust.pin(KIND, [(card.path, card.sha256) for card in chosen])
    for card in chosen:
        print_text(f"trusted {card.name} ({card.path})")


@skills.command("install-cdo")
@click.option("--user", is_flag=True, help="Install into your home folder, for all projects.")
@click.option("--force", is_flag=True, help="Replace an existing file that differs.")
@VERBOSE
def install_cdo(user: bool, force: bool) -> None:
    """Teach coding agents to run cdo.

    Writes the skill `cdo` (in some agents: the command /cdo) below .agents/skills and .claude/skills of the project.
    """
    from cdo.content.library import Library
    from cdo.content.skill_files import project_root

    base = Path.home() if user else project_root(Path.cwd(), Path.home()) or Path.cwd()
    # With --user it is installed for all projects, so no project's content may define it.
    roots = [root for root in library_here().roots if not (user and root[0] == "project")]
    data = (Library(tuple(roots)).render(TEMPLATE, {}) + "\n").encode()
    folders = [base / host for host in HOSTS]
    if not user and (astray := next((folder for folder in folders if _leads_out(folder, base)), None)):
        raise UsageError(f"{astray} leads out of {base} through a link.", "Remove the link, or use --user.")
    states = {folder: _state(folder / "SKILL.md", data) for folder in folders}
    if other := [folder for folder, state in states.items() if state == "differs" and not force]:
        raise UsageError(f"{other[0] / 'SKILL.md'} is there and differs.", "Use --force to replace it.")
    for folder, state in states.items():
        if state != "same":
            _write(folder, data)
        print_text(f"{'unchanged' if state == 'same' else 'written'} {folder / 'SKILL.md'}")


# -- what they share -------------------------------------------------------------------------------


def _found(extra: Sequence[str]) -> tuple[FoundSkills, Trust]:
    """Return the skills that a run here would see, and what is trusted. `extra` are the folders of --skills."""
    from cdo.content.skill_files import BUILT_IN, discover
    from cdo.planning import settings
    from cdo.security.trust import Trust

    library = library_here()
    folders = settings.skill_folders(settings.resolve({"skills": tuple(extra)}, library), library)
    return discover(Path.cwd(), Path.home(), *folders, built_in=BUILT_IN), Trust.load()


def _print_cards(cards: Sequence[SkillCard], found: FoundSkills, trust: Trust, as_json: bool) -> None:
    rows = _rows(cards, found, trust)
    if as_json:
        click.echo(dumps(rows))
    elif rows:
        from cdo.core.formatting import one_line

        print_table([[row["name"], row["place"], row["state"], one_line(row["description"], 100)] for row in rows])


def _rows(cards: Sequence[SkillCard], found: FoundSkills, trust: Trust) -> list[dict[str, Any]]:
    """Return skills as `list --json` prints them; `state` is "ready", "not trusted", or "for hosts" (cdo's own)."""
    from cdo.content.skill_files import OWN

    refused = {card.path for card in found.untrusted(trust)}

    def state(card: SkillCard) -> str:
        return "for hosts" if card.name == OWN else "not trusted" if card.path in refused else "ready"

    return [{"name": card.name, "place": card.place, "state": state(card), **to_builtins(card)} for card in cards]


def _unknown(name: str, found: FoundSkills) -> UsageError:
    import difflib

    near = difflib.get_close_matches(name, [card.name for card in found.skills], n=3)
    hint = f"Did you mean {', '.join(near)}?" if near else "`cdo skills list` shows what there is."
    return UsageError(f"There is no skill called {name[:80]}.", hint)


def _leads_out(folder: Path, base: Path) -> bool:
    return not Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(base))


def _state(file: Path, data: bytes) -> str:
    """Return whether a file is "missing", has the "same" content, or "differs"."""
    from cdo.security.safe_open import read_regular

    try:
        return "same" if read_regular(file, len(data) + 1) == data else "differs"
    except FileNotFoundError:
        return "missing"
    except OSError:  # a symlink, a folder or an unreadable file
        return "differs"


def _write(folder: Path, data: bytes) -> None:
    """Write `data` to SKILL.md in `folder` atomically; raise `ConfigError`."""
    from cdo.files.atomic_files import write_file

    try:
        folder.mkdir(parents=True, exist_ok=True)
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            write_file(number, "SKILL.md", data)
        finally:
            os.close(number)
    except OSError as error:
        raise ConfigError(
            f"{folder / 'SKILL.md'} cannot be written: {error.strerror}.",
            "Fix the permissions of its folder, or what stands in its place.",
        ) from None
