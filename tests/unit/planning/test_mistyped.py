"""Which words are refused as mistyped commands, and which are a question."""

from __future__ import annotations

import pytest

from cdo.content.library import Library
from cdo.content.schemas import CommandWords
from cdo.core.errors import UsageError
from cdo.planning.arguments import vocabulary
from cdo.planning.mistyped import TABLE, KnownWords, distance
from tests.support.harness import ROOT

COMMANDS = (
    "run",
    "resume",
    "fork",
    "replay",
    "audit",
    "cabal",
    "answer",
    "context",
    "list",
    "search",
    "cost",
    "show",
    "final",
    "watch",
    "report",
    "diff",
    "restore",
    "verify",
    "skills",
    "models",
    "doctor",
    "config",
    "content",
    "completion",
)
VOCABULARY = vocabulary(["quick", "think", "deep", "full", "debug"], ["debug", "parliament"])
TABLE_ = Library((("packaged", ROOT),)).read(TABLE, CommandWords)[0]
KNOWN = KnownWords(COMMANDS, VOCABULARY, TABLE_, lambda name: name in ("alpha", "node"))
SENTENCE = "Should we reduce node types?"


def refused(*words: str) -> str:
    with pytest.raises(UsageError) as caught:
        KNOWN.require_question(words)
    assert caught.value.exit_code == 2
    return f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["status"], "`cdo show` or `cdo list`"),
        (["init"], "`cdo doctor`"),
        (["ls"], "`cdo list`"),
        (["hepl"], "`cdo --help`"),
        (["alpha"], "`cdo show alpha`"),
        (["thnk"], "`cdo think`"),
        (["resmue"], "`cdo resume`"),
        (["resmue", "alpha"], "`cdo resume alpha`"),
        (["reprot", "20261126-101500"], "`cdo report 20261126-101500`"),
        (["foo", "20261126-101500-2", "t1-critic"], "`cdo show 20261126-101500-2`"),
        (["sohw", "alpha", "t1-critic"], "`cdo show alpha`"),
        (["thnk", SENTENCE], "`cdo think`"),
        (["thnk", *SENTENCE.split()], "`cdo think`"),
        (["qiuck", SENTENCE], "`cdo quick`"),
        (["parlament", *SENTENCE.split()], "`cdo parliament`"),
        (["deeep,adaptve", SENTENCE], "`cdo deep,adaptive`"),
        (["think", "adaptve", SENTENCE], "`adaptive`"),
        (["exec", "arch", "htil", SENTENCE], "`hitl`"),
        (["think", "deeep"], "`deep`"),
        (["Deep", SENTENCE], "`deep`"),
        (["THINK"], "`think`"),
        (["Hitl,Full", *SENTENCE.split()], "`hitl,full`"),
        (["Resume", "alpha"], "`cdo resume alpha`"),
        (["list"], "Put it first: cdo list"),
        (["show", "alpha"], "Put it first: cdo show"),
        (["thnk", "-"], "`-`"),
        (["frobnicate", "@question.md"], "`@question.md`"),
    ],
)
def test_a_mistyped_word_is_refused_with_what_was_meant(words: list[str], meant: str) -> None:
    assert meant in refused(*words)


@pytest.mark.parametrize(
    "words",
    [
        [SENTENCE],
        ["status of the migration"],
        ["thnk about it"],
        SENTENCE.split(),
        ["How", "should", "we", "shard"],
        ["Reduce", "node", "types"],
        ["Keep", "the", "monolith", "or", "split", "it"],
        ["Replace", "node", "by", "go"],
        ["For", "our", "API", "which", "protocol", "fits"],
        ["Which", "database", "is", "best"],
        ["Most", "teams", "use", "queues"],
        ["Reply", "to", "alpha", "customers", "by", "mail"],
        ["Why?"],
        ["数据库应该分片吗"],
        ["-"],
        ["@status"],
        ["think", "status"],
        ["think", "list", "the", "options"],
        ["think", SENTENCE],
        ["deep,adaptve", SENTENCE],  # the parser explains it
        ["exec", "thnk", SENTENCE],  # a tag is free
        [],
        [""],
    ],
)
def test_a_question_is_never_refused(words: list[str]) -> None:
    KNOWN.require_question(words)


def test_two_dashes_take_any_word_for_the_question() -> None:
    KNOWN.require_question([], ["status"])
    KNOWN.require_question(["think"], ["deeep", "thoughts"])
    with pytest.raises(UsageError):
        KNOWN.require_question(["thnk"], [SENTENCE])


def test_a_session_name_inside_a_sentence_is_a_word_like_any_other() -> None:
    KNOWN.require_question(["Split", "node", "into", "parts"])
    assert "is the name of a session" in refused("splt", "node")


def test_a_distance_counts_swapped_neighbours_once() -> None:
    assert [distance("reprot", "report"), distance("thnk", "think"), distance("", "abc")] == [1, 1, 3]
    assert distance("deep", "deep") == 0
