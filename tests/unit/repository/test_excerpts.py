"""What is kept of a file that is too long: headings, tables of parts, signatures; and every cut keeps its room."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdo.repository.context import cut, piece_of
from cdo.repository.excerpts import GAP, essential, thinned
from cdo.repository.visible_files import lines_of, numbered

PROSE = "".join(f"Some prose about nothing in particular, line {number} of many.\n" for number in range(40))
TABLE = (
    "| layer | modules | job |\n|---|---|---|\n"
    + "".join(f"| layer {n} | `mod_{n}` `other_{n}` | what it does for layer {n} |\n" for n in range(12))
)  # fmt: skip
README = f"# Shop\n\n{PROSE}\n## Use\n\n{PROSE}\n## Parts\n\nIn short:\n\n{TABLE}\n{PROSE}\n### Limits\n\n{PROSE}"
NUMBERS = "| tool | time |\n|---|---|\n" + "".join(f"| tool {n} | {n}.0 s |\n" for n in range(12))


def thin(text: str, name: str, room: int) -> str:
    found = thinned(numbered(lines_of(text)), name, room)
    assert found is not None
    return found


def shown(text: str, name: str, room: int) -> list[str]:
    """The lines that are kept, without their numbers."""
    return [line.partition("| ")[2] for line in thin(text, name, room).splitlines() if line != GAP]


# -- Markdown --------------------------------------------------------------------------------------


def test_the_table_of_parts_is_kept_whole_with_all_headings_and_prose_goes() -> None:
    kept = shown(README, "README.md", 2000)
    assert set(TABLE.splitlines()) <= set(kept)
    assert [line for line in kept if line.startswith("#")] == ["# Shop", "## Use", "## Parts", "### Limits"]
    assert sum("Some prose" in line for line in kept) < 20


def test_the_table_of_parts_is_named_as_what_a_readme_needs() -> None:
    need = essential(numbered(lines_of(README)), "README.md")
    assert set(TABLE.splitlines()) <= set(shown(README, "README.md", need + 20)) and need < 1500
    assert essential("1| x = 1\n", "a.py") == 0


@pytest.mark.parametrize("parts", [
    "".join(f"- `mod_{n}`: what it does\n" for n in range(9)),
    "".join(f"* **[src/mod_{n}/](src/mod_{n})** - what it does\n" for n in range(9)),
    "```\nshop\n" + "".join(f"├── mod_{n}/  what it does\n" for n in range(9)) + "└── main.py\n```\n",
    "".join(f"1. mod_{n}.py: what it does\n" for n in range(9)),
])  # fmt: skip
def test_lists_and_drawings_of_parts_are_kept_too(parts: str) -> None:
    text = f"# Shop\n\n{PROSE}\n## Layout\n\n{parts}\n## More\n\n{PROSE}\n{NUMBERS}\n"
    kept = shown(text, "docs/a.md", 700)
    assert set(parts.splitlines()) <= set(kept) and {"# Shop", "## Layout", "## More"} <= set(kept)


def test_other_tables_make_room_for_the_one_of_parts() -> None:
    text = f"# Shop\n\n{NUMBERS}\n{PROSE}\n{TABLE}"
    kept = set(shown(text, "README.md", 1000))
    assert set(TABLE.splitlines()) <= kept and not set(NUMBERS.splitlines()[2:]) & kept


def test_rows_are_shortened_before_any_is_left_out() -> None:
    long = TABLE.replace("what it does", "what it does and why and for whom, " * 20)
    text = f"# Shop\n\n{PROSE}\n{long}"
    kept = thin(text, "README.md", 1500)
    assert all(f"`mod_{n}` `other_{n}`" in kept for n in range(12)) and kept.count("…\n") >= 12
    assert len(kept.encode()) <= 1500


def test_without_structure_there_is_nothing_to_keep() -> None:
    for name in ("a.md", "a.py", "a.csv", "a"):
        assert thinned(numbered(lines_of(PROSE)), name, 1000) is None
    assert thinned(numbered(lines_of(README)), "README.md", 5) is None


# -- code ------------------------------------------------------------------------------------------

BODY = "".join(f"    value_{number} = compute(value, {number})\n" for number in range(30))
PYTHON = f'''"""Keeps things.

