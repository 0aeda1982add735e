"""Finds Agent Skills on disk, says which may be used, and reads the text of a chosen one.

A skill is a folder with a SKILL.md: front matter with `name` and `description`, then Markdown. Only that file is ever
read, and its body is used only if the skill is chosen; nothing of a skill is ever run. Folders are loaded leniently:
a problem with one skill is a note, never an error.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from cdo.content.library import PACKAGED, line, user_folder
from cdo.content.skill_ranking import Place, SkillCard, slug
from cdo.core.errors import ConfigError, SessionError, UsageError
from cdo.core.formatting import one_line, pluralise
from cdo.formats import strict_yaml
from cdo.formats.markdown import line_breaks, split_front_matter
from cdo.security.safe_open import read_regular
from cdo.security.trust import Trust

FILE = "SKILL.md"
KIND = "skill"  # the kind under which trust is stored
OWN = "cdo"  # tells an agent how to run cdo; cdo's own voices never get it
PROJECT_FOLDERS = (".cdo/skills", ".agents/skills", ".claude/skills")
BUILT_IN = PACKAGED / "skills"  # the skills that ship with cdo
USER_FOLDERS = (".agents/skills", ".claude/skills")
MAX_DEPTH = 6
MAX_FOLDERS = 2000  # searched below one folder of skills
MAX_BYTES = 131_072  # of a SKILL.md
MAX_DESCRIPTION = 1024
MAX_TAGS, MAX_TAG = 32, 40
MAX_NOTES = 20
_SKIPPED = ("node_modules", "__pycache__")


class FoundSkills(Struct, frozen=True):
    """The skills that were found, strongest place first, and notes about the others.

    `skills` holds the first card of each name, which wins. `every` also holds the later ones.
    """

    every: tuple[SkillCard, ...]
    notes: tuple[str, ...] = ()

    @property
    def skills(self) -> tuple[SkillCard, ...]:
        """The first skill of each name."""
        first: dict[str, SkillCard] = {}
        for card in self.every:
            first.setdefault(card.name, card)
        return tuple(first.values())

    def untrusted(self, trust: Trust) -> tuple[SkillCard, ...]:
        """Return the project's skills that the person has not trusted as they are now."""
        return tuple(
            card
            for card in self.every
            if card.place == "project" and card.name != OWN and not trust.holds(KIND, card.path, card.sha256)
        )

    def usable(self, trust: Trust) -> FoundSkills:
        """Return the skills for voices: without cdo's own and the project's untrusted ones, which one note names."""
        refused = self.untrusted(trust)
        paths = {card.path for card in refused}
        left = tuple(card for card in self.every if card.path not in paths and card.name != OWN)
        names = list(dict.fromkeys(card.name for card in refused))
        if not names:
            return FoundSkills(left, self.notes)
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        note = (
            f"{pluralise(len(names), 'skill')} of this project not used, as you have not trusted them (or they have "
            f"changed): {shown}. Read them with `cdo skills show NAME`, then use --trust or `cdo skills trust`."
        )
        return FoundSkills(left, (note, *self.notes))


def discover(
    start: Path,
    home: Path,
    extra: Sequence[Path] = (),
    project: Sequence[Path] = (),
    built_in: Path | None = None,
) -> FoundSkills:
    """Find the skills visible from the folder `start`: given (`extra`), the project's, the user's, then `built_in`.

    `extra` are folders that the person named. `project` are folders that the project's own configuration names: they
    come before the project's usual folders and need trust like these, since anyone who can write into a project can
    write its configuration too. The usual folders are the nearest at or above `start`, up to its git root and below
    `home`. Raises `UsageError` if a folder of `extra` does not exist, `ConfigError` if one of `project` does not.
    """
    search = _SkillSearch()
    for folder in extra:
        if not _is_folder(folder):
            raise UsageError(f"There is no folder {folder} with skills.", "Check the path given with --skills.")
        search.folder("given", folder, (folder,), itself=True)
    for folder in project:
        if not _is_folder(folder):
            raise ConfigError(
                f"There is no folder {folder} with skills.", "Fix `skills` in the project's .cdo/config.yaml."
            )
        search.folder("project", folder, (folder,), itself=True)
    for folder, root in _project_folders(start, home):
        search.folder("project", folder, (root,))
    own = user_folder()
    for folder in (own / "skills", *(home / name for name in USER_FOLDERS)):
        search.folder("user", folder, (own, home))
    if built_in:
        search.folder("built in", built_in, (built_in,))
    notes, more = search.notes[:MAX_NOTES], len(search.notes) - MAX_NOTES
    if more > 0:
        notes.append(f"{pluralise(more, 'further remark')} on skills left out.")
    return FoundSkills(tuple(search.cards.values()), tuple(notes))


