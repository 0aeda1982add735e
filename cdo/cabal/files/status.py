"""Reads a mission's status from the files of its products: the tree with status, owner, version and verdict.

It only reads. A person may have changed the files: unreadable ones are left out, and no decision depends on them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from cdo.cabal.files import serialization
from cdo.cabal.model.entities import Product, Status
from cdo.cabal.model.round_summary import row
from cdo.core.errors import SessionError
from cdo.core.events import ProductData
from cdo.session.reader import SessionReader

_FILE = re.compile(r"products/(p[0-9]{1,6})-[^/]+/(?:product\.yaml|([ci])([0-9]{1,6})\.md)")
_DEEP = 12  # deepest level of the tree that is listed


def products(archive: SessionReader) -> list[ProductData]:
    """Return the products of a mission that are not archived, in the order of the tree; [] if there are none.

    Raises `SessionError`.
    """
    files: dict[str, dict[str, str]] = {}  # by product id: its files by the id of their fact, "" for product.yaml
    for file in archive.files():
        if match := _FILE.fullmatch(file):
            files.setdefault(match[1], {})[f"{match[2] or ''}{match[3] or ''}"] = file
    known: dict[str, Product] = {}
    for id, own in files.items():
        product = _read(archive, own.get("", ""), serialization.product_of)
        if product and product[0].id == id and product[0].status is not Status.ARCHIVED:
            known[id] = product[0]
    return [_row(archive, product, depth, files[product.id]) for product, depth in _walk(known)]


def _walk(known: Mapping[str, Product]) -> Iterator[tuple[Product, int]]:
    """Yield every product that can be reached from a root once, with its depth; siblings by number."""
    inside: dict[str | None, list[Product]] = {}
    for product in sorted(known.values(), key=lambda product: int(product.id[1:])):
        parent = product.parent if product.parent in known and product.parent != product.id else None
        inside.setdefault(parent, []).append(product)
    waiting = [(product, 0) for product in reversed(inside.get(None, []))]
    while waiting:
        product, depth = waiting.pop()
        yield product, depth
        if depth < _DEEP:
            waiting += [(child, depth + 1) for child in reversed(inside.get(product.id, []))]


def _row(archive: SessionReader, product: Product, depth: int, own: Mapping[str, str]) -> ProductData:
    numbers = [int(name[1:]) for name in own if name.startswith("i")]
    newest = _read(archive, own[f"i{max(numbers)}"], serialization.inspection_of) if numbers else None
    collabs = (_read(archive, file, serialization.collab_of) for name, file in own.items() if name.startswith("c"))
    return row(product, depth, newest, filter(None, collabs))


def _read(archive: SessionReader, file: str, parse: Any) -> Any:
    """Return the parsed content of a file, or None if it cannot be read."""
    try:
        text = archive.text(file) if file else None
        return None if text is None else parse(text)
    except (ValueError, SessionError):
        return None
