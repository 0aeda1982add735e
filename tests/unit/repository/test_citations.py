"""Citations in what models write: found in any text, checked against real files, marked without changing a thing."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cdo.core.steps import CitationCheck
from cdo.formats import strict_yaml
from cdo.repository import citations
from cdo.repository.citation_marks import marked
from cdo.repository.citation_syntax import Citation, find
from cdo.repository.citations import check, check_all
from cdo.repository.visible_files import SESSION, Tree
from tests.support.effort import assert_linear
from tests.unit.repository.test_context import KEY, write

SOURCE = "import os\n\n\ndef f(a, b):\n    return a + b\n\n\nclass A:\n    x = {\n        1: 2,\n    }\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, {"src/a.py": SOURCE, "README.md": "# Title\n\nSome words.", "empty.py": "", "Makefile": "all:\n"})
    return tmp_path


def labels(text: str) -> list[str]:
    return [str(citation) for citation in find(text)]


VERIFIED, EXISTS, ABSENT = "verified", "exists", "absent"
PART = "line exists; only the last part of the quoted name stands there"


def judged(text: str, root: Path) -> tuple[str, str]:
    """What a citation is worth, and why; with the path that it was found as, if that is another one."""
    (citation,) = find(text)
    finding = check(citation, root)
    assert finding.citation == str(citation) and not (finding.verified and finding.exists)
    assert finding.holds == (finding.verified or finding.exists)
    why = f"{finding.why}, in {finding.path}" if finding.path else finding.why
    return VERIFIED if finding.verified else EXISTS if finding.exists else ABSENT, why


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


TEXT = st.text(st.sampled_from("ab/.:#L12-–\"'` \n✓○✗()py@~\\|,é"), max_size=120)
PARTS = st.sampled_from(
    [
        "src/a.py:4",
        "src/a.py:4-5",
        'src/a.py:4 "def f("',
        "a.py:1: x = 1",
        " ✓",
        " ✗ (no)",
        " ○ (found as a.py)",
        "`",
        "\n",
        "\n  ",
        " ",
        ": ",
        '"',
        "\\",
    ]
)
MIXED = st.one_of(TEXT, st.lists(PARTS | TEXT, max_size=12).map("".join), st.text(max_size=100))


@given(MIXED)
def test_finding_never_fails_and_ends_are_places_in_the_text(text: str) -> None:
    ends = [citation.end for citation in find(text)]
    assert ends == sorted(set(ends)) and all(0 < end <= len(text) for end in ends)


@pytest.mark.wide
@pytest.mark.parametrize(
    "unit",
    ["a", "a/", "a.", "a.py:1", 'a.py:1 "', "a.py:1: ", "a.py:1: `", "a://", "a.a", "1:", "`a.py:1: x", "a.py:1 ✗ (",
     "src/a.py:1 (`", ":L", "-", "a-", "a@", "a.py#L1-", " ✓", "a.py:1 ✓", 'a.py:1 "\\', 'a.py:1 \\"\\',
     "a.py:1 ○ (found as ", "a.py:1 '\n  ", "a.py:1\n  "],
)  # fmt: skip
def test_hostile_texts_take_linear_time(unit: str) -> None:
    def work(length: int) -> None:
        text = unit * (length // len(unit))
        marked(text, [CitationCheck(str(citation), True, "x") for citation in find(text)])

    assert_linear(work, 100_000)


# -- checking -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "worth", "why"),
    [
        ("src/a.py:4", EXISTS, "line exists; nothing was quoted"),
        ("src/a.py:1-11", EXISTS, "line exists; nothing was quoted"),
        ('src/a.py:4 "def f("', VERIFIED, "the words stand there"),
        ('src/a.py:4 "def  f(a,b ):"', VERIFIED, "the words stand there"),
        ('src/a.py:4-5 "def f(a, b): return a + b"', VERIFIED, "the words stand there"),
        ('src/a.py:2 "def f("', VERIFIED, "found at line 4"),
        ('src/a.py:6 "def f("', VERIFIED, "found at line 4"),
        ('src/a.py:7 "def f("', ABSENT, "the words stand at line 4"),
        ('src/a.py:4 "def g("', ABSENT, "the words are not in the file"),
        ('src/a.py:4 "DEF F("', ABSENT, "the words are not in the file"),
        ("src/a.py:4 `f()`", EXISTS, PART),
        ("src/a.py:4 `a.f()`", EXISTS, PART),
        ("src/a.py:8 `src.a::A`", EXISTS, PART),
        ("src/a.py:8 `A()`", ABSENT, "the words are not in the file"),
        ('src/a.py:8 "class A: … 1: 2"', VERIFIED, "found at line 8"),
        ('src/a.py:8-10 "class A: ... 1: 2"', VERIFIED, "the words stand there"),
        ("src/a.py:4: def f(a, b):", VERIFIED, "the words stand there"),
        ("src/a.py:4: def g(a, b):", ABSENT, "the words are not in the file"),
        ("src/a.py:4: def f(a, b): which adds", VERIFIED, "the words stand there"),
        ("src/a.py:4: def f(a,", VERIFIED, "the words stand there"),
        ("`src/a.py:4: def f(a, b): which adds`", ABSENT, "the words are not in the file"),
        ("src/a.py:6: def f(a,", VERIFIED, "found at line 4"),
        ("src/a.py:11: } closes it", EXISTS, "line exists; what follows does not stand there and may be a remark"),
        ("src/a.py:4: adds two", EXISTS, "line exists; what follows does not stand there and may be a remark"),
        ("src/a.py:0", ABSENT, "the file has 11 lines"),
        ("src/a.py:12", ABSENT, "the file has 11 lines"),
        ("src/a.py:11-12", ABSENT, "the file has 11 lines"),
        ("src/a.py:5-4", ABSENT, "the lines run backwards"),
        ("empty.py:1", ABSENT, "the file has 0 lines"),
        ("Makefile:1", EXISTS, "line exists; nothing was quoted"),
        ("README.md:3", EXISTS, "line exists; nothing was quoted"),
        ("README.md:4", ABSENT, "the file has 3 lines"),
        ("src/b.py:1", ABSENT, "no such file"),
        ("src/a.py/x.py:1", ABSENT, "no such file"),
        ("../a.py:1", ABSENT, "outside the repository"),
        ("src/../../etc/hosts.txt:1", ABSENT, "outside the repository"),
        ("/etc/hosts.txt:1", ABSENT, "outside the repository"),
        ("~/x.py:1", ABSENT, "outside the repository"),
    ],
)
def test_checked(root: Path, text: str, worth: str, why: str) -> None:
    assert judged(text, root) == (worth, why)


@pytest.mark.parametrize(
    ("text", "worth", "why"),
    [
        ('a.py:4 "def f("', VERIFIED, "the words stand there, in src/a.py"),
        ("a.py:4", EXISTS, "line exists; nothing was quoted, in src/a.py"),
        ("a.py:40", ABSENT, "the file has 11 lines, in src/a.py"),
        ('A.PY:4 "def f("', VERIFIED, "the words stand there, in src/a.py"),
        ('Src/A.py:4 "def f("', VERIFIED, "the words stand there, in src/a.py"),
        ("readme.md:1", EXISTS, "line exists; nothing was quoted, in README.md"),
        ("deep/b.py:1", EXISTS, "line exists; nothing was quoted, in src/deep/b.py"),
        ("twice.py:1", ABSENT, "several files are called so: src/deep/twice.py, src/twice.py"),
        ("Twice.py:1", ABSENT, "several files are called so: src/deep/twice.py, src/twice.py"),
        ("deep/twice.py:1", EXISTS, "line exists; nothing was quoted, in src/deep/twice.py"),
        ("TODO.txt:1", EXISTS, "line exists; nothing was quoted, in docs/TODO.txt"),
        ("Todo.txt:1", ABSENT, "several files are called so: docs/TODO.txt, src/todo.txt"),
        ("lib/a.py:4", ABSENT, "no such file"),
        ("../a.py:4", ABSENT, "outside the repository"),
        ("hidden.py:1", ABSENT, "no such file"),
        ("secret.env:1", ABSENT, "no such file"),
        ("said.md:1", ABSENT, "no such file"),
    ],
)
def test_a_file_is_found_by_its_name_where_there_is_one_of_it(root: Path, text: str, worth: str, why: str) -> None:
    write(root, {
        "src/deep/b.py": "x\n", "src/deep/twice.py": "x\n", "src/twice.py": "x\n", ".gitignore": "build/\n",
        "build/hidden.py": "x\n", "conf/secret.env": "x\n", "docs/TODO.txt": "x\n", "src/todo.txt": "x\n",
        "tmp/s/session.yaml": "a: 1\n", "tmp/s/journal.jsonl": "{}\n", "tmp/s/said.md": "x\n",
    })  # fmt: skip
    assert judged(text, root) == (worth, why)


def test_an_absolute_path_inside_the_root_is_the_file_itself(root: Path) -> None:
    assert judged(f'{root}/src/a.py:4 "def f("', root) == (VERIFIED, "the words stand there")


def test_what_tools_may_not_read_verifies_nothing(root: Path) -> None:
    outside = root.parent / "outside.py"
    outside.write_text("x = 1\n")
    write(
        root, {".env.py": "A=1", ".git/config.txt": "x", ".gitignore": "build/\n", "build/o.py": "x", "b.py": b"\0"}
    )
    write(root, {"key.py": f"key = 'ghp_{KEY[:36]}'\n", "latin.py": "é".encode("latin-1"), "d.py/x": ""})
    for name, target in {"out.py": str(outside), "in.py": "src/a.py", "loop.py": "loop.py"}.items():
        (root / name).symlink_to(target)
    assert judged('in.py:4 "def f("', root) == (VERIFIED, "the words stand there")
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
        assert judged(text, root) == (ABSENT, why)


def test_all_are_checked_once_in_order(root: Path) -> None:
    texts = ['src/a.py:4 "def f("', "no.py:1 and `src/a.py:4` 'def f('", "src/a.py:4"]
    assert check_all(texts, root) == (
        CitationCheck('src/a.py:4 "def f("', True, "the words stand there"),
        CitationCheck("no.py:1", False, "no such file"),
        CitationCheck("src/a.py:4", False, "line exists; nothing was quoted", exists=True),
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
    assert finding.verified == (quote in near)


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
    text = "no.py:3 ✓ ✓ (found as x.py) ○, src/a.py:4 ✗ (bad), `no.py:4` ✓ and ✓ alone"
    assert marked(text, check_all([text], root)) == (
        "no.py:3 ✗ (no such file), src/a.py:4 ○, `no.py:4` ✗ (no such file) and ✓ alone"
    )


def test_citations_without_a_finding_are_left_alone() -> None:
    text = "a.py:1 and b.py:2 ✓"
    assert marked(text, ()) == text
    assert marked(text, [CitationCheck("a.py:1", True, "x")]) == "a.py:1 ✓ and b.py:2 ✓"


def test_why_cannot_break_out_of_its_mark() -> None:
    once = marked("a.py:1 x", [CitationCheck("a.py:1", False, "cannot (be)\nread) b.py:2")])
    assert once == "a.py:1 ✗ (cannot - be read b.py:2) x"


@pytest.mark.wide
@settings(max_examples=300, deadline=None)
@given(MIXED)
@example("`.PY:0: /.A:0:`")
def test_marking_changes_nothing_else_and_is_idempotent(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), {"src/a.py": SOURCE, "a.py": "x = 1\n"})
        findings = check_all([text], Path(folder))
    once = marked(text, findings)
    assert marked(once, findings) == once
    mark = re.compile(r" (?:[✓○](?: \(found as [^()\n]+\))?|✗ \([^()\n]{0,200}\))")
    assert mark.sub("", once) == mark.sub("", text)
    assert once.count("✓") + once.count("○") + once.count("✗") >= len({str(citation) for citation in find(text)})


def test_a_mark_says_where_a_file_was_found_that_is_called_otherwise(root: Path) -> None:
    text = 'readme.md:3 "Some words", a.py:4 and a.py:99'
    once = marked(text, check_all([text], root))
    assert once == (
        'readme.md:3 "Some words" ✓ (found as README.md), a.py:4 ○ (found as src/a.py) '
        "and a.py:99 ✗ (the file has 11 lines)"
    )
    assert marked(once, check_all([text], root)) == once
    write(root, {"app/(shop)/page.tsx": "x\n"})
    assert marked("page.tsx:1", check_all(["page.tsx:1"], root)) == "page.tsx:1 ○ (found as app/- shop/page.tsx)"
    twice = "a.py:4, src/a.py:5 and a.py:6"
    once = marked(twice, check_all([twice], root))
    assert once == "a.py:4 ○ (found as src/a.py), src/a.py:5 ○ and a.py:6 ○", "a path is named once"
    assert marked(once, check_all([twice], root)) == once
    bare = marked(once, check_all([twice], root), paths=False)
    assert bare == "a.py:4 ○, src/a.py:5 ○ and a.py:6 ○", "FINAL.md is for people, who find the file by its name"


# -- what voices said -----------------------------------------------------------------------------


def test_the_files_of_a_session_are_no_evidence(root: Path) -> None:
    for number, mark in enumerate(("journal.jsonl", "calls/0001.jsonl")):
        place = f"tmp/cdo-{number}"
        write(
            root, {f"{place}/session.yaml": "a: 1\n", f"{place}/t1-critic.md": "Words.\n", f"{place}/{mark}": "{}\n"}
        )
        for path, words in (("t1-critic.md", ' "Words."'), ("session.yaml", ""), (mark, "")):
            assert judged(f"{place}/{path}:1{words}", root) == (ABSENT, SESSION)
    (root / "said.md").symlink_to("tmp/cdo-0/t1-critic.md")
    assert judged("said.md:1", root) == (ABSENT, SESSION)
    assert judged("README.md:1", root)[0] == EXISTS


def test_a_quote_with_quotes_in_it_is_not_cut_to_what_comes_before_them(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('x = 1  # a "quoted" word\n')
    (bad,) = check_all(['a.py:1 "# a "locked" word"'], tmp_path)
    assert not bad.verified
    (good,) = check_all(['a.py:1 "# a "quoted" word"'], tmp_path)
    assert good.verified


ESCAPED = 'if not (options["trust"] or options["yes"]):'


@pytest.mark.parametrize(
    "written",
    [
        'a.py:1 "' + ESCAPED.replace('"', '\\"') + '"',
        'a.py:1 "' + ESCAPED.replace('"', '\\\\\\"') + '"',
        "a.py:1 '" + ESCAPED.replace('"', '\\"') + "'",
        'evidence: ["a.py:1 \\"' + ESCAPED.replace('"', '\\\\\\"') + '\\""]',
        "evidence: ['a.py:1 `" + ESCAPED.replace('"', '\\"') + "`']",
    ],
)
def test_words_with_escaped_quotes_are_found(tmp_path: Path, written: str) -> None:
    (tmp_path / "a.py").write_text(f"{ESCAPED}\n")
    (finding,) = check_all([written], tmp_path)
    assert finding.verified and "yes" in finding.citation, finding
    (other,) = check_all([written.replace("trust", "bad")], tmp_path)
    assert not other.holds and other.why == "the words are not in the file"


WORDS = st.lists(
    st.sampled_from(["queue", "the", "time", "isn't", "x = 1", '"say"', "a-b", "(ok)"]), min_size=1, max_size=30
)


@settings(max_examples=100, deadline=None)
@given(WORDS, st.sampled_from(['{0} "{1}"', "{0} `{1}`", "see {0} “{1}”, which matters"]), st.integers(0, 90))
def test_a_quote_is_found_wherever_yaml_breaks_the_line(words: list[str], signs: str, indent: int) -> None:
    quote = " ".join(words)
    hypothesis.assume(len(quote) < 250 and not ('"' in quote and '"{1}"' in signs))
    path = f"src/d{'d' * indent}/a.py"
    text = strict_yaml.dump({"claims": [{"id": "c1", "evidence": [signs.format(f"{path}:12", quote)]}]})
    found = find(text)
    assert [(item.path, item.first, "".join(item.quote.replace("''", "'").split())) for item in found] == [
        (path, 12, "".join(quote.split()))
    ], text


def test_a_quote_that_yaml_quoted_once_more_is_found(tmp_path: Path) -> None:
    """The front matter of an artifact: an apostrophe in it stands twice."""
    (tmp_path / "a.py").write_text("# the queue's time isn't '' ours\n")
    for quote in ("the queue's time", "isn't '' ours"):
        text = strict_yaml.dump({"evidence": [f'a.py:1 "{quote}"']})
        findings = check_all([text], tmp_path)
        assert [finding.verified for finding in findings] == [True], text
        assert "✓" in marked(text, findings)


# -- where a quote ends ---------------------------------------------------------------------------


QUOTED_LINES = """\
requires-python = ">=3.11"
options = {"trust": "yes", 'other': `no`}
print("say \\"hi\\" now")
x" and "y
say(“curly” words) it's the users' own
a tyre of 5" and 'single' marks: f("")
"""


@pytest.mark.parametrize(
    ("text", "worth"),
    [
        ('a.py:1 "requires-python = ">=3.11""', VERIFIED),
        ('a.py:1 "requires-python = ">=9.9""', ABSENT),
        ('a.py:1 "requires-python = ">=3.11"", which is "new" there', VERIFIED),
        ('a.py:1 "requires-python" is not "set" elsewhere', VERIFIED),
        ('a.py:1 "requires-python = " ends too early', VERIFIED),
        ('a.py:2 "{"trust": "no""', ABSENT),
        ('(a.py:3 "now"), which the manual calls a "word"', VERIFIED),
        ('a.py:2 "trust", which is not "y"', VERIFIED),
        ('a.py:3 "print("say \\"hi\\" now")"', VERIFIED),
        ('a.py:3 "print("say \\"ho\\" now")"', ABSENT),
        ('a.py:4 "x" and "y"', VERIFIED),
        ('a.py:4 "x" ond "y"', ABSENT),
        ("a.py:5 'it's the users' own'", VERIFIED),
        ("a.py:5 'it's the users' home'", ABSENT),
        ("a.py:5 “say(“curly” words)”", VERIFIED),
        ("a.py:5 “say(“curly” word)”", ABSENT),
        ('a.py:6 "a tyre of 5" and \'single\' marks"', VERIFIED),
        ('a.py:6 "a tyre of 5" but \'single\' marks"', ABSENT),
        ("a.py:2 ``'other': `no` ``", VERIFIED),
        ("a.py:2 ``'other': `yes` ``", ABSENT),
        ('"see a.py:1 "requires-python" there"', VERIFIED),
        ("evidence: ['a.py:5 ''it''s the''', x]", VERIFIED),
        ("evidence: ['a.py:5 ''it''s a''', x]", ABSENT),
        ('evidence: ["a.py:1 \\"= \\">=3.11\\"\\""]', VERIFIED),
        ('evidence: ["a.py:1 \\"= \\">=9.9\\"\\""]', ABSENT),
    ],
)
def test_the_whole_quote_is_compared(tmp_path: Path, text: str, worth: str) -> None:
    (tmp_path / "a.py").write_text(QUOTED_LINES)
    (finding,) = check_all([text], tmp_path)
    assert (VERIFIED if finding.verified else EXISTS if finding.exists else ABSENT) == worth, finding
    once = marked(text, [finding])
    assert once.count("✓" if finding.verified else "✗") == 1
    assert marked(once, check_all([text], tmp_path)) == once


def test_citations_in_one_line_keep_their_own_quotes(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(QUOTED_LINES)
    text = '(a.py:3 "now"), while the rest (a.py:4 "and"), says (a.py:1 ">=3.11")'
    assert [finding.verified for finding in check_all([text], tmp_path)] == [True, True, True]
    text = 'evidence: ["a.py:3 \\"now\\"", "a.py:2 \\"other\\"", "a.py:1 \\">=3.11\\""]'
    assert [finding.verified for finding in check_all([text], tmp_path)] == [True, True, True]
    text = 'a.py:1 "= ">=3.11"" and a.py:2 "other" and a.py:2 \'"trust"\', a.py:6 "5" and" but a.py:1 "= ">=9""'
    findings = check_all([text], tmp_path)
    assert [finding.verified for finding in findings] == [True, True, True, True, False]


# Lines of code, prose and settings with marks in them. None ends in a backslash: then the closing mark of a quote
# cannot be told from an escaped one.
REAL_LINES = [
    '"""A file\'s lines without white space, joined into one text, with the offset of each line."""',
    '"""Check that the cited lines exist in the repository and contain the quote."""',
    '"""Convert click\'s error about the arguments into a `UsageError` with a hint."""',
    '"""Print to stderr; ignore failures to write, since the exit code still reports the error."""',
    '"""Return a file prepared for comparison, or the reason it cannot be read."""',
    '"""Return the quotes that occur in a file of the repository that may be shown to a model."""',
    '"""Return the reading of a citation that the file confirms.',
    '"aiohttp>=3.14.2",',
    '"build>=1.2",',
    '"hypothesis>=6.100",',
    '"model: runs the embedded model (fetched once with pip)",',
    '"mypy>=1.15",',
    '"pytest>=8",',
    '"rich>=13.7",',
    '"types-PyYAML",',
    "- `CDO_TODAY` (or `today` in the configuration) sets the date that models are told.",
    "`--dry-run` sends nothing, `--budget` is a hard limit.",
    'args = [] if ctx.resilient_parsing else ["--help"]',
    'demo = "cdo/data/demo"',
    "elif path == f\"cdo {words[0] if words else ''}\" and len(words) > 2:",
    "every reason kept; and a provider on loopback whose replies are written by hand (`benchmarks/by_hand.py`).",
    'for parts in _readings("".join(words.split())):',
    'gone = UsageError("The folder you are in does not exist any more.", "Change to one that does: cd …")',
    "if \"''\" in words:",
    'if state not in ("verified", "exists"):',
    'ignore = ["TRY003", "RUF001", "RUF002", "RUF003", "PTH208", "SIM108", "ASYNC109"]',
    'keywords = ["llm", "deliberation", "multi-agent", "cli"]',
    'module = "cdo_reference" # docutils has no types',
    "only `|` between alternatives and `.*` for anything in between are understood, and a backslash takes the",
    'path: File, relative to the top of the repository, such as "src/api/app.py".',
    'path: Folder, relative to the top of the repository, such as "src/api". Leave it out for the top.',
    "process that parses a model file runs with few rights where Landlock works; `cdo doctor` tells.",
    'requires = ["hatchling>=1.25"]',
    'return "exists", "line exists; only the last part of the quoted name stands there"',
    'return "refuted", f"the words stand at line {at}" if at else "the words are not in the file"',
    'return sorted(same or [name for name in ends if name.endswith(f"/{path}")] or ends)',
    'return visible(text if text.endswith((".", "?", "!", "…")) else f"{text}.")',
    'subcommand_metavar="[ARGS] PROBLEM… | COMMAND …",',
    'verified, exists = state == "verified", state == "exists"',
    'write_groups(formatter, rows, COMMANDS, "Other")',
    'print("say \\"hi\\" now")',
    'x" and "y',
    "say(“curly” words) it's the users' own",
    "name = 'it''s' # \"twice\"",
    'f"{a["b"]}" + g(\'c\')',
]
STYLES = [
    '{0} "{1}"', "{0} '{1}'", "{0} `{1}`", "{0} “{1}”", "{0} «{1}»", "{0} ``{1}``", "{0}: {1}", "({0} “{1}”)",
    'See {0} "{1}".', '- {0} "{1}" and so on', '{0} "{1}"; b.py:3 "more"',
]  # fmt: skip


