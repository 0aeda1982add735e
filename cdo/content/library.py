"""Content files: presets, protocols, briefs, roles, provider tables. Data, loaded one by one when needed.

A document is looked up by its name ("presets/think", "templates/roles/critic") in the nearest `.cdo/` folder if that
project is trusted (`project`), then in the user's folder, then among the files that ship with cdo. The first match
counts; files are not merged. Templates are rendered by Jinja2 in strict and sandboxed mode: an unknown variable is an
error, and text of a model or a person is only ever the value of a variable.
"""

from __future__ import annotations

import errno
import os
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec import Struct, field

from cdo.content.project import CONFIG, FOLDERS, SUFFIXES, ProjectFolder, is_there, read_content, read_project
from cdo.core.errors import ContentError
from cdo.core.schema import Schema, SchemaError, fitted, keys_at

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.sandbox import SandboxedEnvironment

FIX = "Fix the file and run again."
MODEL = TypeVar("MODEL", bound=Schema)

_HERE = Path(__file__).resolve().parents[1]
# A wheel carries the folders inside the package; a checkout has them beside it.
PACKAGED = _HERE / "data" if (_HERE / "data").is_dir() else _HERE.parent


class ContentFile(Struct, frozen=True):
    """One content file: its name, where it was found, its front matter (or YAML), its body and where that starts."""

    name: str
    path: Path
    meta: Mapping[str, Any]
    body: str
    first_line: int = 1


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder, hidden things (also editors' lock files) left out; [] where there is none."""
    try:
        return [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    except OSError:
        return []


def user_folder() -> Path:
    """Where a person keeps settings and content of their own (`CDO_CONFIG_DIR` moves it)."""
    if custom := os.environ.get("CDO_CONFIG_DIR"):
        return Path(custom).expanduser()
    import platformdirs

    return Path(platformdirs.user_config_dir("cdo"))


class Library(Struct, dict=True):  # for the cached property
    """The content visible from a working directory. `opened` lists the names that were read, in order.

    `project` has the files of the project's `.cdo`, trusted or not. Only a trusted one is among the `roots`.
    """

    roots: tuple[tuple[str, Path], ...]
    project: ProjectFolder | None = None
    opened: list[str] = field(default_factory=list)
    _found: dict[str, tuple[str, Path]] = field(default_factory=dict)
    _data: dict[str, bytes] = field(default_factory=dict)
    _names: dict[str, list[str]] = field(default_factory=dict)
    _loaded: dict[str, ContentFile] = field(default_factory=dict)
    _checked: dict[tuple[str, type[Schema]], Schema] = field(default_factory=dict)
    _templates: dict[str, Template] = field(default_factory=dict)

    @classmethod
    def at(cls, directory: Path, *, trust_now: bool = False) -> Library:
        """The library as seen from `directory`: the trusted project, the user's folder, the packaged files.

        With `trust_now` the project is trusted from now on. Raises `ConfigError` as `read_project` does.
        """
        project = read_project(directory, trust_now=trust_now)
        roots = [("project", project.folder)] if project and project.trusted else []
        return cls((*roots, ("user", user_folder()), ("packaged", PACKAGED)), project)

    def config_files(self) -> list[Path]:
        """The files of settings, strongest first, whether or not they exist; a project's also before its trust."""
        waiting = [self.project.folder] if self.project and not self.project.trusted else []
        roots = (root for source, root in self.roots if source != "packaged")
        return [root / CONFIG for root in (*waiting, *roots)]

    def waiting(self) -> list[str]:
        """The full names of the project's content files that wait for trust."""
        return self.project.names() if self.project and not self.project.trusted else []

    def has(self, name: str) -> bool:
        """True if there is a document of this full name."""
        return self._place(name) is not None

    def names(self, folder: str) -> list[str]:
        """The names of all documents in `folder` ("presets", "templates/roles"), sorted, without it.

        They are those of the first time that this is asked for.
        """
        if folder not in self._names:
            entries = [entry for _, root in self.roots for entry in _entries(root / folder)]
            found = [entry for entry in entries if entry.name.endswith(SUFFIXES) and entry.is_file()]
            self._names[folder] = sorted({entry.name.rpartition(".")[0] for entry in found})
        return self._names[folder]

    def every(self) -> Iterator[str]:
        """The full names of all documents."""
        for folder in FOLDERS:
            subfolders = {entry.name for _, root in self.roots for entry in _entries(root / folder) if entry.is_dir()}
            for place in (folder, *(f"{folder}/{sub}" for sub in sorted(subfolders))):
                yield from (f"{place}/{name}" for name in self.names(place))

    def _place(self, name: str) -> tuple[str, Path] | None:
        inside = name.startswith(FOLDERS) and ".." not in name
        for source, root in self.roots if inside else ():
            for suffix in SUFFIXES:
                if is_there(path := root / f"{name}{suffix}", Path.is_file):
                    return source, path
        return None

    def find(self, name: str) -> tuple[str, Path]:
        """Return (source, path) of the winner for a full name; raise `ContentError` naming the nearest."""
        if found := self._found.get(name) or self._place(name):
            return self._found.setdefault(name, found)
        if name in self.waiting() and self.project:
            raise ContentError(
                f"{name} is a file of this project ({self.project.folder}), which you do not trust as it is now.",
                "Read the files in that folder, then pass --trust.",
            )
        import difflib

        folder, _, last = name.rpartition("/")
        places = [full.rpartition("/") for full in self.every()]
        here = [place for place in places if place[0] == folder] or places
        close = difflib.get_close_matches(last, [found for *_, found in here], n=3)
        near = ["".join(place) for found in close for place in here if place[2] == found]
        hint = f"Did you mean {', '.join(near)}?" if near else "`cdo content list` shows what there is."
        raise ContentError(f"There is no content file called {name}.", hint)

    def resolve(self, name: str) -> str:
        """The full name for what a person typed: "think" becomes "presets/think" where that is clear."""
        name = name.removesuffix(".md").removesuffix(".yaml")
        if "/" in name:
            return name
        matches = [full for full in self.every() if full.rpartition("/")[2] == name]
        if len(matches) > 1:
            raise ContentError(f"`{name}` could be {' or '.join(matches)}.", "Give the full name.")
        return matches[0] if matches else name

    def data(self, name: str) -> bytes:
        """The bytes of one document, read once; raise `ContentError` where they cannot be read."""
        if name not in self._data:
            source, path = self.find(name)
            own = self.project if source == "project" else None
            below = f"{name}{path.suffix}"
            if own and below in own.files:  # the bytes that were trusted, whatever the file holds by now
                self._data[name] = own.files[below]
                return self._data[name]
            root = next(root for kind, root in self.roots if kind == source)
            try:
                data = read_content(path, root.parent if source == "project" else None)
            except OSError as error:
                fix = FIX if error.errno == errno.EFBIG else "Fix its permissions and run again."
                raise ContentError(f"{path} cannot be read: {error.strerror}.", fix) from None
            if own:
                raise ContentError(f"{path} has changed since the project was trusted.", "Pass --trust again.")
            self._data[name] = data
        return self._data[name]

    def load(self, name: str) -> ContentFile:
        """Read one document; raise `ContentError` naming file, line and column of what is wrong."""
        if name not in self._loaded:
            self._loaded[name] = _document(name, self.find(name)[1], self.data(name))
            self.opened.append(name)
        return self._loaded[name]

    def read(self, name: str, schema: type[MODEL]) -> tuple[MODEL, str]:
        """Load a document whose keys are those of `schema`, checked once; return (its values, its body)."""
        document = self.load(name)
        if (name, schema) not in self._checked:
            self._checked[name, schema] = checked(schema, document.meta, document.path)
        return cast("MODEL", self._checked[name, schema]), document.body

    def template(self, name: str) -> Template:
        """The template of a document's body, compiled once; raise `ContentError` naming file and line."""
        if name not in self._templates:
            document = self.load(name)
            from jinja2 import TemplateSyntaxError

            try:
                self._templates[name] = self._compiled(document)
            except TemplateSyntaxError as error:
                where = f"{document.path}: line {document.first_line + error.lineno - 1}"
                raise ContentError(f"{where}: {error.message}", FIX) from None
            except (ValueError, RecursionError, SyntaxError, MemoryError):
                raise ContentError(f"{document.path} cannot be compiled: it is nested too deeply.", FIX) from None
        return self._templates[name]

    def _compiled(self, document: ContentFile) -> Template:
        """Compile a document's body; the compiled form of one that ships with cdo is kept for the next process."""
        if not document.path.is_relative_to(PACKAGED):
            return self._jinja.from_string(document.body)
        from cdo.content.compiled_templates import compiled

        code = compiled(self._jinja, document.name, document.body)
        return self._jinja.template_class.from_code(self._jinja, code, self._jinja.make_globals(None))

    def render(self, name: str, values: Mapping[str, Any], block: str = "") -> str:
        """Render a document's body (or one `{% block %}` of it) with `values`; raise `ContentError`."""
        return self.render_all(name, values, (block,))[0]

    def render_all(self, name: str, values: Mapping[str, Any], blocks: Sequence[str]) -> list[str]:
        """Render several blocks of a document ("" is its whole body) with the same `values`; raise `ContentError`."""
        template, document = self.template(name), self.load(name)
        if missing := [block for block in blocks if block and block not in template.blocks]:
            raise ContentError(f"{document.path} has no block called {missing[0]}.", FIX)
        writers = [template.blocks[block] if block else template.root_render_func for block in blocks]
        try:
            context = template.new_context(dict(values))
            return ["".join(write(context)).strip() for write in writers]
        except Exception as error:  # whatever the expressions of a template can raise
            frames = traceback.extract_tb(error.__traceback__)
            lines = [frame.lineno for frame in frames if frame.filename == "<template>" and frame.lineno]
            number = template.get_corresponding_lineno(lines[-1]) + document.first_line - 1 if lines else 1
            raise ContentError(f"{document.path}: line {number}: {error}", FIX) from None

    @cached_property
    def _jinja(self) -> SandboxedEnvironment:
        from jinja2 import StrictUndefined
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        # Prompts are plain text for a model: there is no markup to escape.
        found = ImmutableSandboxedEnvironment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
        found.filters |= {"within": within, "attribute": attribute, "line": line}
        for name in ("random", "pprint"):  # a prompt is the same each time it is made
            del found.filters[name]
        del found.globals["lipsum"]
        return found


def _document(name: str, path: Path, data: bytes) -> ContentFile:
    from cdo.formats import strict_yaml
    from cdo.formats.markdown import line_breaks, split_front_matter

    try:
        text = line_breaks(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ContentError(f"{path} is not UTF-8 text.", "Convert it to UTF-8 and run again.") from None
    block, body = (text, "") if path.suffix == ".yaml" else split_front_matter(text)
    if block is None and text.startswith("---\n"):
        raise ContentError(f"{path}: line 1: the front matter has no end. Close it with a second line `---`.", FIX)
    try:
        meta = strict_yaml.load(block or "", max_bytes=65_536)
    except strict_yaml.YamlProblem as problem:
        raise ContentError(f"{path}: {problem}.", FIX) from None
    if not isinstance(meta, dict | None):
        raise ContentError(f"{path}: the top level must be a mapping of keys.", FIX)
    above = text[: max(0, len(text.rstrip("\n")) - len(body))].count("\n")
    return ContentFile(name, path, meta or {}, body, above + 1)


def checked(schema: type[MODEL], values: Mapping[str, Any], path: Path | str, fix: str = FIX) -> MODEL:
    """Fit `values` of the file `path` to `schema`; raise `ContentError` naming file and key, and the allowed keys."""
    try:
        return fitted(schema, schema.written_out(values))
    except SchemaError as error:
        found = error
    key = f"`{'.'.join(map(str, found.place))}`"
    said = f"{key}{':' * (found.kind == 'value')} {found.why}" if found.place else found.why
    if found.kind == "value":
        raise ContentError(f"{path}: {said}.", fix)
    import difflib  # lazily: needed only to explain an error

    keys = keys_at(schema, found.place[:-1])
    near = difflib.get_close_matches(str(found.place[-1]), keys, n=1) if found.kind == "unknown" else []
    meant = f"Did you mean `{near[0]}`? " if near else ""
    raise ContentError(f"{path}: {said}.", f"{meant}Allowed keys: {', '.join(keys)}.")


def within(text: str, tag: str) -> str:
    """`text` such that it cannot close the tag it is shown in."""
    if "<" not in text:
        return text
    return re.sub(rf"<(?=[\s/]*{re.escape(tag)}\b)", "‹", text, flags=re.IGNORECASE)


def attribute(text: str) -> str:
    """`text` as it can stand between the quotes of a tag's attribute."""
    return line(re.sub(r"[<>\"]+", " ", text), 300)


def line(text: str, limit: int = 600) -> str:
    """`text` on one line of at most `limit` characters: it cannot pass for a heading or a rule of the prompt."""
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
