"""Files of a session in the renderers that people have: nothing runs, nothing is loaded, no link hides its address.

Five renderers, with HTML and every scheme let through, make pages of them; Chromium judges the pages. The renderers
are installed by tests/support/renderers/install.sh. As a script it takes a number of texts: `python -m
tests.real.test_markdown_renderers 200000`.
"""

from __future__ import annotations

import html
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cdo.core.formatting import without_controls
from cdo.formats.markdown import inert_line
from cdo.session.artifact import Artifact, from_file
from tests.support import screens
from tests.support.harness import lacking

SUPPORT = Path(__file__).parent.parent / "support" / "renderers"
PLACE = Path(os.environ.get("CDO_TEST_RENDERERS", Path.home() / ".cache/cdo-tests/renderers"))
AT_ONCE = 2_000  # texts in one page
OWN = {"kind": "agent", "role": "critic", "turn": 1, "sha256": ""}
PIECES = (
    "https://x.example/y", "www.x.example/", "http://x.example", "a@b.example", "mailto:a@b.example",
    "xmpp:a@b.example", "<img src=//127.0.0.1:9/x onerror=hit()>", "<script>hit()</script>", "<svg/onload=hit()>",
    "<a href=javascript:hit()>", "<iframe src=//127.0.0.1:9/>", "<style>@import'//127.0.0.1:9/'</style>",
    "<javascript:hit()>", "</p>", "<b>", "<!--", "-->", "<?x", "<![CDATA[", "]]>", "<", ">", "&lt;", "&amp;",
    "&#60;", "&#x3c;", "&lt;img src=x onerror=hit()&gt;", "[a](javascript:hit())", "![a](//127.0.0.1:9/x)",
    "[a](//x.example/ 'b')", "[a](data:text/html,x)", "](", "![", "[", "]", "(", ")", "[r]",
    "\n[r]: javascript:hit()\n", "\n[r]: //127.0.0.1:9/x\n", "![r]", "[^1]", "\n[^1]: x", ":", "`", "``", "```",
    "~~~", "\n```\n", "\n~~~\n", "\n```html\n", "\n    ", "\t", "\\", "\\\\", "*", "**", "_", "~~", "^", "|",
    "\n|a|b|\n|-|-|\n|", "\n- ", "\n1. ", "\n> ", "\n# ", "\n===\n", "\n---\n", "\n", "\n\n", "  \n", " ", "a",
    "\xe9", "'", '"', "=", "{", "}", "$", "\x1b]52;c;x\x07", "\u202e", "\x9b2J", "\x00", "\ufeff",
    "javascript:hit()", "x" * 40,
)  # fmt: skip


def texts(number: int, seed: int) -> list[str]:
    """So many texts of pieces that renderers read differently."""
    chance = random.Random(seed)
    return ["".join(chance.choices(PIECES, k=chance.randint(1, 14))) for _ in range(number)]


def written(text: str) -> str:
    """The file of a reply that says `text`, as a session writes it."""
    clean = without_controls(text.encode("utf-8", "replace").decode())
    artifact = Artifact({"position": clean[:200] or "x", "claims": [clean]}, clean.strip(), OWN)
    file = artifact.text()
    again = from_file(file, "t1-critic.md")
    assert (again.body, again.meta, again.edited) == (artifact.body, artifact.meta, False)
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", file)
    return file


def listed(text: str) -> str:
    """A page of a mission that tells `text`, and once more behind it, in a line where code spans stay code."""
    told = inert_line(text, code=True)
    return f"---\nround: 1\n---\n\n- **Round 1**\n  - Commands: {told}; {told} (“{told}”).\n"


def rendered(files: Sequence[str]) -> Mapping[str, str]:
    """The pages of all renderers, by `renderer number`; of each file with its front matter and without."""
    every = [part for file in files for part in (file, file.split("\n---\n", 1)[1])]
    program = ["node", str(SUPPORT / "render.mjs"), str(PLACE)]
    done = subprocess.run(program, input=json.dumps(every), capture_output=True, text=True, check=True, timeout=600)
    pages: dict[str, list[str]] = json.loads(done.stdout)
    script = (
        "import json, sys, cmarkgfm, markdown\n"
        "from cmarkgfm.cmark import Options\n"
        "names = ['table', 'autolink', 'strikethrough', 'tasklist']\n"
        "cmark = lambda text: cmarkgfm.markdown_to_html_with_extensions(text, Options.CMARK_OPT_UNSAFE, names)\n"
        "python = lambda text: markdown.markdown(text, extensions=['fenced_code', 'tables'])\n"
        "every = json.load(sys.stdin)\n"
        "print(json.dumps({'cmark-gfm': [*map(cmark, every)], 'Python-Markdown': [*map(python, every)]}))\n"
    )
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PLACE / "python")}
    done = subprocess.run(
        [sys.executable, "-c", script], input=json.dumps(every), capture_output=True, text=True, check=True, env=env
    )
    pages |= json.loads(done.stdout)
    assert all(sum(map(bool, found)) > 0.9 * len(every) for found in pages.values()), "renderers that show nothing"
    return {f"{name} {number}": page for name, found in pages.items() for number, page in enumerate(found)}


def judged(pages: Mapping[str, str], folder: Path) -> Any:
    """What Chromium says of pages: what they hold beside text, what ran, what was loaded."""
    (folder / "pages.js").write_text(f"const PAGES = {json.dumps(pages)};", "utf-8")
    shutil.copy(SUPPORT / "judge.html", folder)
    with tempfile.TemporaryDirectory() as profile:
        words = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom"]
        done = subprocess.run(
            [screens.browser(), *words, "--virtual-time-budget=20000", f"--user-data-dir={profile}",
             (folder / "judge.html").as_uri()],
            capture_output=True, text=True, check=True, timeout=600,
        )  # fmt: skip
    found = re.search(r"<body>(.*)</body>", done.stdout, re.DOTALL)
    assert found and "<title>judged" in done.stdout, done.stdout[:300]
    return json.loads(html.unescape(found[1]))


def run(number: int, seed: int, folder: Path, page: Callable[[str], str] = written) -> list[tuple[str, str]]:
    """Send so many texts, each made a `page`, through all; the first problems found, each with its text."""
    said = texts(number, seed)
    result = judged(rendered([*map(page, said)]), folder)
    assert result["judged"] == number * 2 * 5
    problems = [(why, f"{key}: {said[int(key.rpartition(' ')[2]) // 2]!r}") for key, why in result["found"]]
    return problems + [("ran", "")] * bool(result["ran"]) + [("loaded", place) for place in result["loads"]]


@pytest.mark.slow
@pytest.mark.parametrize("page", [written, listed])
def test_nothing_that_a_model_says_acts_in_any_renderer(page: Callable[[str], str], tmp_path: Path) -> None:
    if not (PLACE / "installed").exists():
        lacking("renderers", "no renderers of Markdown were found: tests/support/renderers/install.sh installs them")
    screens.browser()
    assert run(AT_ONCE, 1, tmp_path, page) == []


if __name__ == "__main__":
    for part in range(int(sys.argv[1]) // AT_ONCE):
        with tempfile.TemporaryDirectory() as place:
            if problems := [found for page in (written, listed) for found in run(AT_ONCE, part, Path(place), page)]:
                print(part, *problems, sep="\n")
                sys.exit(1)
        print(f"{(part + 1) * AT_ONCE:,} texts", flush=True)