def as_yaml(text: str) -> str:
    return strict_yaml.dump({"claims": [{"id": "c1", "evidence": [text]}]})


@pytest.mark.parametrize("wrap", [str, as_yaml])
@settings(max_examples=400, deadline=None)
@given(st.sampled_from(REAL_LINES), st.sampled_from(STYLES), st.data())
def test_a_whole_line_is_verified_and_a_changed_one_is_not(
    wrap: Callable[[str], str], line: str, style: str, data: st.DataObject
) -> None:
    hypothesis.assume(wrap is str or "{0}: " not in style)  # YAML breaks lines, and nothing marks where words end
    hypothesis.assume("{0}: " not in style or line[0] not in "\"'`“«\\")  # after the colon, this begins a quote
    # YAML may put one of these signs at the start of a line. Such a line does not continue a quote.
    hypothesis.assume(wrap is str or not re.search(r"\s[#|>*-]", line))
    places = [at for at, char in enumerate(line) if not char.isspace()]
    at = data.draw(st.sampled_from(places))
    changed = line[:at] + data.draw(st.sampled_from("§Ω7")) + line[at + 1 :]
    hypothesis.assume(changed != line)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "real.txt").write_text(f"first\n\n\n{line}\n\n\nlast\n", encoding="utf-8")
        good, bad = (wrap(style.format("real.txt:4", words)) for words in (line, changed))
        (finding, *_) = check_all([good], Path(folder))
        assert finding.verified, (good, finding)
        assert "✓" in marked(good, [finding])
        (finding, *_) = check_all([bad], Path(folder))
        assert not finding.verified, (bad, finding)
        if "{0}: " not in style:
            assert not finding.holds, (bad, finding)
