"""The tools of a model in a repository: what they answer, what they never show, and that they always answer."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdo.content.library import Library
from cdo.core.errors import ContentError
from cdo.repository import tools, visible_files
from cdo.repository.tools import MAX_ANSWER, Tools
from cdo.repository.visible_files import Tree
from tests.support.effort import at_most
from tests.support.harness import ROOT
from tests.unit.repository.test_context import KEY, git, write

LIBRARY = Library.at(Path("/"))


def use(root: Path, name: str, **arguments: Any) -> str:
    """The answer to one use, which every answer's rules hold for."""
    box = Tools(root, LIBRARY)
    answer = box.run(name, json.dumps(arguments))
    assert answer and len(answer.encode()) <= MAX_ANSWER
    assert not any(char < " " and char not in "\n\t" for char in answer)
    assert box.run(name, json.dumps(arguments)) == answer
    return answer


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with everything in it that must not be shown."""
    top = tmp_path / "top"
    top.mkdir()
    git(top, "init", "-q", "--template=")
    (tmp_path / "outside.txt").write_text("outside MARKER\n")
    write(top, {"src/a.py": "import os\n\n\ndef f():\n    return 'MARKER'\n", "README.md": "# Top\nMARKER\n"})
    write(top, {".env": "A=MARKER", "id_rsa": "MARKER", ".gitignore": "build/\n*.log\n", "build/o.py": "MARKER"})
    write(top, {"x.log": "MARKER", "bin.dat": b"MARKER\0", "key.py": f"k = 'ghp_{KEY[:36]}' # MARKER"})
    write(top, {"node_modules/m/i.js": "MARKER", ".git/info/x": "MARKER", "huge.txt": "MARKER\n" * 200_000})
    write(top, {"sub/.git/HEAD": "MARKER", "sub/b.py": "b MARKER", "latin.txt": "é MARKER".encode("latin-1")})
    for name, target in {"out": "../outside.txt", "up": "..", "pw": "/etc/passwd", "in": "src", "s": ".env"}.items():
        (top / name).symlink_to(target)
    os.mkfifo(top / "pipe.txt")
    return top


# -- what models are told -------------------------------------------------------------------------


def test_schemas_are_those_of_functions() -> None:
    found = {schema["name"]: schema for schema in Tools(Path("/"), LIBRARY).schemas()}
    assert list(found) == ["list", "read", "search"] and all(schema["description"] for schema in found.values())
    parameters = {name: schema["parameters"] for name, schema in found.items()}
    assert {name: value["required"] for name, value in parameters.items()} == {
        "list": [],
        "read": ["path"],
        "search": ["pattern"],
    }
    kinds = {(name, key): value["type"] for name, p in parameters.items() for key, value in p["properties"].items()}
    assert kinds == {
        ("list", "path"): "string", ("list", "depth"): "integer",
        ("read", "path"): "string", ("read", "start"): "integer", ("read", "end"): "integer",
        ("search", "pattern"): "string", ("search", "path"): "string",
    }  # fmt: skip
    assert all(value["additionalProperties"] is False for value in parameters.values())
    assert all(value["description"] for p in parameters.values() for value in p["properties"].values())
    json.dumps(list(found.values()))


def test_the_limits_stand_in_the_content() -> None:
    box = Tools(Path("/"), LIBRARY)
    assert (box.max_requests, box.max_rounds) == (5, 3)
    more = Tools(Path("/"), LIBRARY, (12, 6))
    assert (more.max_requests, more.max_rounds) == (12, 6)


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("  search:", "  grep:", "exactly list(path, depth); read(path, start, end); search(pattern, path)"),
        ("      depth:", "      levels:", "exactly list(path, depth)"),
        ("max_rounds: 3", "max_rounds: -1", "max_rounds"),
        ("max_rounds: 3", "rounds: 3", "`rounds` is not an allowed key"),
    ],
)
def test_content_that_describes_other_tools_is_refused(tmp_path: Path, old: str, new: str, word: str) -> None:
    text = LIBRARY.find("dispatch/tools")[1].read_text()
    assert text.count(old) == 1
    write(tmp_path, {".cdo/dispatch/tools.yaml": text.replace(old, new)})
    with pytest.raises(ContentError) as caught:
        Tools(tmp_path, Library.at(tmp_path, trust_now=True))
    assert word in caught.value.message + caught.value.hint and "tools.yaml" in caught.value.message


# -- list -----------------------------------------------------------------------------------------


def test_list(root: Path) -> None:
    assert use(root, "list").split("\n") == [
        ".env (may hold secrets, by its name)",
        ".gitignore",
        "README.md",
        "bin.dat",
        "huge.txt (over 1 MB)",
        "id_rsa (may hold secrets, by its name)",
        "in (symbolic link)",
        "key.py",
        "latin.txt",
        "node_modules/ (dependencies or a cache)",
        "out (symbolic link)",
        "pipe.txt (not a regular file)",
        "pw (symbolic link)",
        "s (symbolic link)",
        "up (symbolic link)",
        "src/a.py",
        "sub/b.py",
    ]
    assert use(root, "list", path="src") == use(root, "list", path="./src/") == use(root, "list", path="in")
    assert use(root, "list", path="src") == "src/a.py"
    assert use(root, "list", depth=1).split("\n")[-2:] == ["src/", "sub/"]


def test_list_opens_folders_to_a_depth(tmp_path: Path) -> None:
    write(tmp_path, {"a/b/c/d.py": "", "a/b/e.py": "", "a/f.py": ""})
    assert use(tmp_path, "list") == "a/f.py\na/b/"
    assert use(tmp_path, "list", depth=3) == "a/f.py\na/b/e.py\na/b/c/"
    assert use(tmp_path, "list", path="a", depth=1) == "a/f.py\na/b/"
    assert use(tmp_path, "list", path="a/b", depth=8) == "a/b/e.py\na/b/c/d.py"


def test_a_long_list_ends_with_what_to_do(tmp_path: Path) -> None:
    write(tmp_path, {f"d/{'x' * 60}{n:04}.py": "" for n in range(600)})
    answer = use(tmp_path, "list")
    assert answer.endswith("\n… and more. List a subfolder, or with less depth.") and len(answer) > MAX_ANSWER - 200
    (tmp_path / "empty").mkdir()
    assert use(tmp_path, "list", path="empty") == "The folder has no files that can be shown."


# -- read -----------------------------------------------------------------------------------------


def test_read(root: Path) -> None:
    text = "1| import os\n2| \n3| \n4| def f():\n5|     return 'MARKER'"
    assert use(root, "read", path="src/a.py") == f"Lines 1 to 5 of 5.\n{text}"
    assert use(root, "read", path="in/a.py") == use(root, "read", path=f"{root}/src/a.py")
    assert use(root, "read", path="src/a.py", start=4, end=4) == "Lines 4 to 4 of 5.\n4| def f():"
    assert use(root, "read", path="src/a.py", start="4", end=99).startswith("Lines 4 to 5 of 5.\n4| ")
    assert use(root, "read", path="src/a.py", start=None, end=None) == f"Lines 1 to 5 of 5.\n{text}"
    assert (
        use(root, "read", path="src/a.py", start=6) == "Error: the file has only 5 lines. Ask for lines that it has."
    )
    assert use(root, "read", path="src/a.py", start=3, end=2).startswith("Error: `end` (2) is before `start` (3)")


def test_a_long_file_comes_in_parts_that_make_up_the_whole(tmp_path: Path) -> None:
    lines = [f"line {n} é" + "x" * (n % 90) for n in range(3000)]
    write(tmp_path, {"a.txt": "\n".join(lines), "one.txt": "é" * 400_000, "none.txt": ""})
    got, start = [], 1
    while start:
        head, *shown = use(tmp_path, "read", path="a.txt", start=start).split("\n")
        got += shown
        start = int(head.rpartition("start=")[2].rstrip(".")) if "Read on" in head else 0
    assert got == [f"{n}| {line}" for n, line in enumerate(lines, 1)]
    long = use(tmp_path, "read", path="one.txt")
    assert long == f"Lines 1 to 1 of 1.\n1| {'é' * 1000}… (399,000 characters more)"
    assert use(tmp_path, "read", path="none.txt") == "The file is empty."


REFUSED = {
    ".env": "may hold secrets",
    "s": "may hold secrets",
    "id_rsa": "may hold secrets",
    "key.py": "seems to hold a GitHub token",
    ".git/info/x": "version control data",
    ".git": "version control data",
    "sub/.git/HEAD": "version control data",
    "build/o.py": "ignored by git",
    "x.log": "ignored by git",
    "bin.dat": "binary",
    "latin.txt": "not UTF-8",
    "huge.txt": "over 1 MB",
    "pipe.txt": "not a regular file",
    "out": "leads nowhere inside",
    "up/outside.txt": "leads nowhere inside",
    "up/top/src/a.py": "leads nowhere inside",
    "pw": "leads nowhere inside",
    "../outside.txt": "outside the repository",
    "src/../../outside.txt": "outside the repository",
    "/etc/passwd": "outside the repository",
    "//etc/passwd": "outside the repository",
    "~/.ssh/id_rsa": "outside the repository",
    "src": "a folder, not a file",
    "": "a folder, not a file",
    "README.md/x": "not there",
    "src/b.py": "not there. There is a.py.",
    "README.md\0": "not there",
    ".GIT/info/x": "not there",
    "n" * 4000: "not there",
}


@pytest.mark.parametrize("path", REFUSED)
def test_what_is_never_read(root: Path, path: str) -> None:
    answer = use(root, "read", path=path)
    assert answer.startswith("Error: ") and REFUSED[path] in answer and "MARKER" not in answer
    for name in ("list", "search"):
        if REFUSED[path] in ("outside the repository", "leads nowhere inside", "version control data"):
            answer = use(root, name, path=path, **({"pattern": "MARKER"} if name == "search" else {}))
            assert answer.startswith("Error: ") and "MARKER" not in answer


@pytest.mark.parametrize("mark", ["journal.jsonl", "calls/0001.jsonl"])
@pytest.mark.parametrize("place", ["tmp/cdo-x", "kept", "docs/a/cdo-old"])
def test_no_voice_reads_what_voices_said(tmp_path: Path, place: str, mark: str) -> None:
    write(tmp_path, {f"{place}/{name}": "MARKER\n" for name in ("session.yaml", "t1-critic.md", "skills/s.md", mark)})
    write(tmp_path, {"a.md": "MARKER\n", "src/session.yaml": "settings of another program\n"})
    (tmp_path / "link").symlink_to(place)
    (tmp_path / "one.md").symlink_to(f"{place}/t1-critic.md")
    git(tmp_path, "init", "-q", "--template=")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "with a session")
    for path in (place, "link", f"{place}/skills", f"{place}/../{Path(place).name}"):
        for name, more in (("list", {}), ("search", {"pattern": "MARKER"}), ("read", {})):
            assert use(tmp_path, name, path=path, **more).startswith("Error: "), (name, path)
    inside = ("session.yaml", "t1-critic.md", "skills/s.md", mark)
    for path in (
        *(f"{place}/{name}" for name in inside),
        "link/t1-critic.md",
        "one.md",
        f"{tmp_path}/{place}/{mark}",
    ):
        for name, more in (("read", {}), ("search", {"pattern": "MARKER"})):
            answer = use(tmp_path, name, path=path, **more)
            assert answer == f"Error: {visible_files.SESSION}. It is not shown to models."
    assert use(tmp_path, "search", pattern="MARKER") == "a.md:1: MARKER"
    assert f"{place}/ ({visible_files.SESSION})" in use(tmp_path, "list", depth=8)
    assert use(tmp_path, "read", path="src/session.yaml").endswith("1| settings of another program")


def test_names_of_any_bytes_can_be_read_as_they_are_listed(tmp_path: Path) -> None:
    for name in (b"\xff.txt", b"new\nline.txt", b"esc\x1b[2J.txt", b" blank .txt", "日本.txt".encode()):
        (tmp_path / os.fsdecode(name)).write_text(f"{len(name)}\n")
    names = use(tmp_path, "list").split("\n")
    assert names == [" blank .txt", "esc␛[2J.txt", "new␊line.txt", "日本.txt", "\\xff.txt"]
    box = Tools(tmp_path, LIBRARY)
    assert [box.run("read", json.dumps({"path": name}))[-1] for name in names[1:]] == ["1", "2", "0", "5"]


def test_a_folder_that_becomes_a_link_while_it_is_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Tree._bytes

    def swapped(tree: Any, parts: Any, *rest: Any) -> bytes:
        (root / "src").rename(root / "old")
        (root / "src").symlink_to(root.parent)
        (root.parent / "a.py").write_text("outside MARKER")
        return real(tree, parts, *rest)

    monkeypatch.setattr(Tree, "_bytes", swapped)
    answer = Tools(root, LIBRARY).run("read", '{"path": "src/a.py"}')
    assert answer.startswith("Error: ") and "MARKER" not in answer


# -- search ---------------------------------------------------------------------------------------


def test_search_finds_what_may_be_read_and_nothing_else(root: Path) -> None:
    found = ["README.md:2: MARKER", "src/a.py:5: return 'MARKER'", "sub/b.py:1: b MARKER"]
    assert use(root, "search", pattern="MARKER").split("\n") == found
    assert use(root, "search", pattern="marker").split("\n") == found  # capital letters matter only if there are some
    assert use(root, "search", pattern="Marker") == "Nothing found."
    assert use(root, "search", pattern="MARKER", path="src") == found[1]
    assert use(root, "search", pattern="MARKER", path="src/a.py") == found[1]
    assert use(root, "search", pattern="outside") == "Nothing found."


@pytest.mark.parametrize(
    ("pattern", "lines"),
    [
        ("def f(", [1]), ("def .*(b", [2]), ("def f|class", [1, 3]), ("a || b", [4]), (r"a \|\| b", [4]),
        ("x.y", [5]), (r"def f\(", [1]), (".*y", [5]), ("[0]", [6]), ("b.*a", []), ("class A|", [3]),
        (" zz", [7]), (r"\d", [8]),
    ],
)  # fmt: skip
def test_what_a_pattern_means(tmp_path: Path, pattern: str, lines: list[int]) -> None:
    text = "def f(a):\ndef g(b):\nclass A:\nif (a || b):\nx.y = 1\nl[0]\nw = zz\n'\\d'\n"
    write(tmp_path, {"a.py": text})
    answer = use(tmp_path, "search", pattern=pattern)
    found = [] if answer.startswith("Nothing") else [int(line.split(":")[1]) for line in answer.split("\n")]
    assert found == lines


def test_a_search_that_finds_nothing_says_how_patterns_are_read(tmp_path: Path) -> None:
    assert "literally" in use(tmp_path, "search", pattern="^def f$")
    assert "no text" in use(tmp_path, "search", pattern=".*|")


def test_many_and_long_lines_are_cut(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": "needle " + "x" * 5000 + "\n", "b.txt": "needle\n" * 5000})
    answer = use(tmp_path, "search", pattern="needle")
    assert answer.split("\n")[0] == f"a.txt:1: needle {'x' * 233}… (4,767 characters more)"
    assert answer.endswith("\n… and more. Search for something rarer, or in a folder.")


def test_a_search_reads_only_so_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "MAX_SEARCHED", 25)
    write(tmp_path, {f"{n}.txt": "needle\n" + "x" * 3 for n in range(5)})
    answer = use(tmp_path, "search", pattern="needle").split("\n")
    assert answer[:2] == ["0.txt:1: needle", "1.txt:1: needle"] and "Not all files were searched" in answer[2]


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", ".*.*.*.*.*.*.*.*.*x", "a.*" * 100 + "x", "a|" * 200 + "b"])
def test_no_pattern_makes_a_search_slow(tmp_path: Path, pattern: str) -> None:
    write(tmp_path, {"a.txt": "a" * 990_000, "b.txt": ("a" * 300 + "\n") * 3000})
    with at_most(4):  # two uses
        use(tmp_path, "search", pattern=pattern)


@pytest.mark.wide
def test_five_thousand_files_are_searched_in_less_than_two_seconds(tmp_path: Path) -> None:
    write(tmp_path, {f"p{n % 40}/m{n}.py": f"value = {n}\n" * 200 for n in range(5000)})
    with at_most(2):
        assert Tools(tmp_path, LIBRARY).run("search", '{"pattern": "needle"}') == "Nothing found."


# -- whatever a model sends -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("write", "{}", "There is no tool 'write'; the tools are list, read, search."),
        ("re\x1bad", "{}", "There is no tool 're␛ad'"),
        ("read", "", "`path` is missing"),
        ("read", "{", "not valid JSON"),
        ("read", "[" * 9_000, "not valid JSON"),
        ("read", '"src"', "must be a YAML mapping with the keys path"),
        ("read", '{"path": ["a"]}', "`path`"),
        ("read", '{"path": "a", "mode": "w"}', "`mode` is not a key; the keys are path, start, end"),
        ("read", '{"path": "a", "start": 0}', "`start`"),
        ("read", '{"path": "a", "start": 1e999}', "`start`"),
        ("list", '{"depth": 9}', "`depth`"),
        ("search", '{"pattern": ""}', "`pattern`"),
        ("search", json.dumps({"pattern": "x" * 501}), "`pattern`"),
        ("search", json.dumps({"pattern": "x" * 10_001}), "longer than"),
    ],
)
def test_what_is_wrong_is_told(root: Path, name: str, arguments: str, words: str) -> None:
    answer = Tools(root, LIBRARY).run(name, arguments)
    assert answer.startswith("Error: ") and words in answer and "\x1b" not in answer


def test_a_root_that_is_gone_is_an_answer_too(tmp_path: Path) -> None:
    box = Tools(tmp_path / "gone", LIBRARY)
    for name, arguments in (("list", "{}"), ("read", '{"path": "a"}'), ("search", '{"pattern": "a"}')):
        assert box.run(name, arguments).startswith("Error: ")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["src", "..", "/"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["path", "start", "end", "depth", "pattern", "x"]), inner, max_size=4)
    ),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["list", "read", "search", "x"]), st.text(max_size=60) | JSON.map(json.dumps))
def test_every_use_is_answered(name: str, arguments: str) -> None:
    answer = Tools(ROOT / "tests/support/guard", LIBRARY).run(name, arguments)
    assert answer and len(answer.encode()) <= MAX_ANSWER