def project_root(start: Path, home: Path) -> Path | None:
    """Return the git root at or above `start` and below `home`; None if there is none."""
    last = _chain(start, home)[-1:]
    return next((up for up in last if os.path.lexists(up / ".git")), None)


def text(card: SkillCard) -> str:
    """Return the whole SKILL.md of a card; raise `SessionError` if it is gone or has changed since the card was made.

    A built-in skill is read from the cdo that runs now, which may be a later version than that of the card.
    """
    built_in = card.place == "built in"
    try:
        data = read_regular(BUILT_IN / card.name / FILE if built_in else card.path, MAX_BYTES + 1)
    except OSError as error:
        raise SessionError(
            f"The skill {card.name} cannot be read any more: {card.path}: {error.strerror}.",
            "Put it back, or begin a new session.",
        ) from None
    if not built_in and hashlib.sha256(data).hexdigest() != card.sha256:
        raise SessionError(
            f"The skill {card.name} has changed since it was chosen: {card.path}.",
            "Put it back as it was, or begin a new session.",
        )
    return line_breaks(data.decode("utf-8-sig"))


def body(card: SkillCard) -> str:
    """Return the Markdown below the front matter of a card's SKILL.md; raise `SessionError` as `text` does."""
    return split_front_matter(text(card))[1].strip()


# -- finding ---------------------------------------------------------------------------------------


