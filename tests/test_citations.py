"""Citations in what models write: found in any text, checked against real files, marked without changing a thing."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cdo import citations, strict_yaml
from cdo.citations import Citation, check, check_all, find, marked
from cdo.tree import SESSION, Tree
from cdo.types import Finding
from tests.effort import at_most
from tests.test_context import KEY, write

SOURCE = "import os\n\n\ndef f(a, b):\n    return a + b\n\n\nclass A:\n    x = {\n        1: 2,\n    }\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, {"src/a.py": SOURCE, "README.md": "# Title\n\nSome words.", "empty.py": "", "Makefile": "all:\n"})
    return tmp_path


def labels(text: str) -> list[str]:
    return [str(citation) for citation in find(text)]


def judged(text: str, root: Path) -> tuple[bool, str]:
    (citation,) = find(text)
    finding = check(citation, root)
    assert finding.citation == str(citation)
    return finding.verified, finding.why


# -- finding --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("src/a.py:12", "src/a.py:12"),
        ("(see ./src/a.py:12-14).", "src/a.py:12-14"),
        ("a.py:12–14,", "a.py:12-14"),
        ("a.py:L12", "a.py:12"),
        ("a.py:L12-L14", "a.py:12-14"),
        ("a.py#L12", "a.py:12"),
        ("src/a.py#L12-L14:", "src/a.py:12-14"),
        ("a.py:12:5: E501", "a.py:12: E501"),
        ("**a.py:3** _x_", "a.py:3"),
        ("'a.py:3'", "a.py:3"),
        ("[here](src/a.py#L3)", "src/a.py:3"),
        ("Makefile:3 and", "Makefile:3"),
        (".github/workflows/ci.yml:4", ".github/workflows/ci.yml:4"),
        ("@scope/pkg/index.js:3", "@scope/pkg/index.js:3"),
        ("bin/run#L3", "bin/run:3"),
        ("/etc/passwd.txt:1", "/etc/passwd.txt:1"),
        ("../x/a.py:1", "../x/a.py:1"),
        ("日本/é.md:7", "日本/é.md:7"),
        ('src/a.py:12 "def f("', 'src/a.py:12 "def f("'),
        ('src/a.py:12: "def f("', 'src/a.py:12 "def f("'),
        ("src/a.py:12 — “def f(”", 'src/a.py:12 "def f("'),
        ("src/a.py:12 (`def f(`)", 'src/a.py:12 "def f("'),
        ("src/a.py:12 'def f('", 'src/a.py:12 "def f("'),
        ("`src/a.py:12` `def f(`", 'src/a.py:12 "def f("'),
        ('`src/a.py:12-13` "def f("', 'src/a.py:12-13 "def f("'),
        ('- "src/a.py:12 \\"def f(\\""', 'src/a.py:12 "def f("'),
        ("`a.py:12: the loop`", 'a.py:12 "the loop"'),
        ("a.py:12: def f(", "a.py:12: def f("),
        ("a.py:12 ✓: def f( ✓", "a.py:12: def f("),
        ("a.py:12: the loop never ends", "a.py:12: the loop never ends"),
        ('["src/a.py:12", "other words"]', "src/a.py:12"),
    ],
)
def test_found(text: str, found: str) -> None:
    assert labels(text) == [found]


@pytest.mark.parametrize(
    "text",
    [
        "http://example.com/a.py:12", "https://github.com/o/r/blob/main/src/a.py#L12", "http://h/?f=a.py:12 x",
        "at 12:30", "12:30:45", "2026-11-22T10:15:00", "v1.2:3", "1.2.3:4", "python3.11:5", "a.py:12.5",
        "localhost:8080", "example.com:443", "api.example.com/v1.json:3", "10.0.0.1:80", "10.0.0.1/x.html:3",
        "host:22", "git@github.com:22", "ghcr.io/org/app:12", "postgres:16", "library/postgres:16",
        "ratio 3:1", "e.g.:3", "i.e:3", "C:\\src\\a.py:12", "a.py: 12", "a.py:x", "a.py:12abc", "localhost/a.py:1",
        "John 3:16", "key:1", "//host/a.py:3", "a.py:", ":12", "a.py#12", "...:3", "www.x.y/a.html:1",
    ],
)  # fmt: skip
def test_not_found(text: str) -> None:
    assert labels(text) == []


def test_several_in_one_text_keep_their_order_and_repeat() -> None:
    text = "b.py:2 and a.py:1, then `b.py:2`.\n\n| a.py:1 | b.py:3-4 |"
    assert labels(text) == ["b.py:2", "a.py:1", "b.py:2", "a.py:1", "b.py:3-4"]


PATHS = st.from_regex(r"[a-z_]{1,8}(/[a-z_]{1,8}){0,3}\.(py|rs|go|md|ts)", fullmatch=True).filter(
    lambda path: not re.match(r"(localhost|www)", path)
)


@given(PATHS, st.integers(0, 9_999_999), st.none() | st.integers(0, 9_999_999), st.sampled_from([":", ":L", "#L"]))
def test_whatever_is_written_as_a_citation_is_found_anywhere(
    path: str, first: int, last: int | None, sep: str
) -> None:
    written = f"{path}{sep}{first}" + ("" if last is None else f"-{last}")
    citation = Citation(path, first, first if last is None else last)
    for text in ("{}", "See {}.", "({})", "`{}`", "x\n{}\ny", "a, {}; b", "**{}**", '"{}"', "<{}>", "é {} é"):
        (found,) = find(text.format(written))
        assert found == citation
        assert text.format(written)[: found.end].rstrip("`").endswith(written)


TEXT = st.text(st.sampled_from("ab/.:#L12-–\"'` \n✓✗()py@~\\|,é"), max_size=120)
PARTS = st.sampled_from(
    ["src/a.py:4", "src/a.py:4-5", 'src/a.py:4 "def f("', "a.py:1: x = 1", " ✓", " ✗ (no)", "`", "\n", " ", ": ", '"']
)
MIXED = st.one_of(TEXT, st.lists(PARTS | TEXT, max_size=12).map("".join), st.text(max_size=100))


@given(MIXED)
def test_finding_never_fails_and_ends_are_places_in_the_text(text: str) -> None:
    ends = [citation.end for citation in find(text)]
    assert ends == sorted(set(ends)) and all(0 < end <= len(text) for end in ends)


@pytest.mark.parametrize(
    "unit",
    ["a", "a/", "a.", "a.py:1", 'a.py:1 "', "a.py:1: ", "a.py:1: `", "a://", "a.a", "1:", "`a.py:1: x", "a.py:1 ✗ (",
     "src/a.py:1 (`", ":L", "-", "a-", "a@", "a.py#L1-", " ✓", "a.py:1 ✓"],
)  # fmt: skip
def test_hostile_texts_take_no_longer_than_long_ones(unit: str) -> None:
    text = unit * (200_000 // len(unit))
    with at_most(2):
        marked(text, [Finding(str(citation), True, "x") for citation in find(text)])


# -- checking -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "verified", "why"),
    [
        ("src/a.py:4", True, "line exists; nothing was quoted"),
        ("src/a.py:1-11", True, "line exists; nothing was quoted"),
        ('src/a.py:4 "def f("', True, "the words stand there"),
        ('src/a.py:4 "def  f(a,b ):"', True, "the words stand there"),
        ('src/a.py:4-5 "def f(a, b): return a + b"', True, "the words stand there"),
        ('src/a.py:2 "def f("', True, "found at line 4"),
        ('src/a.py:6 "def f("', True, "found at line 4"),
        ('src/a.py:7 "def f("', False, "the words stand at line 4"),
        ('src/a.py:4 "def g("', False, "the words are not in the file"),
        ('src/a.py:4 "DEF F("', False, "the words are not in the file"),
        ("src/a.py:4 `f()`", True, "the words stand there"),
        ("src/a.py:4 `a.f()`", True, "the words stand there"),
        ("src/a.py:8 `src.a::A`", True, "the words stand there"),
        ("src/a.py:8 `A()`", False, "the words are not in the file"),
        ('src/a.py:8 "class A: … 1: 2"', True, "found at line 8"),
        ('src/a.py:8-10 "class A: ... 1: 2"', True, "the words stand there"),
        ("src/a.py:4: def f(a, b):", True, "the words stand there"),
        ("src/a.py:4: def g(a, b):", False, "the words are not in the file"),
        ("src/a.py:4: def f(a, b): which adds", True, "the words stand there"),
        ("src/a.py:4: def f(a,", True, "the words stand there"),
        ("`src/a.py:4: def f(a, b): which adds`", False, "the words are not in the file"),
        ("src/a.py:6: def f(a,", True, "found at line 4"),
        ("src/a.py:11: } closes it", True, "line exists; what follows does not stand there and may be a remark"),
        ("src/a.py:4: adds two", True, "line exists; what follows does not stand there and may be a remark"),
        ("src/a.py:0", False, "the file has 11 lines"),
        ("src/a.py:12", False, "the file has 11 lines"),
        ("src/a.py:11-12", False, "the file has 11 lines"),
        ("src/a.py:5-4", False, "the lines run backwards"),
        ("empty.py:1", False, "the file has 0 lines"),
        ("Makefile:1", True, "line exists; nothing was quoted"),
        ("README.md:3", True, "line exists; nothing was quoted"),
        ("README.md:4", False, "the file has 3 lines"),
        ("src/b.py:1", False, "no such file"),
        ("src/a.py/x.py:1", False, "no such file"),
        ("../a.py:1", False, "outside the repository"),
        ("src/../../etc/hosts.txt:1", False, "outside the repository"),
        ("/etc/hosts.txt:1", False, "outside the repository"),
        ("~/x.py:1", False, "outside the repository"),
    ],
)
def test_checked(root: Path, text: str, verified: bool, why: str) -> None:
    assert judged(text, root) == (verified, why)


def test_an_absolute_path_inside_the_root_is_the_file_itself(root: Path) -> None:
    assert judged(f'{root}/src/a.py:4 "def f("', root) == (True, "the words stand there")


def test_what_tools_may_not_read_verifies_nothing(root: Path) -> None:
    outside = root.parent / "outside.py"
    outside.write_text("x = 1\n")
    write(
        root, {".env.py": "A=1", ".git/config.txt": "x", ".gitignore": "build/\n", "build/o.py": "x", "b.py": b"\0"}
    )
    write(root, {"key.py": f"key = 'ghp_{KEY[:36]}'\n", "latin.py": "é".encode("latin-1"), "d.py/x": ""})
    for name, target in {"out.py": str(outside), "in.py": "src/a.py", "loop.py": "loop.py"}.items():
        (root / name).symlink_to(target)
    assert judged('in.py:4 "def f("', root) == (True, "the words stand there")
    reasons = {
        ".env.py:1": "may hold secrets, by its name",
        ".git/config.txt:1": "version control data",
        "build/o.py:1": "ignored by git",
        "b.py:1": "binary",
        "key.py:1": "seems to hold a GitHub token",
        "latin.py:1": "not UTF-8 text",
        "d.py:1": "a folder, not a file",
        "out.py:1": "a symbolic link that leads nowhere inside the repository",
        "loop.py:1": "a symbolic link that leads nowhere inside the repository",
    }
    for text, why in reasons.items():
        assert judged(text, root) == (False, why)


def test_all_are_checked_once_in_order(root: Path) -> None:
    texts = ['src/a.py:4 "def f("', "no.py:1 and `src/a.py:4` 'def f('", "src/a.py:4"]
    assert check_all(texts, root) == (
        Finding('src/a.py:4 "def f("', True, "the words stand there"),
        Finding("no.py:1", False, "no such file"),
        Finding("src/a.py:4", True, "line exists; nothing was quoted"),
    )
    assert check_all(texts, None) == ()


def test_a_file_is_read_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    real = Tree.text

    def text(tree: Tree, path: str) -> str:
        read.append(path)
        return real(tree, path)

    monkeypatch.setattr(Tree, "text", text)
    check_all(["src/a.py:1 src/a.py:2 no.py:1", "src/a.py:3 no.py:2"], root)
    assert read == ["src/a.py", "no.py"]


def test_not_more_is_checked_than_can_be_meant(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(citations, "MAX_FILES", 2)
    whys = [finding.why for finding in check_all(["x.py:1 y.py:1 src/a.py:1 x.py:2"], root)]
    assert whys == ["no such file", "no such file", citations.TOO_MANY, "no such file"]
    monkeypatch.setattr(citations, "MAX_CITATIONS", 2)
    whys = [finding.why for finding in check_all(["src/a.py:1 src/a.py:1 src/a.py:2 src/a.py:3"], root)]
    assert whys == ["line exists; nothing was quoted"] * 2 + [citations.TOO_MANY]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(st.sampled_from("ab (){}=\t"), max_size=12), min_size=1, max_size=20), st.data())
def test_words_are_verified_exactly_where_they_stand(lines: list[str], data: st.DataObject) -> None:
    number = data.draw(st.integers(1, len(lines)))
    quote = data.draw(st.text(st.sampled_from("ab(){}="), min_size=1, max_size=6))
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), {"a.txt": "".join(f"{line}\n" for line in lines)})
        finding = check(Citation("a.txt", number, number, quote), Path(folder))
    near = "".join("".join(lines[max(0, number - 3) : number + 2]).split())
    call = re.fullmatch(r"\w+\(\)", quote)  # `a()` means any call of it
    assert finding.verified == (quote in near or (call is not None and quote[:-1] in near))


# -- marking --------------------------------------------------------------------------------------


def test_marks_stand_after_what_they_are_about(root: Path) -> None:
    text = (
        "---\nclaims:\n- id: C1\n  evidence: [\"src/a.py:4 'def f('\", src/a.py:99]\n---\n"
        'See `src/a.py:4` "def g(", src/a.py:4: def f(a, b): and (no.py:3).\n`src/a.py:4: def f(a, b):` ok\n'
    )
    assert marked(text, check_all([text], root)) == (
        "---\nclaims:\n- id: C1\n  evidence: [\"src/a.py:4 'def f(' ✓\", src/a.py:99 ✗ (the file has 11 lines)]\n"
        '---\nSee `src/a.py:4` "def g(" ✗ (the words are not in the file), src/a.py:4 ✓: def f(a, b): and '
        "(no.py:3 ✗ (no such file)).\n`src/a.py:4: def f(a, b):` ✓ ok\n"
    )


def test_a_mark_that_a_voice_wrote_itself_is_replaced(root: Path) -> None:
    text = "no.py:3 ✓ ✓, src/a.py:4 ✗ (bad), `no.py:4` ✓ and ✓ alone"
    assert marked(text, check_all([text], root)) == (
        "no.py:3 ✗ (no such file), src/a.py:4 ✓, `no.py:4` ✗ (no such file) and ✓ alone"
    )


def test_citations_without_a_finding_are_left_alone() -> None:
    text = "a.py:1 and b.py:2 ✓"
    assert marked(text, ()) == text
    assert marked(text, [Finding("a.py:1", True, "x")]) == "a.py:1 ✓ and b.py:2 ✓"


def test_why_cannot_break_out_of_its_mark() -> None:
    once = marked("a.py:1 x", [Finding("a.py:1", False, "cannot (be)\nread) b.py:2")])
    assert once == "a.py:1 ✗ (cannot - be read b.py:2) x"


@settings(max_examples=300, deadline=None)
@given(MIXED)
@example("`.PY:0: /.A:0:`")
def test_marking_changes_nothing_else_and_is_idempotent(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), {"src/a.py": SOURCE, "a.py": "x = 1\n"})
        findings = check_all([text], Path(folder))
    once = marked(text, findings)
    assert marked(once, findings) == once
    mark = re.compile(r" (?:✓|✗ \([^()\n]{0,200}\))")
    assert mark.sub("", once) == mark.sub("", text)
    assert once.count("✓") + once.count("✗") >= len({str(citation) for citation in find(text)})


# -- what voices said -----------------------------------------------------------------------------


def test_the_files_of_a_session_are_no_evidence(root: Path) -> None:
    for number, mark in enumerate(("journal.jsonl", "calls/0001.jsonl")):
        place = f"tmp/cdo-{number}"
        write(
            root, {f"{place}/session.yaml": "a: 1\n", f"{place}/t1-critic.md": "Words.\n", f"{place}/{mark}": "{}\n"}
        )
        for path, words in (("t1-critic.md", ' "Words."'), ("session.yaml", ""), (mark, "")):
            assert judged(f"{place}/{path}:1{words}", root) == (False, SESSION)
    (root / "said.md").symlink_to("tmp/cdo-0/t1-critic.md")
    assert judged("said.md:1", root) == (False, SESSION)
    assert judged("README.md:1", root)[0]


def test_a_quote_with_quotes_in_it_is_not_cut_to_what_comes_before_them(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('x = 1  # a "quoted" word\n')
    (bad,) = check_all(['a.py:1 "# a "locked" word"'], tmp_path)
    assert not bad.verified
    (good,) = check_all(['a.py:1 "# a "quoted" word"'], tmp_path)
    assert good.verified


def test_a_quote_that_yaml_quoted_once_more_is_found(tmp_path: Path) -> None:
    """The front matter of an artifact: an apostrophe in it stands twice."""
    (tmp_path / "a.py").write_text("# the queue's time isn't '' ours\n")
    for quote in ("the queue's time", "isn't '' ours"):
        text = strict_yaml.dump({"evidence": [f'a.py:1 "{quote}"']})
        findings = check_all([text], tmp_path)
        assert [finding.verified for finding in findings] == [True], text
        assert "✓" in marked(text, findings)
