"""Builds the import graph of a repository and computes how central each file is. Pure.

Imports are read with regular expressions and resolved by paths, which is fast and exact enough for ranking. An import
that cannot be resolved inside the repository (a library, a sentence that looks like an import) is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

_DAMPING = 0.85  # the usual constant of PageRank
_ROUNDS = 15  # iterations of PageRank; later changes do not affect any order that matters
_MOST = 400  # imports resolved per file
_DECLARED = 16_384  # bytes at the start of a JVM file that are searched for class names of its own package
_SPREAD = 12  # files of a package among which an import of the whole package is shared

_FAMILIES = {
    **dict.fromkeys(("py", "pyi"), "python"),
    **dict.fromkeys(("js", "mjs", "cjs", "jsx", "ts", "mts", "cts", "tsx", "vue", "svelte"), "script"),
    **dict.fromkeys(("java", "kt", "kts", "scala", "groovy"), "jvm"),
    **dict.fromkeys(("c", "h", "cc", "cpp", "cxx", "hh", "hpp", "hxx", "m", "mm"), "c"),
    **{"go": "go", "rs": "rust", "rb": "ruby", "php": "php"},
}
_FOLDER_FILE = {"python": "__init__", "script": "index", "rust": "mod"}  # the file that represents its folder
_IMPLEMENTS = ("c", "cc", "cpp", "cxx", "m", "mm")
_CRATE_ROOTS = ("lib", "main")

_PYTHON = re.compile(
    rb"\n[ \t]*(?:from[ \t]{1,9}(\.{0,20}[\w.]{0,200})[ \t]{1,9}import[ \t]{1,9}"
    rb"(\([^)]{0,4000}|(?:[^\n;#(\\]|\\\r?\n){1,1000})"
    rb"|import[ \t]+([\w., \t]{1,400}))"
)
_COMMENT = re.compile(rb"#[^\n]*")
_SCRIPT = tuple(
    re.compile(rb"""%b[ \t]{0,9}\(?[ \t]{0,9}["']([^"'\n]{1,200})["']""" % word)
    for word in (b"from", b"import", b"require")
)
_GO = re.compile(rb'\nimport[ \t]+(?:[\w.]+[ \t]+)?"([^"\n]{1,200})"|\nimport[ \t]*\(([^)]{0,8000})\)')
_RUST_MOD = re.compile(rb"\n[ \t]*(?:pub(?:\([^)\n]{0,80}\))?[ \t]+)?mod[ \t]+(\w{1,80})[ \t]*;")
_RUST_USE = re.compile(rb"\n[ \t]*(?:pub(?:\([^)\n]{0,80}\))?[ \t]+)?use[ \t]+(?:::)?([\w:]{1,200})(\{[^;]{0,2000})?")
_RUST_INNER = re.compile(rb"(?<=[{,])\s*(\w+(?:::\w+)*)")
_JVM = re.compile(rb"\nimport[ \t]+(?:static[ \t]+)?([\w.]{1,200}?)(\.\*|;|[ \t\r]*\n)")
_CLASS = re.compile(rb"\b[A-Z]\w{1,80}")
_C = re.compile(rb'#[ \t]*(?:include|import)[ \t]*(?:"([^"\n]{1,200})"|<([^>\n]{1,200}/[^>\n]{1,200})>)')
_RUBY = re.compile(rb"""\n[ \t]*require(_relative)?[ \t(]+["']([^"'\n]{1,200})["']""")
_PHP = re.compile(rb"\nuse[ \t]+([\w\\]{1,200})")
_QUOTED = re.compile(rb'"([^"\n]{1,200})"')
# The module name that a manifest gives to its folder, as importers use it.
_NAMED = {
    "go.mod": re.compile(rb"^module[ \t]+(\S{1,200})", re.M),
    "Cargo.toml": re.compile(rb'^name[ \t]*=[ \t]*"([\w-]{1,100})"', re.M),
    "package.json": re.compile(rb'"name"[ \t]*:[ \t]*"([^"\n]{1,100})"'),
}


class Imports:
    """Collects files with `add`, one after the other; then `edges` returns which file imports which."""

    def __init__(self) -> None:
        self._wishes: dict[str, tuple[str, ...]] = {}
        self._classes: dict[str, set[bytes]] = {}  # class names in JVM files: the same package needs no import
        self._sizes: dict[str, int] = {}
        self._named: dict[tuple[str, str], str] = {}  # (manifest, imported name) to folder

    def add(self, path: str, data: bytes) -> None:
        """Read the imports of a file. For speed, each pattern begins with fixed text such as a line break."""
        folder, _, name = path.rpartition("/")
        if (pattern := _NAMED.get(name)) and (found := pattern.search(data)):
            called = _text(found[1])
            self._named[name, called.replace("-", "_") if name == "Cargo.toml" else called] = folder
        if family := family_of(path):
            self._sizes[path] = len(data)
            if family == "jvm":
                self._classes[path] = set(_CLASS.findall(data, 0, _DECLARED))
            self._wishes[path] = tuple(dict.fromkeys(_READERS[family](b"\n" + data)))[:_MOST]

    def edges(self) -> dict[str, dict[str, float]]:
        """Return the weights of each file's imports, by file. An import of a package is shared among its files."""
        found = _Index(self._sizes, self._named)
        edges: dict[str, dict[str, float]] = {}
        for path, wishes in sorted(self._wishes.items()):
            mine: dict[str, float] = {}
            for wish in wishes:
                targets = [target for target in found.resolve(path, wish) if target != path]
                for target in targets:
                    mine[target] = max(mine.get(target, 0.0), 1 / len(targets))
            for target in found.classes(path, self._classes.get(path, set())):
                mine[target] = 1.0
            edges[path] = mine
        return edges


@lru_cache(65_536)
def family_of(path: str) -> str:
    """Return the language family of a file, by its extension; "" if its imports are not supported."""
    return _FAMILIES.get(path.rpartition(".")[2].lower(), "") if "." in path else ""


Edges = Mapping[str, Mapping[str, float]]


def two_ways(edges: Edges, apart: Callable[[str], bool]) -> dict[str, dict[str, float]]:
    """Return the import graph with every edge in both directions, without the imports of files that are `apart`.

    An edge weighs less, the more edges its target has: a file that many import says little about its importers.
    """
    kept = {path: {} if apart(path) else targets for path, targets in edges.items()}
    incoming: dict[str, int] = {}
    for targets in kept.values():
        for target in targets:
            incoming[target] = incoming.get(target, 0) + 1
    found: dict[str, dict[str, float]] = {path: {} for path in edges}
    for path, targets in kept.items():
        for target, weight in targets.items():
            found[path][target] = found[path].get(target, 0.0) + weight / (1 + incoming[target])
            found[target][path] = found[target].get(path, 0.0) + weight / (1 + len(targets))
    return found


def page_rank(edges: Edges, seeds: Mapping[str, float]) -> dict[str, float]:
    """Return the personalised PageRank of each file in `edges`: the walk starts at `seeds` and follows the edges."""
    names = list(edges)
    number = {name: index for index, name in enumerate(names)}
    total = sum(seeds.get(name, 0.0) for name in names)
    start = [seeds.get(name, 0.0) / total if total else 1 / max(1, len(names)) for name in names]
    ways = []
    for name in names:
        weight = sum(edges[name].values())
        ways.append([(number[to], share / weight) for to, share in edges[name].items()])
    rank = start
    for _ in range(_ROUNDS):
        fresh, lost = [0.0] * len(names), 0.0
        for here, out in zip(rank, ways, strict=True):
            if not out:
                lost += here
            for to, share in out:
                fresh[to] += here * share
        rank = [
            _DAMPING * (came + lost * begun) + (1 - _DAMPING) * begun
            for came, begun in zip(fresh, start, strict=True)
        ]
    return dict(zip(names, rank, strict=True))


# -- what a file says ------------------------------------------------------------------------------


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _python(data: bytes) -> Iterator[str]:
    """Yield modules as "a.b" and names from a module as "a.b.name", with leading dots as written."""
    for match in _PYTHON.finditer(data):
        if match[3]:
            yield from (_text(part.split()[0]) for part in match[3].split(b",") if part.split())
            continue
        module = _text(match[1])
        listed = _COMMENT.sub(b"", match[2]).replace(b"\\", b" ").lstrip(b"( \t").split(b",")
        names = [words[0] for part in listed if (words := part.split())]
        for name in names:
            yield f"{module}{'' if module.endswith('.') else '.'}{_text(name)}"


def _script(data: bytes) -> Iterator[str]:
    return (_text(wish) for pattern in _SCRIPT for wish in pattern.findall(data))


def _go(data: bytes) -> Iterator[str]:
    for one, block in _GO.findall(data):
        yield from map(_text, [one] if one else _QUOTED.findall(block))


def _rust(data: bytes) -> Iterator[str]:
    """Yield uses as "a::b", and declared modules as "mod a"."""
    yield from (f"mod {_text(name)}" for name in _RUST_MOD.findall(data))
    for head, braces in _RUST_USE.findall(data):
        base = _text(head).strip(":")
        inner = [f"{base}::{_text(name)}" for name in _RUST_INNER.findall(braces)]
        yield from inner or [base]


def _jvm(data: bytes) -> Iterator[str]:
    """Yield imports as "a.b.C" or "a.b.*"."""
    for name, end in _JVM.findall(data):
        yield _text(name) + (".*" if end == b".*" else "")


def _c(data: bytes) -> Iterator[str]:
    return (_text(quoted or angled) for quoted, angled in _C.findall(data))


def _ruby(data: bytes) -> Iterator[str]:
    return (f"{'./' if relative else ''}{_text(name)}" for relative, name in _RUBY.findall(data))


def _php(data: bytes) -> Iterator[str]:
    return (_text(name).replace("\\", "/") for name in _PHP.findall(data))


_READERS: Mapping[str, Callable[[bytes], Iterator[str]]] = {
    "python": _python, "script": _script, "go": _go, "rust": _rust, "jvm": _jvm, "c": _c, "ruby": _ruby, "php": _php,
}  # fmt: skip


# -- which file is meant ---------------------------------------------------------------------------


class _Index:
    """The files of a repository, indexed by the names under which they can be imported."""

    def __init__(self, sizes: Mapping[str, int], named: Mapping[tuple[str, str], str]) -> None:
        self._sizes, self._named = sizes, named
        self._keys: dict[tuple[str, str], str] = {}  # (family, path as it is imported) to the file's path
        self._tails: dict[tuple[str, str], list[str]] = {}  # (family, last part of a key) to keys
        self._folders: dict[tuple[str, str], list[str]] = {}
        self._stems: dict[str, dict[bytes, str]] = {}
        for path in sorted(sizes):
            family, folder = family_of(path), path.rpartition("/")[0]
            key = _key(family, path)
            if (family, key) not in self._keys:
                self._keys[family, key] = path
                self._tails.setdefault((family, key.rpartition("/")[2]), []).append(key)
            self._folders.setdefault((family, folder), []).append(path)

    def resolve(self, path: str, wish: str) -> list[str]:
        """Return the files of the repository that the import `wish` in the file `path` refers to."""
        family = family_of(path)
        folder = path.rpartition("/")[0]
        match family:
            case "python":
                return self._python(folder, path, wish)
            case "script":
                return self._script(folder, path, wish)
            case "go":
                return self._package("go", self._within("go.mod", wish, "/"), path)
            case "rust":
                return self._rust(folder, path, wish)
            case "jvm":
                return self._jvm(path, wish)
            case "c":
                return self._c(folder, path, wish)
        if wish.startswith("."):
            return self._at(family, _joined(folder, wish))
        return self._near(family, wish, path)

    def _python(self, folder: str, path: str, wish: str) -> list[str]:
        module = wish.lstrip(".")
        dots, parts = len(wish) - len(module), [part for part in module.split(".") if part]
        for end in (len(parts), len(parts) - 1):
            tail = "/".join(parts[:end])
            if dots:
                found = self._at("python", _joined(folder, "/".join([*[".."] * (dots - 1), tail])))
            elif "/" in tail:
                found = self._near("python", tail, path)
            elif tail:  # one word may also name a library: accept only a sibling or a top-level package
                found = self._at("python", _joined(folder, tail)) or self._top(tail, path)
            else:
                break
            if found:
                return found
        return []

    def _top(self, name: str, path: str) -> list[str]:
        keys = self._tails.get(("python", name), ())
        tops = [key for key in keys if ("python", key.rpartition("/")[0]) not in self._keys]
        packages = [key for key in tops if self._keys["python", key].endswith("/__init__.py")]
        return self._nearest("python", packages, path)

    def _script(self, folder: str, path: str, wish: str) -> list[str]:
        wish = wish.partition("?")[0]
        stem, _, suffix = wish.rpartition(".")
        wish = stem if suffix in _FAMILIES else wish
        if wish.startswith("."):
            return self._at("script", _joined(folder, wish))
        if wish.startswith(("@/", "~/", "#/", "src/")):
            return self._near("script", wish.lstrip("@~#/"), path)
        home = self._within("package.json", wish, "/")
        if home is None:
            return []
        ways = (home, f"{home}/src", f"{home}/lib", home.replace("/", "/src/", 1))
        return next((found for way in ways if (found := self._at("script", way.strip("/")))), [])

    def _rust(self, folder: str, path: str, wish: str) -> list[str]:
        stem = path.rpartition("/")[2].rpartition(".")[0]
        inside = folder if stem in ("mod", *_CRATE_ROOTS) else f"{folder}/{stem}".strip("/")
        if wish.startswith("mod "):
            return self._at("rust", _joined(inside, wish[4:])) or self._at("rust", _joined(folder, wish[4:]))
        first, *rest = wish.split("::")
        while first == "super" and rest[:1] == ["super"]:
            inside, rest = inside.rpartition("/")[0], rest[1:]
        root = {"self": inside, "super": inside.rpartition("/")[0], "crate": self._crate(folder)}.get(first)
        if root is None:
            home = self._named.get(("Cargo.toml", first))
            root = None if home is None else f"{home}/src".strip("/")
        if root is None:
            return []
        for end in range(len(rest), -1, -1):
            if found := self._at("rust", _joined(root, "/".join(rest[:end]))):
                return found
        return next((found for name in _CRATE_ROOTS if (found := self._at("rust", _joined(root, name)))), [])

    def _crate(self, folder: str) -> str:
        """Return the folder of the crate's root file, at or above `folder`."""
        place = folder
        while True:
            if any(("rust", _joined(place, name)) in self._keys for name in _CRATE_ROOTS):
                return place
            if not place:
                return folder
            place = place.rpartition("/")[0]

    def _jvm(self, path: str, wish: str) -> list[str]:
        parts = wish.split(".")
        if parts[-1] == "*":
            tail = "/".join(parts[:-1])
            folders = [name for family, name in self._folders if family == "jvm" and f"/{name}".endswith(f"/{tail}")]
            return self._package("jvm", folders[0] if folders else None, path) or self._near("jvm", tail, path)
        ends = range(len(parts), max(1, len(parts) - 2), -1)
        return next((found for end in ends if (found := self._near("jvm", "/".join(parts[:end]), path))), [])

    def classes(self, path: str, names: set[bytes]) -> list[str]:
        """Return the files of the same folder that define the classes `names`, by file name."""
        if not names:
            return []
        folder = path.rpartition("/")[0]
        if folder not in self._stems:
            files = self._folders.get(("jvm", folder), ())
            self._stems[folder] = {
                file.rpartition("/")[2].rpartition(".")[0].encode("utf-8", "surrogateescape"): file for file in files
            }
        stems = self._stems[folder]
        return sorted(stems[name] for name in names & stems.keys() if stems[name] != path)

    def _c(self, folder: str, path: str, wish: str) -> list[str]:
        found = self._at("c", _joined(folder, wish)) or self._near("c", wish, path)
        # An include of a header also counts as a use of its implementation file.
        bodies = [f"{name.rpartition('.')[0]}.{ending}" for name in found for ending in _IMPLEMENTS]
        return [*found, *(name for name in bodies if name in self._sizes and name != path)]

    def _within(self, manifest: str, wish: str, sign: str) -> str | None:
        """Return the folder that an import such as "module/a/b" refers to, using the module names in manifests."""
        parts = wish.split(sign)
        for end in range(len(parts), 0, -1):
            home = self._named.get((manifest, sign.join(parts[:end])))
            if home is not None:
                return "/".join([*([home] if home else []), *parts[end:]])
        return None

    def _package(self, family: str, folder: str | None, path: str) -> list[str]:
        """Return the files that an import of a folder refers to: the largest ones, without tests."""
        files = [name for name in self._folders.get((family, folder or ""), ()) if "_test." not in name]
        if folder is None or path in files:
            return []
        return sorted(files, key=lambda name: (-self._sizes[name], name))[:_SPREAD]

    def _at(self, family: str, key: str) -> list[str]:
        found = self._keys.get((family, key))
        return [found] if found else []

    def _near(self, family: str, tail: str, path: str) -> list[str]:
        """Return the file whose path ends in `tail`; if there are several, the one nearest to `path`."""
        keys = self._tails.get((family, tail.rpartition("/")[2]), ())
        return self._nearest(family, [key for key in keys if f"/{key}".endswith(f"/{tail}")], path)

    def _nearest(self, family: str, keys: list[str], path: str) -> list[str]:
        if not keys:
            return []
        best = min(keys, key=lambda key: (-_shared(key, path), key.count("/"), key))
        return [self._keys[family, best]]


def _key(family: str, path: str) -> str:
    """Return a path as imports name it: without its extension; for a file such as `__init__.py`, its folder."""
    if family == "c":
        return path
    folder, _, name = path.rpartition("/")
    stem = name.removesuffix(".d.ts") if name.endswith(".d.ts") else name.rpartition(".")[0]
    return folder if stem == _FOLDER_FILE.get(family) else f"{folder}/{stem}".lstrip("/")


def _joined(folder: str, tail: str) -> str:
    """Join a folder and a relative path, resolving `.` and `..`."""
    parts: list[str] = []
    for part in f"{folder}/{tail}".split("/"):
        if part == ".." and parts:
            parts.pop()
        elif part not in ("", ".", ".."):
            parts.append(part)
    return "/".join(parts)


def _shared(a: str, b: str) -> int:
    """Count the leading path components that two paths share."""
    count = 0
    for one, other in zip(a.split("/"), b.split("/"), strict=False):
        if one != other:
            break
        count += 1
    return count