def _project_folders(start: Path, home: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the project's folders of skills, each with the folder that its symlinks must not lead out of."""
    chain = _chain(start, home)
    for name in PROJECT_FOLDERS:
        nearest = next((up for up in chain if _is_folder(up / name)), None)
        if nearest:
            yield nearest / name, project_root(start, home) or nearest


def _chain(start: Path, home: Path) -> list[Path]:
    """Return `start` and its parents, nearest first, up to the git root; never the home folder or its parents."""
    start, home = Path(os.path.realpath(start)), Path(os.path.realpath(home))
    found = []
    for up in (start, *start.parents):
        if up == home or up in home.parents:
            break
        found.append(up)
        if os.path.lexists(up / ".git"):
            break
    return found


class _Unusable(Exception):
    """A SKILL.md cannot be used; the message is the reason."""


class _SkillSearch(Struct):
    """A search for skills: its cards by path, in order of precedence, and its notes."""

    cards: dict[str, SkillCard] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def folder(self, place: Place, top: Path, roots: Sequence[Path], *, itself: bool = False) -> None:
        """Add the skills below `top`, or `top` `itself`; skip paths that lead out of `roots`."""
        inside = tuple(os.path.realpath(root) for root in roots)
        for folder in self._skill_folders(top, inside, itself=itself):
            path = os.path.realpath(folder / FILE)
            if path in self.cards:
                continue
            try:
                if not _within(path, inside):
                    raise _Unusable(f"it is a link that leads out of {roots[0]}")
                self.cards[path] = self._card(place, folder, path)
            except _Unusable as problem:
                self._note(folder / FILE, f"left out: {problem}")

    def _note(self, path: Path, text: str) -> None:
        self.notes.append(f"{one_line(path, 300)}: {text}.")

    def _skill_folders(self, top: Path, roots: Sequence[str], *, itself: bool) -> Iterator[Path]:
        """Yield the folders below `top` with a SKILL.md, nearest first; with `itself`, `top` can be one."""
        queue = deque([(top, 0)])
        seen: set[str] = set()
        while queue:
            folder, depth = queue.popleft()
            real = os.path.realpath(folder)
            if real in seen:
                continue
            if not _within(real, roots):
                self._note(folder, "left out: it is a link that leads elsewhere")
                continue
            if len(seen) == MAX_FOLDERS:
                self._note(top, f"only the first {MAX_FOLDERS} folders in it were searched for skills")
                return
            seen.add(real)
            if (depth or itself) and os.path.lexists(folder / FILE):
                yield folder
            elif depth < MAX_DEPTH:
                queue.extend((folder / name, depth + 1) for name in _subfolders(folder))

    def _card(self, place: Place, folder: Path, path: str) -> SkillCard:
        """Return the card of a SKILL.md. Note problems that can be repaired; raise `_Unusable` for others."""
        try:
            path.encode()
            data = read_regular(path, MAX_BYTES + 1)
            text = line_breaks(data.decode("utf-8-sig"))
        except OSError as error:
            raise _Unusable(f"it cannot be read ({error.strerror})") from None
        except UnicodeError:
            raise _Unusable("it, or its path, is not UTF-8 text") from None
        if len(data) > MAX_BYTES:
            raise _Unusable(f"it is larger than {MAX_BYTES:,} bytes")
        block, _ = split_front_matter(text)
        if block is None:
            raise _Unusable("it has no front matter")
        meta = self._meta(block, folder / FILE)
        description = meta.get("description")
        if not isinstance(description, str) or not description.strip():
            raise _Unusable("it has no description")
        name = self._name(meta.get("name"), folder)
        if len(description) > MAX_DESCRIPTION:
            self._note(folder / FILE, f"only {MAX_DESCRIPTION} characters of its description count")
        return SkillCard(
            name=name,
            description=line(_text(description), MAX_DESCRIPTION),
            tags=_tags(meta.get("metadata")),
            place=place,
            path=path,
            sha256=hashlib.sha256(data).hexdigest(),
        )

    def _meta(self, block: str, path: Path) -> dict[str, Any]:
        """Return the keys of a front matter; if it is not valid YAML, only its name and description."""
        try:
            meta = strict_yaml.load(block, max_bytes=MAX_BYTES)
        except strict_yaml.YamlProblem as problem:
            meta = _plain(block)
            if not meta.get("description"):
                raise _Unusable(f"its front matter is not YAML ({one_line(problem, 200)})") from None
            self._note(path, f"of its front matter only name and description count ({one_line(problem, 200)})")
        if not isinstance(meta, dict):
            raise _Unusable("its front matter is not a mapping of keys")
        return meta

    def _name(self, given: Any, folder: Path) -> str:
        """Return the name of a skill: its own or its folder's, changed into a valid one."""
        own = _text(str(given)) if isinstance(given, (str, int)) else ""
        name = slug(own) or slug(folder.name)
        if not name:
            raise _Unusable("neither its name nor its folder's can be used: names are of a-z, 0-9 and -")
        if not own:
            self._note(folder / FILE, f"it has no name; it goes by {name}")
        elif name != own:
            self._note(folder / FILE, f"`{one_line(own, 80)}` cannot be a skill's name; it goes by {name}")
        elif name != folder.name:
            self._note(folder / FILE, f"its name {name} is not that of its folder")
        return name


def _within(real: str, roots: Iterable[str]) -> bool:
    return any(real == root or real.startswith(root.rstrip("/") + "/") for root in roots)


def _is_folder(place: Path | os.DirEntry[str]) -> bool:
    """True if `place` is a folder or a symlink to one; False if it cannot be accessed."""
    try:
        return place.is_dir()
    except OSError:
        return False


def _subfolders(folder: Path) -> list[str]:
    """Return the sorted names of the folders in one, with symlinks to folders; [] if it cannot be read."""
    found = []
    try:
        for entry in os.scandir(folder):
            if not entry.name.startswith(".") and entry.name not in _SKIPPED and _is_folder(entry):
                found.append(entry.name)
    except OSError:
        return []
    return sorted(found)


def _plain(block: str) -> dict[str, Any]:
    """Return `name` and `description` of invalid YAML: many a description would need quotes to be valid."""
    found: dict[str, Any] = {}
    for key, value in re.findall(r"(?m)^(name|description):[ \t]*(.*(?:\n[ \t]+\S.*)*)$", block):
        value = re.sub(r"^[|>][-+]?(?=\s)", "", value.strip()).strip()
        quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
        found.setdefault(key, " ".join((value[1:-1] if quoted else value).split()))
    return found


def _text(value: str) -> str:
    """Return `value` without surrounding white space and without characters that UTF-8 cannot encode."""
    return value.encode("utf-8", "replace").decode().strip()


def _tags(metadata: Any) -> tuple[str, ...]:
    """Return the tags of a skill: a list, or text separated by commas or blanks."""
    given = metadata.get("tags") if isinstance(metadata, dict) else None
    if isinstance(given, str):
        given = re.split(r"[,\s]+", given)
    if not isinstance(given, list):
        return ()
    tags = [_text(tag).lower()[:MAX_TAG] for tag in given if isinstance(tag, str)]
    return tuple(tag for tag in dict.fromkeys(tags) if tag)[:MAX_TAGS]
