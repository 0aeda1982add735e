"""Builds `00-context.md` from the repository alone, by selecting the files most relevant to the question.

Git provides only file names and history, and runs no program that the repository configures; without git the tree is
walked. Files are chosen by rank and shown with line numbers; omissions are listed. The output is deterministic: the
same tree, history, question and budget give the same bytes.

A question about the repository as a whole gets an outline and the files that the others depend on: many files, each
cut to its structure. Any other question gets fewer files, and more of each.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from pathlib import Path

from cdo.core.formatting import pluralise
from cdo.core.usage import estimate_tokens
from cdo.repository import outline
from cdo.repository.context import (
    HOW_TO_READ,
    LIST_LINES,
    OVER_BUDGET,
    Context,
    Piece,
    code_span,
    cut,
    fenced,
    least,
    left_out,
    piece_of,
    section,
    share,
)
from cdo.repository.excerpts import essential
from cdo.repository.ranking import MAX_CHARS, Ranked, Ranking, is_test, kind
from cdo.repository.relevance import concerns
from cdo.repository.repository_files import CHANGES, COMMITS, RepositoryFiles, look_around
from cdo.repository.shown_files import shown_files
from cdo.repository.visible_files import (
    BINARY,
    GENERATED,
    LINK,
    MAX_BYTES,
    NotShowable,
    Skipped,
    Tree,
    generated,
    printable,
    readable,
    unreadable,
    visible,
)
from cdo.security.secrets import secret_in

MAX_READ = 10_000  # files whose content is ranked; the others are ranked by their path
MAX_RANKED_BYTES = 150_000_000

CENTRAL = 3  # files of which a general question gets more than the structure
LINKED = 16  # files of an outline whose imports are listed
FURTHER_HEAD = 200  # tokens kept for the list of further files
FURTHER_SHARE = 2  # of the tokens for further files, half at most go to one file
MIN_STRUCTURE = 400  # tokens; a file's structure is useful in fewer tokens than an excerpt (`MIN_CUT`)

NOTHING = "# Context\n\nNo context was gathered: there is no room for it.\n"
NOT_RELEVANT = (
    "No context was gathered: no file of the repository {name} is relevant to the question. Add files with `-c PATH`."
)
LOW = "ranked too low for the budget"

_MANIFESTS = (
    "pyproject.toml setup.cfg setup.py requirements.txt package.json deno.json tsconfig.json go.mod Cargo.toml "
    "pom.xml build.gradle build.gradle.kts Gemfile composer.json mix.exs Package.swift CMakeLists.txt Makefile "
    "Dockerfile docker-compose.yml compose.yaml flake.nix pubspec.yaml stack.yaml dune-project"
)


def survey(root: Path, problem: str, budget: int, given: Context | None = None) -> str:
    """Return the text of `00-context.md`: at most `budget` estimated tokens about the repository at `root`.

    A question that has nothing to do with the repository gets no file of it, and the text says so. Otherwise the
    person's own material (`given`) comes first and is cut only if it alone exceeds the budget. The rest of the
    budget goes to an overview (folders, files, history), then to manifests and the README, then to the files that
    rank highest for `problem`. No file of the repository makes this raise.
    """
    return _ContextBuilder(root, problem, budget, given).text()


def further(root: Path, focus: str, budget: int, context: str) -> str:
    """Return at most `budget` estimated tokens of files that `focus` is about; "" if there are none.

    Files that `context`, the text of `00-context.md`, shows whole are left out. Of longer files, the parts that hold
    the words of the focus come first. No file of the repository makes this raise.
    """
    return _ContextBuilder(root, focus, budget, None).further(context)


# -- what is worth showing ------------------------------------------------------------------------


def _ranked(tree: Tree, found: RepositoryFiles, problem: str) -> tuple[Ranking, list[Ranked]]:
    """Rank the files, best first; move files found to be binary, generated or unreadable to `found.skipped`."""
    ranking, room, kept = Ranking(problem), MAX_RANKED_BYTES, list[str]()
    for number, path in enumerate(sorted(found.files, key=lambda path: (-kind(path), path))):
        data = b""
        try:
            if number < MAX_READ and room > 0:
                data = tree.bytes_at(path, MAX_CHARS)
                room -= len(data)
        except OSError as error:
            found.skipped.append(Skipped(printable(path), _why(error)))
            continue
        if b"\0" in data[:8192]:
            found.skipped.append(Skipped(printable(path), BINARY))
        elif b"generated" in data[:1000] and generated(data[:1000].decode("utf-8", "ignore")):
            found.skipped.append(Skipped(printable(path), GENERATED))
        else:
            ranking.add(path, data)
            kept.append(path)
    found.files = sorted(kept)
    return ranking, ranking.ranked(found.changed)


def _why(error: OSError) -> str:
    # These errors mean that a folder in the path has been replaced by a symlink.
    return LINK if error.errno in (errno.ELOOP, errno.ENOTDIR) else unreadable(error)


class _ContextBuilder:
    """Builder of one `00-context.md`: holds the files found and selects as many as fit."""

    def __init__(self, root: Path, problem: str, budget: int, given: Context | None) -> None:
        self._tree = Tree(root)
        self._budget = max(0, budget)
        self._given = given or Context((), (), 0)
        self._found = look_around(self._tree)
        ranking, ranked = _ranked(self._tree, self._found, problem)
        self._ranking, self._ranked = ranking, ranked
        self._about: Sequence[str] = ()
        self._is_relevant = concerns(problem, ranking)
        self._order = list(_first(self._found.files)) + [
            (item.path, _note(n, item)) for n, item in enumerate(ranked, 1)
        ]
        self._first = len({path for path, _ in _first(self._found.files)})
        self._folders = outline.folders(self._found.files)
        self._loaded: dict[str, Piece | Skipped] = {}
        self._lines = LIST_LINES if self._budget >= 8000 else 10 if self._budget >= 2000 else 3

    def text(self) -> str:
        """Return a text within the budget, as large as ten attempts find; without files if none is relevant."""
        if not self._is_relevant:
            return self._without_files()
        room = self._budget
        for attempt in range(10):
            text = self._attempt(room)
            over = estimate_tokens(text) - self._budget
            if over <= 0:
                return text
            room -= (over + 4) << attempt  # only whole files drop out, so a small step may change nothing
        return NOTHING if estimate_tokens(NOTHING) <= self._budget else ""

    def _without_files(self) -> str:
        """Return the text for a question that has nothing to do with the repository: what was given."""
        given = self._given.markdown() if self._given.pieces else "# Context\n"
        head, _, rest = given.partition("\n\n")
        name = code_span(printable(Path(self._tree.root).name))
        text = f"{head.rstrip()}\n\n{NOT_RELEVANT.format(name=name)}\n" + (f"\n{rest}" if rest else "")
        return text if estimate_tokens(text) <= self._budget else given

    def further(self, context: str) -> str:
        """Return files that `context` does not show whole, best first, within the budget; "" if none is relevant."""
        if not self._is_relevant:
            return ""
        self._about = self._ranking.terms
        room = self._budget - FURTHER_HEAD
        seen = {file.path for file in shown_files(context) if not file.cut}
        seen |= {printable(path) for path, _ in self._order[: self._first]}  # README and manifests
        pieces, notes, _ = self._fill(room, seen, room // FURTHER_SHARE)
        pieces = [piece for piece in pieces if section(piece) not in context]
        while pieces:
            name = code_span(printable(Path(self._tree.root).name))
            title = f"Gathered from the repository {name}, beside what was shown before"
            head = "\n".join([f"{HOW_TO_READ}\n", *self._entries(title, pieces, notes)])
            text = head.rstrip("\n") + "\n" + "".join(map(section, pieces))
            if estimate_tokens(text) <= self._budget:
                return text
            pieces.pop()
        return ""

    def _attempt(self, room: int) -> str:
        """Return a text whose pieces and overview have about `room` tokens; its head is not counted."""
        given, lacking = list(self._given.pieces), list[Skipped]()
        if self._given.tokens > room:
            given, lacking = share([piece.uncut() for piece in given], max(0, room))
        room -= sum(piece.tokens for piece in given)
        overview = self._overview(max(0, room) // (3 if self._ranking.is_general else 4))
        gathered, notes, more = self._fill(room - estimate_tokens(overview), {piece.path for piece in given})
        found = sorted({*self._given.skipped, *lacking, *self._found.skipped}, key=lambda item: (item.path, item.why))
        shown = {piece.path for piece in (*given, *gathered)}
        left = [item for item in (*found, *more) if item.path not in shown]  # `more` is in order of rank
        head = ["# Context\n", f"{HOW_TO_READ}\n"]
        if self._given.pieces:
            head += self._entries("Given with `--context`", given, {})
        head += self._entries(self._chosen(), gathered, notes)
        if left:
            head += left_out(left, self._lines)
        return "\n".join(head).rstrip("\n") + "\n" + overview + "".join(map(section, (*given, *gathered)))

    def _chosen(self) -> str:
        name, files = code_span(printable(Path(self._tree.root).name)), pluralise(len(self._found.files), "file")
        words = ", ".join(code_span(term) for term in self._ranking.terms) or "nothing in particular"
        if self._ranking.is_general:
            return (
                f"Gathered from the repository {name} of {files}. The question is a general one: manifests and\n"
                f"README come first, then the files that others rest on, above all those near {words}"
            )
        return (
            f"Gathered from the repository {name} of {files}; manifests and README come first, then what ranks\n"
            f"highest for {words}"
        )

    def _entries(self, title: str, pieces: Sequence[Piece], notes: dict[str, str]) -> list[str]:
        """Return the list of shown files: `title` with totals, one line per file, a count of the rest."""
        tokens = sum(piece.tokens for piece in pieces)
        lines = [f"{title}: {pluralise(len(pieces), 'file')}, {pluralise(tokens, 'token')}.\n"]
        for piece in pieces[: self._lines]:
            note = notes.get(piece.path, "")
            lines.append(f"- {code_span(piece.path)}: {pluralise(piece.tokens, 'token')}{', cut' * piece.cut}{note}")
        if more := pieces[self._lines :]:
            lines.append(f"- … and {len(more):,} more: {pluralise(sum(piece.tokens for piece in more), 'token')}")
        return [*lines, ""]

    def _fill(
        self, room: int, shown: set[str], most_each: int = 0
    ) -> tuple[list[Piece], dict[str, str], list[Skipped]]:
        """Select files in order until no more fit; return (pieces, why each was chosen, files left out).

        One file takes `most_each` tokens at most; with 0, as many as suits the kind of question.
        """
        pieces, notes, left = list[Piece](), dict[str, str](), list[Skipped]()
        whole, small = room, max(1, least(room) // 4)
        for path, note in self._order:
            label = printable(path)
            if label in shown:
                continue
            shown.add(label)
            item: Piece | Skipped | None = None
            if room >= small:
                item = self._load(path, label)
            if isinstance(item, Piece):
                most = min(room, most_each or self._most(item, len(pieces), whole))
                fitting = item if item.tokens <= most else cut(item, most, self._about)
                item = fitting if fitting else Skipped(label, OVER_BUDGET)
            if isinstance(item, Piece):
                pieces.append(item)
                notes[label] = note
                room -= item.tokens
            else:
                left.append(item or Skipped(label, LOW))
        return pieces, notes, left

    def _most(self, piece: Piece, place: int, room: int) -> int:
        """Return the most tokens one file may take, of `room` for all; `place` counts the files before it."""
        if self._ranking.is_general:
            part = 10 if place < self._first else 12 if place < self._first + CENTRAL else 28
            most = max(min(MIN_STRUCTURE, least(room)), room // part)
        else:
            most = max(least(room), room // 6)
        if place < self._first:  # do not cut a list of project parts
            most = max(most, min(room // 3, essential(piece.text, piece.path) // 4 + MIN_STRUCTURE))
        return most

    def _load(self, path: str, label: str) -> Piece | Skipped:
        if path not in self._loaded:
            try:
                self._loaded[path] = piece_of(label, readable(self._tree.bytes_at(path, MAX_BYTES + 1), MAX_BYTES))
            except NotShowable as unfit:
                self._loaded[path] = Skipped(label, unfit.why)
            except OSError as error:
                self._loaded[path] = Skipped(label, _why(error))
        return self._loaded[path]

    def _overview(self, room: int) -> str:
        """Return folders, history, an outline for a general question, and all file names if they fit their share."""
        files, general = self._found.files, self._ranking.is_general
        share = room // 6 if general else room // 3
        parts = [("Folders", outline.within(self._folders, share))]
        if self._found.commits:
            parts.append(("Recent history", outline.within(self._history(), share)))
        if general:
            parts += [("Modules", self._modules(room // 2)), ("Imports", outline.within(self._links(), share))]
        names = [printable(path) for path in files]
        if estimate_tokens("\n".join(names)) <= share:
            parts.append(("All files", names))
        return "".join(f"\n## {title}\n\n{fenced(visible(chr(10).join(lines)))}" for title, lines in parts if lines)

    def _modules(self, room: int) -> list[str]:
        """Return the descriptions of the most important modules that fit into `room` tokens, sorted by path."""
        lines: dict[str, str] = {}
        for item in self._central():
            line = outline.line_of(printable(item.path), item.importers, self._said(item.path))
            room -= estimate_tokens(f"{line}\n")
            if room < 0:
                break
            lines[item.path] = line
        return [lines[path] for path in sorted(lines)]

    def _links(self) -> list[str]:
        found = (
            outline.links_of(
                printable(item.path),
                [printable(path) for path in self._ranking.imports(item.path)],
                [printable(path) for path in self._ranking.importers.get(item.path, ())],
            )
            for item in self._central()[:LINKED]
        )
        return [line for line in found if line]

    def _central(self) -> list[Ranked]:
        """Return the source files without tests, the most important first."""
        return [item for item in self._ranked if kind(item.path) == 1.0 and not is_test(item.path)]

    def _said(self, path: str) -> str:
        try:
            head = self._tree.bytes_at(path, outline.HEAD).decode("utf-8", "replace")
        except OSError:
            return ""
        said = outline.says(path, head)
        return "" if secret_in(said) else said

    def _history(self) -> list[str]:
        often = sorted(self._found.changed.items(), key=lambda item: (-item[1], item[0]))[:COMMITS]
        lines = [f"{count:>4} {printable(path)}" for path, count in often]
        return [
            *self._found.commits,
            *([f"Changed most often in the last {CHANGES} commits:", *lines] if lines else []),
        ]


def _first(files: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the files shown for every question, with a note: the README, then manifests in the top folder."""
    top = [path for path in files if "/" not in path]
    yield from ((path, "; README") for path in top if path.lower().partition(".")[0] == "readme")
    yield from ((path, "; manifest") for path in _MANIFESTS.split() if path in top)


def _note(number: int, item: Ranked) -> str:
    words = f" by {', '.join(code_span(term) for term in item.matches[:6])}" if item.matches else ""
    known = f", imported by {item.importers}" if item.importers else ""
    return f"; rank {number}{words}{known}"
