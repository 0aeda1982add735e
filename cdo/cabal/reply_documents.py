"""Puts the documents beside the JSON of a reply into its entries: `=====BEGIN p5===== … =====END p5=====`. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field

from cdo.cabal.model.product_files import folder_content
from cdo.cabal.model.references import listed
from cdo.cabal.model.state import MissionState
from cdo.core import file_paths
from cdo.formats.document_blocks import DocumentBlock, mark, unfenced
from cdo.formats.strict_yaml import shown

CONTENT = "content"  # the key of an entry whose text may stand in a block
_ENTRY = re.compile(r"""(?<!\\)["']title["']\s*:""")  # stands in each entry with a document, and in nothing else
_OWNER = re.compile(r"(?:\[\[)?(?:p:)?(p[1-9][0-9]{0,4}|new-[1-9][0-9]{0,2})(?:\]\])?", re.IGNORECASE)


class PlacedDocuments(Struct):
    """Entries with their documents. `problems` are by product, "" for those of no product."""

    entries: list[Any]
    problems: dict[str, list[str]] = field(default_factory=dict)

    def add(self, product: str, problem: str) -> None:
        """Record what is wrong with the document of a product."""
        self.problems.setdefault(product, []).append(problem)


def placed(key: str, entries: Sequence[Any], blocks: Sequence[DocumentBlock], state: MissionState) -> PlacedDocuments:
    """Return the entries of `key` ("versions", "chair_versions"), each with the text of its block as `content`.

    An entry keeps a `content` of its own if there is no block for it. A block without an entry, and an entry without
    either, are problems.
    """
    result = PlacedDocuments([])
    held = _by_product(result, blocks)
    for item in entries:
        id = product(item)
        if id is None:  # the schema reports it
            result.entries.append(item)
            continue
        own, path = held.pop(id, []), _path(state, id)
        text = _text(result, id, path, own) if own else item.get(CONTENT)
        if own and text is not None:
            item = {**item, CONTENT: text}
        elif not own and isinstance(text, str) and text.strip():
            item = {**item, CONTENT: _own_content(path, text)}
        elif not own and not text:
            ends = f"{mark('BEGIN', id)} … {mark('END', id)}"
            result.add(id, f"{id} has no text: give its document behind the JSON object as a block, {ends}.")
        result.entries.append(item)
    for id in held:
        result.add(id, f"There is a block for {id} and no entry of it in `{key}`.")
    return result


def complete(key: str, outside: str, blocks: Sequence[DocumentBlock], state: MissionState) -> bool:
    """True if nothing is wrong with the documents of a reply whose object, in `outside`, cannot be read.

    Each entry has its document in a block.
    """
    owners = {match[1].lower() for block in blocks if (match := _OWNER.fullmatch(block.label.partition(" ")[0]))}
    found = placed(key, [{"product_id": id} for id in owners], blocks, state)
    return not found.problems and len(_ENTRY.findall(outside)) == len(owners)


def _by_product(result: PlacedDocuments, blocks: Sequence[DocumentBlock]) -> dict[str, list[DocumentBlock]]:
    held: dict[str, list[DocumentBlock]] = {}
    for block in blocks:
        owner, _, path = block.label.partition(" ")
        match = _OWNER.fullmatch(owner)
        if match:
            plain = DocumentBlock(path, block.text, block.closed)
            held.setdefault(match[1].lower(), []).append(plain)
        else:
            what = f"The block `{shown(block.label)}` belongs to no product"
            result.add("", f"{what}: begin its label with the id of one, as in {mark('BEGIN', 'p5')}.")
    return held


def product(item: Any) -> str | None:
    """Return the id of the product that an entry names, as written or in the form of a reference."""
    said = item.get("product_id") if isinstance(item, dict) else None
    match = _OWNER.fullmatch(said.strip()) if isinstance(said, str) else None
    return match[1].lower() if match else None


def _path(state: MissionState, id: str) -> str:
    return state.products[id].path if id in state.products else ""


def _text(result: PlacedDocuments, id: str, path: str, blocks: Sequence[DocumentBlock]) -> str | None:
    """Return the content that the blocks of one product give it; None if they give none."""
    for block in blocks:
        if not block.closed:
            end = mark("END", f"{id} {block.label}".strip())
            result.add(id, f"{id} is cut off: its block has no line {end}. Send it again, whole.")
    if id in result.problems:
        return None
    if file_paths.is_folder(path):
        return _folder(result, id, path, blocks)
    if len(blocks) > 1 or blocks[0].label not in ("", path):
        labels = listed([block.label or id for block in blocks])
        what = f"the one file {path}" if path else "one document"
        result.add(id, f"{id} is {what}, and its blocks are {labels}: give one, {mark('BEGIN', id)}.")
        return None
    return _bare(result, id, path, blocks[0].text)


def _folder(result: PlacedDocuments, id: str, path: str, blocks: Sequence[DocumentBlock]) -> str | None:
    if any(not block.label for block in blocks):
        one = mark("BEGIN", f"{id} {path}index.html")
        result.add(id, f"{id} is the folder {path}: give one block for each file, as in {one}.")
        return None
    return folder_content((block.label, _bare(result, id, block.label, block.text)) for block in blocks)


def _bare(result: PlacedDocuments, id: str, path: str, text: str) -> str:
    """Return the text of a block as content: of a file as it is, of a document without outer blanks."""
    if path and not file_paths.is_markdown(path) and unfenced(text) is not None:
        result.add(id, f"{id}: all of {path} stands in a code fence; give the text of the file alone.")
    return text if path else text.strip()


def _own_content(path: str, text: str) -> str:
    """Return a text in JSON as content: of a file all but its last line break, of a document without outer blanks."""
    return text.removesuffix("\n") if path else text.strip()