And more about that.
"""

import os

LIMIT = 3


@dataclass
class Store:
    """Holds what is kept."""

    def put(
        self,
        item: str,
    ) -> None:
        """Keep an item.

        class of things
        """
{BODY}
    def _get(self) -> str:
{BODY}

def small(x: int) -> int:
    return x


async def main() -> None:
{BODY}'''
OTHERS = {
    "a.ts": (
        f"// Serves.\nimport x from 'x'\n\n/** Starts it. */\nexport async function start(\n"
        f"  port: number\n) {{\n{BODY}}}\n"
        f"\nexport class App {{\n  private run(x: X): Y {{\n{BODY}  }}\n}}\nexport const go = (x) => {{\n{BODY}}}\n",
        "// Serves.|/** Starts it. */|export async function start(|  port: number|export class App {|"
        "  private run(x: X): Y {|export const go = (x) => {",
    ),
    "a.go": (
        f"// Copyright of X.\n\n// Package shop sells.\npackage shop\n\n// Cart holds.\n"
        f"type Cart struct {{\n{BODY}}}\n"
        f"\n// Add adds.\nfunc (c *Cart) Add(i Item) error {{\n{BODY}}}\n",
        "// Package shop sells.|// Cart holds.|type Cart struct {|// Add adds.|func (c *Cart) Add(i Item) error {",
    ),
    "a.rs": (
        f"//! Sells.\n\n/// A cart.\n#[derive(Debug)]\npub struct Cart {{\n{BODY}}}\n\nimpl Cart {{\n"
        f"    pub(crate) fn add(&self) {{\n{BODY}    }}\n}}\n",
        "//! Sells.|/// A cart.|#[derive(Debug)]|pub struct Cart {|impl Cart {|    pub(crate) fn add(&self) {",
    ),
    "A.java": (
        f"/*\n * Copyright.\n */\npackage a;\n\n/**\n * Sells.\n */\npublic final class A {{\n"
        f"  public int sell(int x) {{\n{BODY}  }}\n}}\n",
        " * Sells.|public final class A {|  public int sell(int x) {",
    ),
    "a.c": (
        f"/* Sells. */\n#include <x.h>\n\nstatic int sell(struct cart *c,\n                int n) {{\n{BODY}}}\n"
        f"\nint main(void) {{\n{BODY}}}\n",
        "/* Sells. */|static int sell(struct cart *c,|                int n) {|int main(void) {",
    ),
}  # fmt: skip


def test_signatures_and_what_is_said_of_them_are_kept() -> None:
    kept = shown(PYTHON, "store.py", 600)
    wanted = (
        '"""Keeps things.|@dataclass|class Store:|    """Holds what is kept."""|    def put(|        item: str,|'
        '        """Keep an item.|    def _get(self) -> str:|def small(x: int) -> int:|async def main() -> None:'
    )
    assert [line for line in wanted.split("|") if line not in kept] == []
    assert "    return x" in kept, "a definition that fits is kept whole"
    assert not any("value_5 " in line for line in kept) and "        class of things" not in kept


def test_with_more_room_whole_definitions_come_back() -> None:
    text = thin(PYTHON, "store.py", 2600)
    assert text.count("value_29 = ") in (1, 2) and text.count("value_29 = ") == text.count("value_0 = ")


@pytest.mark.parametrize("name", OTHERS)
def test_definitions_of_other_languages(name: str) -> None:
    text, wanted = OTHERS[name]
    kept = shown(text, name, 500)
    assert [line for line in wanted.split("|") if line not in kept] == []
    assert not any("value_5 " in line for line in kept)


# -- every cut -------------------------------------------------------------------------------------

LINES = st.lists(
    st.sampled_from(
        [
            *(
                "# A",
                "### B c",
                "",
                "",
                "- `x`: y",
                "```",
                "| a | `b` | c |",
                "|---|---|---|",
                "prose " * 9,
                "é" * 50,
            ),
            *("def f(x):", "class A:", "    def g(", "    '''Says.", "    return 1", "@x", "# c", "[…]", '"""'),
        ]
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(LINES, st.sampled_from(["a.md", "a.py", "a.c", "a.rs"]), st.integers(0, 3000))
def test_whatever_is_cut_keeps_its_room_and_its_order(lines: list[str], name: str, room: int) -> None:
    text = numbered(lines)
    found = thinned(text, name, room)
    assert found == thinned(text, name, room)
    if found is None:
        return
    assert len(found.encode()) <= room
    numbers = []
    for line in found.splitlines():
        if line != GAP:
            number, bar, code = line.partition("| ")
            whole = lines[int(number) - 1]
            assert bar and (whole == code or (code.endswith("…") and whole.startswith(code[:-1])))
            numbers.append(int(number))
    assert numbers == sorted(set(numbers))
    gaps = sum(after > before + 1 for before, after in pairwise([0, *numbers, len(lines) + 1]))
    assert found.splitlines().count(GAP) == gaps, "each gap is told, and nothing else is"


def test_a_piece_that_is_cut_knows_what_it_was() -> None:
    piece = piece_of("README.md", README)
    less = cut(piece, 500)
    assert less and less.cut and less.tokens <= 500 and less.uncut() == piece
    assert set(TABLE.splitlines()) <= {line.partition("| ")[2] for line in less.text.splitlines()}
