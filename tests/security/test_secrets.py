"""Secrets of the environment, wherever they turn up in a run: none gets into a file, onto the terminal or into git.

Thirty canaries are said by everybody who could say them, plain and as programs spell them; then everything that the
run has left is searched. The search has its own idea of spellings, and decodes whatever could be base64.
"""

from __future__ import annotations

import base64
import html
import json
import os
import re
import sys
import urllib.parse
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cdo.content.schemas import Provider as ProviderRow
from cdo.security.secrets import masked, redactor, secret_in, secret_of
from tests.conftest import A, Desk
from tests.support.answers import Answer, RequestInfo, agent_text, final_text, synthesis_text
from tests.support.provider import Fault, Provider, ToolCall
from tests.support.repositories import git, repository, turns

NAMES = (
    "HOUSE_API_KEY", "GITHUB_TOKEN", "DB_PASSWORD", "CLIENT_SECRET", "AWS_SECRET_ACCESS_KEY", "SSH_PASSPHRASE",
    "AZURE_CREDENTIALS", "SESSION_COOKIE", "NPM_AUTH", "MY_JWT",
)  # fmt: skip
SHAPES = (
    ("", "c4Nary-{:02}-xQ7Rt9"),  # as keys are
    ("OLD_", 'c4n:ary "{:02}" <it\'s> & back\\slash #é'),  # all that any format escapes
    ("NEW_", "c4n+ary/{:02}/Zm9v%20=?=="),  # what base64 and addresses are made of
)
CANARIES = {f"{prefix}{name}": shape.format(number) for prefix, shape in SHAPES for number, name in enumerate(NAMES)}
TOKEN = "ghp_q7Wz3KfR9tYb2LmXs8VdHn4JcPg6TaEu1QoZ"  # of nobody's environment: it only looks like one


def ways(value: str) -> set[str]:
    """A value in the spellings that are searched for as they are."""
    found = {value, value.replace("'", "''"), *(json.dumps(value, ensure_ascii=odd)[1:-1] for odd in (True, False))}
    found |= {html.escape(value), html.escape(value, quote=False), html.escape(value).replace("&#x27;", "&#39;")}
    quoted = {urllib.parse.quote(value), urllib.parse.quote(value, safe=""), urllib.parse.quote_plus(value)}
    return found | quoted | {re.sub("%[0-9A-F]{2}", lambda code: code[0].lower(), text) for text in quoted}


def encoded(value: str) -> list[str]:
    """A value in base64, alone and behind one to three other bytes, as a header for a name and a password has it."""
    texts = [f"{'u' * before}{value}{after}".encode() for before in range(4) for after in ("", ":x")]
    return [coder(text).decode() for text in texts for coder in (base64.b64encode, base64.urlsafe_b64encode)]


