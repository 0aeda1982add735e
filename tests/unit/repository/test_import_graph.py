"""The import graph of a repository: which file is meant by which import, and which files the others rest on."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdo.repository.excerpts import thinned
from cdo.repository.import_graph import Imports, page_rank, two_ways
from cdo.repository.outline import says
from cdo.repository.ranking import Ranking
from cdo.repository.visible_files import lines_of, numbered
from tests.support.effort import assert_linear

EDGES = st.dictionaries(
    st.sampled_from("abcdef"), st.dictionaries(st.sampled_from("abcdef"), st.floats(0.1, 1), max_size=4), max_size=6
)


def edges(files: Mapping[str, str]) -> dict[str, set[str]]:
    imports = Imports()
    for path, text in files.items():
        imports.add(path, text.encode())
    return {path: set(targets) for path, targets in imports.edges().items() if targets}


PYTHON = {
    "src/shop/__init__.py": "",
    "src/shop/store.py": "import os\nimport json\n",
    "src/shop/cart.py": "from shop import store\nfrom . import money as m, \\\n    rules\nimport shop.tax.vat\n",
    "src/shop/money.py": "",
    "src/shop/rules.py": "def f():\n    from .tax import (\n        vat,  # the rate\n        other,\n    )\n",
    "src/shop/tax/__init__.py": "from ..store import Store\n",
    "src/shop/tax/vat.py": "",
    "scripts/run.py": "import helper\nfrom shop.cart import Cart\n",
    "scripts/helper.py": "# from shop import store\n",
    "src/shop/json.py": "",
}


def test_python() -> None:
    assert edges(PYTHON) == {
        "src/shop/cart.py": {"src/shop/store.py", "src/shop/money.py", "src/shop/rules.py", "src/shop/tax/vat.py"},
        "src/shop/rules.py": {"src/shop/tax/vat.py", "src/shop/tax/__init__.py"},
        "src/shop/tax/__init__.py": {"src/shop/store.py"},
        "scripts/run.py": {"scripts/helper.py", "src/shop/cart.py"},
        "src/shop/store.py": {"src/shop/json.py"},  # it may be the library's: a neighbour is taken for meant
    }


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {
                "src/app.ts": "import { a } from './lib/a'\nexport * from \"../src/b.js\"\nimport x from 'pad'\n",
                "src/lib/a.tsx": "const c = require('./c')\nawait import('@/deep/d')\n",
                "src/b.ts": "import type { A } from './lib'\n",
                "src/lib/index.ts": "",
                "src/lib/c.js": "",
                "src/deep/d.vue": "",
                "src/app.test.ts": "import { app } from './app'\n",
            },
            {
                "src/app.ts": {"src/lib/a.tsx", "src/b.ts"},
                "src/lib/a.tsx": {"src/lib/c.js", "src/deep/d.vue"},
                "src/b.ts": {"src/lib/index.ts"},
                "src/app.test.ts": {"src/app.ts"},
            },
        ),
        (
            {
                "packages/core/package.json": '{"name": "@shop/core"}',
                "packages/core/src/index.ts": "",
                "packages/core/src/tax.ts": "",
                "packages/web/main.ts": "import { x } from '@shop/core'\nimport t from '@shop/core/src/tax'\n",
            },
            {"packages/web/main.ts": {"packages/core/src/index.ts", "packages/core/src/tax.ts"}},
        ),
        (
            {
                "go.mod": "module example.org/shop\n",
                "main.go": 'package main\n\nimport (\n\t"fmt"\n\tst "example.org/shop/store"\n)\n',
                "store/store.go": 'package store\n\nimport "example.org/shop/internal/log"\n',
                "store/sql.go": "package store\n",
                "store/store_test.go": "package store\n",
                "internal/log/log.go": 'package log\n\nimport "log"\n',
            },
            {"main.go": {"store/store.go", "store/sql.go"}, "store/store.go": {"internal/log/log.go"}},
        ),
        (
            {
                "crates/core/Cargo.toml": '[package]\nname = "shop-core"\n',
                "crates/core/src/lib.rs": "pub mod tax;\nmod cart;\n",
                "crates/core/src/cart.rs": "use crate::tax::{self, vat::Rate};\nuse std::io;\n",
                "crates/core/src/tax/mod.rs": "pub mod vat;\n",
                "crates/core/src/tax/vat.rs": "use super::Tax;\n",
                "crates/web/src/main.rs": "use shop_core::cart::Cart;\n",
            },
            {
                "crates/core/src/lib.rs": {"crates/core/src/tax/mod.rs", "crates/core/src/cart.rs"},
                "crates/core/src/cart.rs": {"crates/core/src/tax/mod.rs", "crates/core/src/tax/vat.rs"},
                "crates/core/src/tax/mod.rs": {"crates/core/src/tax/vat.rs"},
                "crates/core/src/tax/vat.rs": {"crates/core/src/tax/mod.rs"},
                "crates/web/src/main.rs": {"crates/core/src/cart.rs"},
            },
        ),
        (
            {
                "src/main/java/org/shop/Cart.java": "import org.shop.tax.Vat;\nclass Cart { Money m; }\n",
                "src/main/java/org/shop/Money.java": "package org.shop;\n",
                "src/main/java/org/shop/tax/Vat.java": "import java.util.List;\nimport static org.shop.Money.ZERO;\n",
                "src/main/kotlin/org/shop/All.kt": "import org.shop.tax.*\n",
            },
            {
                "src/main/java/org/shop/Cart.java": {
                    "src/main/java/org/shop/tax/Vat.java", "src/main/java/org/shop/Money.java",
                },
                "src/main/java/org/shop/tax/Vat.java": {"src/main/java/org/shop/Money.java"},
                "src/main/kotlin/org/shop/All.kt": {"src/main/java/org/shop/tax/Vat.java"},
            },
        ),
        (
            {
                "src/cart.c": '#include "tax.h"\n#include <stdio.h>\n#  include <shop/money.hpp>\n',
                "src/tax.h": "",
                "src/tax.c": '#include "tax.h"\n',
                "include/shop/money.hpp": "",
                "src/stdio.h": "",
            },
            {
                "src/cart.c": {"src/tax.h", "src/tax.c", "include/shop/money.hpp"},
                "src/tax.c": {"src/tax.h"},
            },
        ),
        (
            {
                "lib/shop/cart.rb": "require 'json'\nrequire_relative '../tax'\nrequire \"shop/money\"\n",
                "lib/tax.rb": "",
                "lib/shop/money.rb": "",
                "app/Shop/Cart.php": "<?php\nuse Shop\\Tax\\Vat;\n",
                "app/Shop/Tax/Vat.php": "<?php\n",
            },
            {
                "lib/shop/cart.rb": {"lib/tax.rb", "lib/shop/money.rb"},
                "app/Shop/Cart.php": {"app/Shop/Tax/Vat.php"},
            },
        ),
    ],
    ids=["script", "packages", "go", "rust", "jvm", "c", "ruby and php"],
)  # fmt: skip
def test_other_languages(files: Mapping[str, str], expected: Mapping[str, set[str]]) -> None:
    assert edges(files) == expected


def test_of_two_files_the_nearer_one_is_meant() -> None:
    files = {f"{top}/shop/tax.py": "" for top in ("a", "b")} | {"b/web/main.py": "from shop.tax import vat\n"}
    assert edges(files) == {"b/web/main.py": {"b/shop/tax.py"}}


def test_page_rank_goes_to_what_others_rest_on_and_to_what_they_rest_on() -> None:
    graph = {"app": {"store": 1.0}, "cli": {"store": 1.0}, "store": {"disk": 1.0}, "disk": {}, "alone": {}}
    rank = page_rank(graph, dict.fromkeys(graph, 1.0))
    assert rank["disk"] > rank["store"] > rank["app"] == rank["cli"] == rank["alone"]


def test_walking_both_ways_finds_the_neighbours_of_a_subject_rather_than_what_everybody_imports() -> None:
    graph: dict[str, dict[str, float]] = {f"m{number}": {"errors": 1.0} for number in range(30)}
    graph |= {
        "queue": {"heap": 1.0, "errors": 1.0},
        "worker": {"queue": 1.0, "errors": 1.0},
        "heap": {},
        "errors": {},
    }
    rank = page_rank(two_ways(graph, apart=lambda _: False), {"queue": 1.0})
    assert (
        sorted(rank, key=lambda name: -rank[name])[:3] == ["queue", "worker", "heap"] or rank["heap"] > rank["errors"]
    )
    assert rank["worker"] > rank["errors"] and rank["heap"] > rank["errors"]


@settings(max_examples=100, deadline=None)
@given(EDGES, st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 1), max_size=6))
def test_page_rank_is_a_share_of_the_reader(graph: dict[str, dict[str, float]], seeds: dict[str, float]) -> None:
    whole: dict[str, dict[str, float]] = {name: graph.get(name, {}) for name in "abcdef"}
    for walked in (whole, two_ways(whole, apart=lambda name: name == "a")):
        rank = page_rank(walked, seeds)
        assert abs(sum(rank.values()) - 1) < 1e-6 and all(value >= 0 for value in rank.values())


PATHS = st.from_regex(r"([a-z]{1,3}/){0,2}[a-z]{1,6}\.(py|ts|go|rs|java|c|h|rb|php|mod|toml)", fullmatch=True)
PARTS = st.sampled_from(
    ["import ", "from ", "use ", "mod ", "#include ", "a.b", "./", "\n", '"', "'", "(", "::", "{", ";", ","]
)


@pytest.mark.wide
@settings(max_examples=100, deadline=None)
@given(st.dictionaries(PATHS, st.lists(PARTS | st.text(max_size=5), max_size=12).map("".join), max_size=8))
def test_any_text_has_a_graph_of_files_that_there_are(files: dict[str, str]) -> None:
    imports = Imports()
    for path, text in files.items():
        imports.add(path, text.encode("utf-8", "surrogatepass"))
    graph = imports.edges()
    assert {target for targets in graph.values() for target in targets} <= set(graph)
    assert all(0 < weight <= 1 and path != target for path, out in graph.items() for target, weight in out.items())


HOSTILE = (
    *(
        "\nfrom ",
        "\nfrom a import ",
        "\nimport ",
        "from '",
        "require ( ",
        "\nuse a::",
        "{",
        "\nmod ",
        "#include ",
        "#",
        " ",
    ),
    *(
        "\n",
        "A",
        "a.",
        '"',
        "'",
        "(",
        "/* ",
        "\nclass ",
        "\npub ",
        "//! ",
        "\\\n",
        '"""',
        "`a/",
        "| a/ ",
        "- a/b",
        "a/b ",
    ),
)


@pytest.mark.wide
@pytest.mark.parametrize("unit", HOSTILE)
def test_hostile_texts_take_linear_time(unit: str) -> None:
    def work(length: int) -> None:
        texts = (unit * (length // len(unit)), unit + " " * length, unit + "a" * length)
        for suffix in ("py", "ts", "go", "rs", "java", "c", "rb", "md"):
            ranking = Ranking("What is a batch of from imports?")
            for number, text in enumerate(texts):
                ranking.add(f"a{number}.{suffix}", text.encode())
                says(f"a.{suffix}", text[:8000])
                thinned(numbered(lines_of(text)), f"a.{suffix}", 2000)
            ranking.ranked({})

    assert_linear(work, 32_000)
