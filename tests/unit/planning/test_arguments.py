"""The words of a command line: every example of seed 004, every rule of SPEC 2, every error."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdo.core.errors import UsageError
from cdo.planning.arguments import (
    MODIFIERS,
    Invocation,
    NoProblem,
    Vocabulary,
    parse,
    problem_source,
    request,
    vocabulary,
)

VOCABULARY = vocabulary(["quick", "think", "deep", "full", "debug"], ["debug", "parliament"])


def invocation(
    problem: str,
    preset: str | None = None,
    modifiers: tuple[str, ...] = (),
    mode: str | None = None,
    domain: str | None = None,
) -> Invocation:
    return Invocation(preset=preset, modifiers=modifiers, mode=mode, domain=domain, problem=problem)


def error(words: list[str], after_dashes: list[str] | None = None) -> UsageError:
    with pytest.raises(UsageError) as caught:
        parse(words, VOCABULARY, after_dashes=after_dashes)
    assert caught.value.exit_code == 2
    assert caught.value.hint
    assert "\n" not in caught.value.message + caught.value.hint
    return caught.value


SEED = [  # seed 004 section 1, "Examples", in its order
    (["think", "Should we reduce node types?"], invocation("Should we reduce node types?", "think")),
    (["quick", "Summarize A2A conflicts"], invocation("Summarize A2A conflicts", "quick")),
    (["full", "Evaluate architecture"], invocation("Evaluate architecture", "full")),
    (["hitl", "Design execution model"], invocation("Design execution model", None, ("hitl",))),
    (["bd,full", "Track everything in beads"], invocation("Track everything in beads", "full", ("bd",))),
    (["team,full", "Persistent teammates"], invocation("Persistent teammates", "full", ("team",))),
    (
        ["adaptive,team,full", "Grow/shrink team per turn"],
        invocation("Grow/shrink team per turn", "full", ("adaptive", "team")),
    ),
    (["lev-exec", "Multi-model comparison"], invocation("Multi-model comparison", None, ("lev-exec",))),
    (
        ["exec", "dev", "POC dev team following lev sdlc"],
        invocation("POC dev team following lev sdlc", domain="dev"),
    ),
    (["exec", "arch", "Architecture planning team"], invocation("Architecture planning team", domain="arch")),
    (["debug", "Gateway crashes"], invocation("Gateway crashes", "debug")),
]

GRAMMAR = [
    # Args words and their order.
    (["deep", "x"], invocation("x", "deep")),
    (["full,bd", "x"], invocation("x", "full", ("bd",))),
    (["full", "bd", "team", "x"], invocation("x", "full", ("bd", "team"))),
    (["team,bd,team", "bd", "x"], invocation("x", None, ("team", "bd"))),
    (["full,parliament", "x"], invocation("x", "full", mode="parliament")),
    (["parliament", "deep", "x"], invocation("x", "deep", mode="parliament")),
    # The domain tag is the next word, whatever the args word holds after `exec`.
    (["full,exec", "dev", "x"], invocation("x", "full", domain="dev")),
    (["exec,full", "dev", "x"], invocation("x", "full", domain="dev")),
    (["exec", "dev", "bd,full", "x"], invocation("x", "full", ("bd",), domain="dev")),
    (["exec", "my-tag2", "x"], invocation("x", domain="my-tag2")),
    (["exec", "full", "x"], invocation("x", domain="full")),
    # The first other word starts the problem, and the rest belongs to it.
    (["Should", "we", "reduce", "node", "types?"], invocation("Should we reduce node types?")),
    (
        ["deep", "compare", "full,", "deep,nonsense", "exec"],
        invocation("compare full, deep,nonsense exec", "deep"),
    ),
    (["cats,dogs", "x"], invocation("cats,dogs x")),
    (["Deep", "thoughts"], invocation("Deep thoughts")),
    (["adaptve", "deep", "x"], invocation("adaptve deep x")),
    (["deeep,adaptve", "x"], invocation("deeep,adaptve x")),
    ([",", "x"], invocation(", x")),
    (["-"], invocation("-")),
    (["deep", "@problem.md"], invocation("@problem.md", "deep")),
    # A word with whitespace is never an args word, and its blanks stay as they are.
    (["deep,adaptive and more"], invocation("deep,adaptive and more")),
    (["deep, adaptive"], invocation("deep, adaptive")),
    ([" deep"], invocation(" deep")),
    (["deep\n"], invocation("deep\n")),
    (["deep", "two  blanks\tand\nlines ", "x"], invocation("two  blanks\tand\nlines  x", "deep")),
]


@pytest.mark.parametrize(("words", "expected"), SEED + GRAMMAR, ids=lambda value: str(value)[:40])
def test_words_are_read(words: list[str], expected: Invocation) -> None:
    assert parse(words, VOCABULARY) == expected


@pytest.mark.parametrize(
    ("words", "after", "expected"),
    [
        (["deep"], ["full", "of", "doubt"], invocation("full of doubt", "deep")),
        ([], ["deep"], invocation("deep")),
        ([], ["deep,adaptve", "exec"], invocation("deep,adaptve exec")),
        (["deep"], ["--", "-x"], invocation("-- -x", "deep")),
        (["deep", "Should we"], ["team", "up"], invocation("Should we team up", "deep")),
        (["deep", "x"], [], invocation("x", "deep")),
    ],
)
def test_after_two_dashes_everything_is_the_problem(words: list[str], after: list[str], expected: Invocation) -> None:
    assert parse(words, VOCABULARY, after_dashes=after) == expected


def test_a_content_file_is_a_word() -> None:
    mine = vocabulary(["deep", "premortem"], ["socratic"])
    assert parse(["premortem,socratic", "x"], mine) == invocation("x", "premortem", mode="socratic")
    assert parse(["premortem", "x"], VOCABULARY) == invocation("premortem x")


def test_a_word_has_one_meaning() -> None:
    mine = vocabulary(["deep", "team", "exec", "both"], ["parliament", "both", "hitl"])
    assert mine == Vocabulary(presets=frozenset({"deep", "both"}), modes=frozenset({"parliament"}))
    assert mine.kind("both") == "preset"
    assert mine.kind("team") == "modifier"
    assert mine.kind("exec") == "domain"
    assert mine.kind("parliament") == "mode"
    assert mine.kind("") is None
    assert mine.modifiers == MODIFIERS == ("hitl", "bd", "team", "adaptive", "lev-exec")


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (
            ["deep,adaptve", "x"],
            "`adaptve` in `deep,adaptve` is not a preset, modifier or mode",
            "Write `adaptive`, or put `--` before the problem if the word belongs to it",
        ),
        (
            ["deep,Adaptive", "x"],
            "`Adaptive` in `deep,Adaptive` is not a preset, modifier or mode",
            "Write `adaptive`, or put `--` before the problem if the word belongs to it",
        ),
        (
            ["deep,adaptve,htil", "x"],
            "`adaptve` and `htil` in `deep,adaptve,htil` are not presets, modifiers or modes",
            "Write `adaptive` or `hitl`, or put `--` before the problem if the word belongs to it",
        ),
        (
            ["bd,zzzz", "x"],
            "`zzzz` in `bd,zzzz` is not a preset, modifier or mode",
            "Write `adaptive`, `bd`, `debug`, `deep`, `exec`, `full`, `hitl`, `lev-exec`, `parliament`,"
            " `quick`, `team` or `think`, or put `--` before the problem if the word belongs to it",
        ),
        (
            ["full,a,b,c,d,e", "x"],
            "`a`, `b`, `c` and 2 more in `full,a,b,c,d,e` are not presets, modifiers or modes",
            None,
        ),
        (
            ["exec,dev", "x"],
            "`dev` in `exec,dev` is not a preset, modifier or mode",
            "Write the tag as its own word at the end: `exec dev`, or put `--` before the problem if the word"
            " belongs to it",
        ),
        (
            ["deep,", "x"],
            "`deep,` has nothing before or after a comma",
            "Write args without blanks, as in `deep,adaptive`, or put `--` before the problem if the word"
            " belongs to it",
        ),
        ([",deep", "x"], "`,deep` has nothing before or after a comma", None),
        (["deep,,bd", "x"], "`deep,,bd` has nothing before or after a comma", None),
        (
            ["deep,full", "x"],
            "`deep` and `full` are both presets",
            "Give one preset only, or put `--` before the problem if the word belongs to it",
        ),
        (["quick", "think", "about", "it"], "`quick` and `think` are both presets", None),
        (["deep", "debug", "x"], "`deep` and `debug` are both presets", None),
        (["deep,deep", "x"], "`deep` is given twice", None),
        (["parliament,parliament", "x"], "`parliament` is given twice", None),
        (["exec", "dev", "exec", "arch", "x"], "`dev` and `arch` are both domains", None),
        (
            ["exec"],
            "`exec` has no domain tag after it",
            "Write one after it (a-z, 0-9 and -), as in `exec dev`, or put `--` before the problem if the"
            " word belongs to it",
        ),
        (
            ["exec", "dev,full", "x"],
            "`dev,full` after `exec` is not a domain tag alone",
            "Write `full,exec dev`, or put `--` before the problem if the word belongs to it",
        ),
        (
            ["deep,exec", "arch,bd,hitl", "x"],
            "`arch,bd,hitl` after `exec` is not a domain tag alone",
            "Write `deep,bd,hitl,exec arch`, or put `--` before the problem if the word belongs to it",
        ),
        (
            ["exec,dev,full", "x"],
            "`dev` in `exec,dev,full` is not a preset, modifier or mode",
            "Write the tag as its own word at the end: `full,exec dev`, or put `--` before the problem if the word"
            " belongs to it",
        ),
        (["exec", "dev,fulll", "x"], "`dev,fulll` after `exec` is not a domain tag", None),
        (["exec", "Build a POC"], "`Build a POC` after `exec` is not a domain tag", None),
        (["exec", "2fa", "x"], "`2fa` after `exec` is not a domain tag", None),
        (["exec", "../../etc", "x"], "`../../etc` after `exec` is not a domain tag", None),
        (["exec", "dév", "x"], "`dév` after `exec` is not a domain tag", None),
        (["exec", "dev\n", "x"], "`dev�` after `exec` is not a domain tag", None),
        ([], "There is no problem to work on", 'Write it after the args, as in `cdo deep "…"`'),
        (["deep,bd"], "There is no problem to work on", None),
        (["exec", "dev"], "There is no problem to work on", None),
        (["deep", ""], "The problem is empty", 'Write it after the args, as in `cdo deep "…"`'),
        (["  ", "\n"], "The problem is empty", None),
    ],
    ids=lambda value: str(value)[:40],
)
def test_errors_say_what_happened_and_what_to_do(words: list[str], message: str, hint: str | None) -> None:
    caught = error(words)
    assert caught.message == message
    if hint is not None:
        assert caught.hint == hint


def test_two_modes() -> None:
    with pytest.raises(UsageError, match="`parliament` and `socratic` are both modes"):
        parse(["parliament", "socratic", "x"], vocabulary([], ["parliament", "socratic"]))


def test_two_dashes_are_not_a_tag_nor_a_problem() -> None:
    assert error(["exec"], ["dev", "x"]).message == "`exec` has no domain tag after it"
    assert error(["deep"], []).message == "There is no problem to work on"


def test_only_a_problem_that_is_not_there_may_come_from_a_pipe() -> None:
    assert isinstance(error(["deep"]), NoProblem)
    assert not isinstance(error(["deep", ""]), NoProblem)
    assert not isinstance(error(["exec"]), NoProblem)


def test_errors_are_short_and_safe_for_a_terminal() -> None:
    caught = error(["deep," + "x" * 1_000_000, "x"])
    assert len(caught.message) < 200
    assert len(caught.hint) < 300
    shown = error(["deep,\x1b[31m\udcff", "x"])
    assert "\x1b" not in shown.message
    shown.message.encode()  # a surrogate of a badly encoded argv would raise here


# -- where the problem comes from -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        ("-", ("stdin", "")),
        ("@problem.md", ("file", "problem.md")),
        ("@../a/b.md", ("file", "../a/b.md")),
        ("@@x", ("file", "@x")),
        ("@alice said no", ("text", "@alice said no")),
        ("- and more", ("text", "- and more")),
        ("--", ("text", "--")),
        ("mail a@b.example", ("text", "mail a@b.example")),
        ("Evaluate architecture", ("text", "Evaluate architecture")),
    ],
)
def test_problem_source(problem: str, expected: tuple[str, str]) -> None:
    assert problem_source(problem) == expected


def test_an_at_sign_alone_names_no_file() -> None:
    with pytest.raises(UsageError, match="`@` names no file"):
        problem_source("@")


# -- properties -----------------------------------------------------------------------------------

TOKENS = st.sampled_from([*VOCABULARY.words(), "adaptve", "dev", "", "x"])
ARGV = st.lists(st.lists(TOKENS, min_size=1, max_size=4).map(",".join) | st.text(max_size=12), max_size=8)
SENTENCES = st.tuples(st.text(), st.text()).map(" ".join)


@pytest.mark.wide
@given(ARGV, st.none() | st.lists(st.text(max_size=12), max_size=4))
def test_nothing_but_a_usage_error(words: list[str], after: list[str] | None) -> None:
    try:
        result = parse(words, VOCABULARY, after_dashes=after)
    except UsageError as refused:
        assert refused.message
        assert refused.hint
    else:
        argv = " ".join([*words, *(after or ())])
        assert argv.endswith(result.problem)
        problem_source(result.problem) if result.problem != "@" else None


@given(
    st.sampled_from([None, "quick", "think", "deep", "full", "debug"]),
    st.lists(st.sampled_from(MODIFIERS), max_size=4),
    st.sampled_from([None, "parliament"]),
    st.sampled_from([None, "dev", "arch", "full"]),
    st.booleans(),
    SENTENCES.filter(str.strip),
)
def test_args_go_before_the_problem_and_nowhere_else(
    preset: str | None,
    modifiers: list[str],
    mode: str | None,
    domain: str | None,
    joined: bool,
    problem: str,
) -> None:
    tokens = [token for token in (preset, *modifiers, mode) if token]
    words = [",".join(tokens)] if joined and tokens else tokens
    words += ["exec", domain] if domain else []
    expected = invocation(problem, preset, tuple(dict.fromkeys(modifiers)), mode, domain)
    assert parse([*words, problem], VOCABULARY) == expected
    assert parse(words, VOCABULARY, after_dashes=[problem]) == expected


@given(SENTENCES.filter(str.strip), ARGV)
def test_after_the_problem_began_no_word_is_an_arg(problem: str, rest: list[str]) -> None:
    assert parse([problem, *rest], VOCABULARY) == invocation(" ".join([problem, *rest]))


@given(st.lists(st.text(), min_size=1).filter(lambda words: bool("".join(words).strip())))
def test_after_two_dashes_the_problem_is_verbatim(words: list[str]) -> None:
    assert parse([], VOCABULARY, after_dashes=words) == invocation(" ".join(words))


@pytest.mark.parametrize("word", ["deep", "exec", "quick,hitl", "lev-exec"])
def test_a_request_has_no_args(word: str) -> None:
    for words in ([word], [word, "Build a TODO app"], [word, "the", "app"]):
        with pytest.raises(UsageError, match="not for `cdo cabal`"):
            request(words, VOCABULARY)
    for words in ([f"{word} the app"], ["Build", word], ["Go", "deeper"]):
        assert request(words, VOCABULARY) == " ".join(words)
    for words in ([], [""], [" ", "\n"]):
        with pytest.raises(UsageError, match="empty"):
            request(words, VOCABULARY)


def test_imports_are_light() -> None:
    code = "import sys, cdo.planning.arguments; print(*({'click', 'difflib', 'yaml', 'pydantic'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