def leaks(texts: Mapping[str, str]) -> list[tuple[str, str]]:
    """(variable, place) wherever a canary stands in one of the texts, in any of the spellings."""
    found = set()
    for place, text in texts.items():
        folded = " ".join(text.split())
        plain = {*map(str, decoded(text)), text, folded}
        for name, value in CANARIES.items():
            # Its first two thirds: a text that is cut in the middle of a secret gives most of it away.
            if any(way in piece for way in (value[: len(value) * 2 // 3], *ways(value)) for piece in plain):
                found.add((name, place))
    return sorted(found)


def decoded(text: str) -> Iterable[str]:
    """What could be base64 in a text, decoded from each of the four places where a group can begin."""
    for run in set(re.findall(r"[A-Za-z0-9+/_-]{12,}", text)):
        for start in range(4):
            digits = run[start:].replace("-", "+").replace("_", "/")
            data = base64.b64decode(digits[: len(digits) // 4 * 4]).decode("utf-8", "ignore")
            if "c4" in data:
                yield data


def objects(folder: Path) -> str:
    """All that lies in a repository's object store, reachable or not."""
    ids = git(folder, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)")
    return git(folder, "cat-file", "--batch", data=f"{ids}\n".encode())


# -- a whole run -----------------------------------------------------------------------------------

EVERY = " | ".join([*CANARIES.values(), *sorted({way for value in CANARIES.values() for way in ways(value)})])
PARTS = [" | ".join(list(CANARIES.values())[at::3]) for at in range(3)]
ALL = " | ".join(CANARIES.values())
CODED = " ".join(code for value in list(CANARIES.values())[::3] for code in encoded(value))
AGENT = """\
purpose: A program that says what it should not.
load_when: a model is called `chatty`
program: chatty
install: it comes with the tests
vendor: acme
argv: [--once]
env: {names: [PATH, HOME, GITHUB_TOKEN]}
output: json
read: {text: {paths: [text]}, done: {paths: [text]}}
exits: {3: rejected}
window: 100000
reply_tokens: 4096
"""
CHATTY = f"""#!{sys.executable}
import json, os, pathlib, sys
sys.stdin.read()
place = pathlib.Path(__file__).parent
(place / f"seen-{{os.getpid()}}.json").write_text(json.dumps(dict(os.environ)))
sys.stderr.write(f"Error: your token {{os.environ['GITHUB_TOKEN']}} is bad. " + (place / "every.txt").read_text())
sys.exit(3)
"""
TABLE = """\
purpose: One provider, whose key has a name of its own.
load_when: a model name is resolved
providers:
  house: {url: URL, key_env: [HOUSE_API_KEY], model: mine}
"""


def script(info: RequestInfo) -> Answer | Fault | None:
    """A model that says every canary wherever it can say something."""
    part = PARTS[len(info.call) % 3]
    front = agent_text(f"Use {part}", claims=[f"{ALL} works"], objections=[ALL], prose=f"{EVERY}\n\n{CODED}")
    if info.call == "t1-pragmatist" and info.attempt == 1:
        return Answer(f"malformed {EVERY}", reasoning=f"{EVERY} {CODED}")
    if info.call == "t2-first-principles":
        return Fault(status=400, body={"error": {"message": f"your key {EVERY} is odd", "code": CANARIES["MY_JWT"]}})
    if (
        info.kind == "agent"
        and info.body.get("tools")
        and not any(m["role"] == "tool" for m in info.body["messages"])
    ):
        wishes = ({"path": "notes.txt"}, {"path": CANARIES["DB_PASSWORD"]}, {CANARIES["NPM_AUTH"]: EVERY})
        return Answer(tool_calls=tuple(ToolCall(f"c{n}", "read", json.dumps(w)) for n, w in enumerate(wishes)))
    if info.kind == "agent":
        keys = "".join(f"{json.dumps(value)}: {{{json.dumps(value)}: 1}}\n" for value in CANARIES.values())
        return Answer(front.replace("---\n", f"---\n{keys}", 1), reasoning=EVERY)
    if info.kind == "synthesis":
        return Answer(synthesis_text(focus=PARTS[0], tensions=[PARTS[1]], gaps=[PARTS[2]]))
    return Answer(final_text(f"Use {EVERY} {CODED}", tensions=[f"T1 {ALL}"], minority=[f"o1 {ALL}"]))


@pytest.fixture
def chatty(cdo: Desk, provider: Provider, tmp_path: Path) -> Desk:
    """A desk in a repository, with every canary in its environment, and a model and a program that say them all."""
    repository(cdo.path)
    cdo.write("notes.txt", f"Our keys:\n{EVERY}\n{CODED}\n")
    cdo.write("../config/dispatch/agents/chatty.yaml", AGENT)
    cdo.write("../config/dispatch/providers.yaml", TABLE.replace("URL", f"{provider.url}/v1"))
    cdo.write("../typed/every.txt", EVERY[:2000])
    cdo.write("../typed/chatty", CHATTY).chmod(0o755)
    (tmp_path / "temporary").mkdir()
    provider.script = script
    return cdo.having(
        **CANARIES, PATH=f"{tmp_path}/typed:{os.environ['PATH']}", TMPDIR=str(tmp_path / "temporary"),
        CDO_CONFIG_DIR=str(tmp_path / "config"), CDO_CACHE_DIR=str(tmp_path / "cache"), OPENAI_API_KEY="",
        XDG_DATA_HOME=str(tmp_path / "data"),
    )  # fmt: skip


def test_thirty_canaries_are_found_nowhere(chatty: Desk, provider: Provider, tmp_path: Path) -> None:
    assert len(CANARIES) == 30
    models = ("-m", "house/one", "-m", "chatty", "-m", "house/two")
    said = [
        chatty("team,think", "-v", "--turns", "2", "--max-calls", "9", *models, "-c", "notes.txt", *A, f"Why {ALL}?")
    ]
    assert said[0].code == 5, said[0].err
    # What a person types lies where they put it, and gets no further.
    letter = chatty.write("tmp/cdo-a/team/inbox/1.md", f"---\nto: all\n---\nMind {ALL} {TOKEN}\n")
    artifact = chatty.session() / "t1-first-principles.md"
    edit = f"position: {json.dumps(PARTS[0])}\n"
    artifact.write_text(re.sub(r"(?m)^position: .*\n( .*\n)*", lambda _: edit, artifact.read_text()))
    said.append(chatty("resume", "a", "--yes", "-v", "--max-calls", "99").ok())
    typed = {chatty.path / "notes.txt", artifact, letter, letter.parents[1] / "taken/1.md"}
    assert not letter.exists() and (letter.parents[1] / "taken/1.md").read_text().count(TOKEN) == 1
    said += chatty.several(
        ["report", "a"],
        ["show", "a"],
        ["show", "a", "t1-first-principles.md"],
        ["search", "redacted"],
        ["final", "a"],
    )
    assert "redacted" in said[-2].out, said[-2].err
    files = {str(path): path for path in tmp_path.rglob("*") if path.is_file() and path not in typed}
    inside = {
        name: path
        for name, path in files.items()
        if not name.startswith((f"{tmp_path}/typed", f"{chatty.path}/.git"))
    }
    assert {"report.html", "FINAL.md", "journal.jsonl"} <= {path.name for path in inside.values()}
    texts = {name: path.read_bytes().decode("utf-8", "replace") for name, path in inside.items()}
    assert leaks(texts) == []
    assert leaks({str(number): run.out + run.err for number, run in enumerate(said)}) == []
    # git: every object there is, the names of files and the messages of commits among them.
    assert "turn 2" in turns(chatty.path)
    kept = objects(chatty.path)
    assert leaks({"git": kept}) == [] and TOKEN not in kept
    assert "left out of the commits" in said[1].err
    # The key did its work, others were sent to nobody, and a program got what its file names alone.
    assert {info.headers["Authorization"] for info in provider.calls} == {f"Bearer {CANARIES['HOUSE_API_KEY']}"}
    assert leaks({info.call: info.prompt for info in provider.calls}) == []
    given = [json.loads(path.read_text()) for path in (tmp_path / "typed").glob("seen-*.json")]
    assert given and all(set(env) & set(CANARIES) == {"GITHUB_TOKEN"} for env in given)


# -- taking secrets out of texts -------------------------------------------------------------------


REDACT = redactor({**CANARIES, "HOME": "/root"})
VALUES = st.sampled_from(sorted(CANARIES.values()))
AROUND = st.text(alphabet="ab \n\"'<=…é", max_size=20)


@settings(max_examples=40)
@given(VALUES, AROUND, AROUND)
def test_every_spelling_is_taken_out_and_nothing_else(value: str, before: str, after: str) -> None:
    for way in ways(value) | {html.escape(value).replace("&#x27;", "&apos;")}:
        text = REDACT(f"{before}{way}{after}")
        name = next(name for name, known in CANARIES.items() if known == value)
        assert text == f"{before}[redacted:{name}]{after}"
    for code in encoded(value):
        assert leaks({"": REDACT(f"{before} {code} {after}")}) == []
    assert REDACT(before + after) == before + after


@given(VALUES, AROUND, st.data())
def test_a_secret_in_which_a_text_was_cut_is_taken_out(value: str, around: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(8, len(value) - 1))
    for ending in ("", "…"):
        text = REDACT(f"{around}|{value[:at]}{ending}")
        assert value[:8] not in text and text.startswith(f"{around}|[redacted:")
    text = REDACT(f"{value[-at:]}|{around}")
    assert value[-8:] not in text and text.endswith(f"]|{around}")


@given(st.text(), VALUES)
@example("", CANARIES["NPM_AUTH"])
def test_what_has_lost_its_secrets_stays_as_it_is(text: str, value: str) -> None:
    clean = REDACT(f"{text} {value} {text}")
    assert REDACT(clean) == clean


# -- what only looks like a secret -----------------------------------------------------------------

LOOKS = {
    "a GitHub token": TOKEN,
    "an API key": "sk-proj-Q7Wz3KfR9tYb2LmXs8Vd-n4JcPg6TaEu1QoZ",
    "an AWS access key": "AKIA" + "Q7WZ3KFR9TYB2LMX",
    "a Slack token": "xoxb-123456789012-q7Wz3KfR9tYb2LmXs8Vd",
    "a private key": "-----BEGIN RSA PRIVATE KEY-----\n"
    + "q7Wz3KfR9tYb2LmXs8VdHn4JcPg6TaEu\n" * 4
    + "-----END RSA PRIVATE KEY-----",
}
WORDS = st.text(alphabet="ab \n,;é", max_size=30)


@given(st.lists(st.sampled_from(sorted(LOOKS)), min_size=1, max_size=3), WORDS)
def test_what_looks_like_a_key_is_taken_out_to_its_end(kinds: list[str], words: str) -> None:
    text = f" {words}, ".join(["", *(LOOKS[what] for what in kinds), ""])
    wanted = f" {words}, ".join(["", *(f"[redacted:{what}]" for what in kinds), ""])
    assert masked(text).replace("----[redacted:a private key]", "[redacted:a private key]") == wanted
    assert not secret_in(masked(text)) and masked(wanted) == wanted


@pytest.mark.parametrize("what", LOOKS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
def test_a_file_is_known_by_what_it_holds_or_is_called(what: str, encoding: str) -> None:
    assert secret_of("a.md", f"x\n{LOOKS[what]}\n".encode(encoding), str) == f"what looks like {what}"
    assert secret_of("a.md", f"x {CANARIES['MY_JWT']}".encode(encoding), REDACT) == "the value of a secret variable"
    assert secret_of(f"{TOKEN}.md", b"", str) == "what looks like a GitHub token"
    assert secret_of("a.md", "ghp_EXAMPLE and words".encode(encoding), REDACT) == ""


def test_a_providers_key_comes_from_a_variable_that_is_known_to_hold_one(bare: Desk) -> None:
    assert ProviderRow(key_env=("HOUSE_API_KEY", "HOUSE_TOKEN")).key_env == ("HOUSE_API_KEY", "HOUSE_TOKEN")
    bare.write("../config/dispatch/providers.yaml", TABLE.replace("HOUSE_API_KEY", "HOUSE"))
    desk = bare.having(CDO_CONFIG_DIR=str(bare.path.parent / "config"), HOUSE="c4nary-of-a-house")
    done = desk("quick", "-m", "house/one", "Why?")
    done.failed(4, "providers.yaml", "key_env.0", "must be a name such as ACME_API_KEY")
    assert "c4nary" not in done.err
