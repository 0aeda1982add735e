"""Shortens a pack to its budget, and describes what was left out. Pure; changes only the data that it is given.

Sizes are bytes of UTF-8, four to an estimated token, with an allowance for the template's text around each value.
Content is cut in a fixed order of importance, and every omission is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from msgspec import Struct, field

from cdo.cabal.model.entities import BLOCKING

TOKEN = 4  # bytes of one estimated token
GLIMPSE = 60  # characters of a summary in a shortened tree
SCRAP, EXCERPT = 400, 600  # bytes: an attached text below SCRAP is left out; a content keeps at least EXCERPT
WORDY = 240  # least bytes that any other text keeps
GLANCE = 160  # bytes that a content keeps when nothing else can be cut
NAMING = 1200  # bytes reserved for the list of omissions
TAG = 80  # bytes of the tag and the headings around a content
CUT = "\n[… {count} characters left out here …]\n"

Item: TypeAlias = dict[str, Any]
Slot: TypeAlias = tuple[Any, Any, str]  # (dict or list that has the text, its key there, the product's id)


def size(value: Any) -> int:
    """Return the approximate bytes of a pack's value in a prompt, with the template's text around it."""
    total = 0
    waiting: list[Any] = [value]
    for item in waiting:  # grows during the iteration: packs are measured often, and recursion would be slower
        if isinstance(item, str):
            if item:
                total += (len(item) if item.isascii() else _bytes(item)) + 4
        elif isinstance(item, dict):
            total += TAG if "content" in item else 8
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
        elif item:
            total += 4
    return total


def id_ranges(ids: Sequence[str]) -> str:
    """Return ids such as p4 in order, consecutive ones as p4–p9."""
    numbers = sorted({int(id[1:]) for id in ids})
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    head = ids[0][0] if ids else ""
    return ", ".join(f"{head}{a}" if a == b else f"{head}{a}–{head}{b}" for a, b in spans)


def middle_cut(text: str, room: int) -> str:
    """Return `text` with its middle left out so that it takes about `room` bytes; unchanged if it fits."""
    taken = _bytes(text)
    if taken <= room:
        return text
    keep = max(0, room - _bytes(CUT)) * len(text) // taken
    head, tail = keep - keep // 3, keep // 3
    return text[:head] + CUT.format(count=len(text) - keep) + text[len(text) - tail :]


def fit_shared(shared: Item, limit: int) -> tuple[list[str], list[str]]:
    """Shorten the shared part to `limit` bytes; return (descriptions of omissions, ids of products without a line).

    Summaries in the tree go first, then events of little weight, then lines of the tree (accepted products first),
    then the middles of the mission's texts.
    """
    fit = _Fit(size(shared) - limit)
    if fit.over <= 0:
        return [], []
    fit.strip(shared["tree"])
    fit.drop(
        "{count} events of little weight: {ids}", shared["events"], lambda event: (event["weight"], event["number"])
    )
    hidden = fit.drop(
        "the products {ids} of the tree (need full_content)",
        shared["tree"],
        lambda row: (row["status"] != "accepted", row["container"], -row["depth"]),
    )
    slots = [(shared, "mission", "")]
    for texts in (shared["objectives"], shared["constraints"]):
        slots += [(item, "text", "") for item in texts]
    fit.squeeze("parts of the mission's own words", slots, WORDY)
    return fit.told, hidden


def fit_own(own: Item, limit: int, taken: int) -> tuple[list[str], list[str]]:
    """Shorten an agent's own part, of size `taken`, to `limit` bytes.

    Return (descriptions of omissions, ids of products without news). News of other products go first, then histories,
    attached texts, the middles of contents, collabs that do not block, the middles of requested texts, other long
    texts, most of the contents, the list of what products lack, and last `spare` products. The rest stays: an agent's
    orders and the collabs that it has to answer are shown even if that exceeds the limit.
    """
    fit = _Fit(taken - limit)
    if fit.over <= 0:
        return [], []
    fit.over += NAMING
    products = own["products"]
    silent = fit.drop("what changed in {ids}", own["news"], lambda item: item["newest"])
    fit.forget(products)
    attached = [(item, "content", item["id"]) for item in own["attached"]]
    fit.squeeze("attached text of {ids} (need full_content)", attached, 0)
    fit.squeeze("the middle of long texts of {ids} (need full_content)", list(_contents(products)), EXCERPT)
    fit.hush([own["collabs"], *(product["collabs"] for product in products)])
    fit.squeeze("the middle of what was asked for of {ids}", list(_requested(own["requested"])), EXCERPT)
    others = {**own, "identity": {}, "requested": []}
    fit.squeeze("the middle of {count} long remarks and notes", list(_words(others)), WORDY)
    fit.squeeze("most of the texts of {ids} (need full_content)", list(_contents(products)), GLANCE)
    fit.drop("what {ids} lack", own["lacking"], lambda item: 0)
    spare = [item for item in products if item["spare"]]
    gone = fit.drop(
        "all of {ids} (need full_content)", spare, lambda item: (bool(item["collabs"]), bool(item["news"]))
    )
    own["products"] = [item for item in products if item["id"] not in gone]
    return fit.told, [*silent, *gone]


# -- ways to shorten -------------------------------------------------------------------------------


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


class _Fit(Struct):
    """The progress of shortening: the bytes that are still `over`, and descriptions of the omissions.

    Each method that shortens stops as soon as no bytes are over, and records what it removed.
    """

    over: int
    told: list[str] = field(default_factory=list)

    def say(self, words: str, ids: Sequence[str]) -> None:
        """Record what was left out, if anything was."""
        if ids:
            self.told.append(words.format(ids=id_ranges([id for id in ids if id]), count=len(ids)))

    def drop(self, words: str, items: list[Item], worth: Callable[[Item], Any]) -> list[str]:
        """Remove the items of least worth, one by one, the last first among equals; return their ids."""
        gone: dict[str, Item] = {}
        for _, item in sorted(enumerate(items), key=lambda place: (worth(place[1]), -place[0])):
            if self.over <= 0:
                break
            gone[item["id"]] = item
            self.over -= size(item)
        items[:] = [item for item in items if item["id"] not in gone]
        self.say(words, list(gone))
        return list(gone)

    def strip(self, rows: list[Item]) -> None:
        """Shorten the summaries of a tree, then remove them, those of accepted products first."""
        done = [row for row in rows if row["status"] == "accepted"]
        ranked = done[::-1] + [row for row in rows[::-1] if row["status"] != "accepted"]
        cut: list[str] = []
        for length in (GLIMPSE, 0):
            for row in ranked:
                if self.over <= 0 or len(row["summary"]) <= length + 1:
                    continue
                before = size(row["summary"])
                row["summary"] = f"{row['summary'][:length]}…" if length else ""
                self.over -= before - size(row["summary"])
                cut.append(row["id"])
        self.say("the summaries of {ids} in the tree (need full_content)", cut)

    def forget(self, products: list[Item]) -> None:
        """Remove the histories of versions."""
        cut = []
        for product in reversed(products):
            if self.over > 0 and product["history"]:
                self.over -= size(product["history"])
                product["older"] += len(product["history"])
                product["history"] = []
                cut.append(product["id"])
        self.say("the version history of {ids} (need version_history)", cut)

    def hush(self, lists: Sequence[list[Item]]) -> None:
        """Remove collabs that neither block nor have to be answered, the least important first."""
        idle = [item for items in lists for item in items if item["importance"] < BLOCKING and not item["address"]]
        words = "{count} collabs that block nothing (need all_feedback): {ids}"
        gone = self.drop(words, idle, lambda item: item["importance"])
        for items in lists:
            items[:] = [item for item in items if item["id"] not in gone]

    def squeeze(self, words: str, slots: Sequence[Slot], least: int) -> None:
        """Cut the longest texts to one length, but not below `least` bytes.

        If `least` is 0, texts are left out entirely if less than `SCRAP` bytes of each would remain.
        """
        sizes = sorted(_bytes(holder[key]) for holder, key, _ in slots)
        if self.over <= 0 or not sizes:
            return
        room, level = max(0, sum(sizes) - self.over), 0
        for place, taken in enumerate(sizes):
            level = room // (len(sizes) - place)
            if taken > level:
                break
            room -= taken
        level = max(level, least)
        cut = []
        for holder, key, whose in slots:
            before = _bytes(holder[key])
            shorter = middle_cut(holder[key], level) if level >= SCRAP or least else ""
            if before > level and (saved := before - _bytes(shorter)) > 0:
                holder[key] = shorter
                self.over -= saved
                cut.append(whose)
        self.say(words, cut)


# -- positions of texts ----------------------------------------------------------------------------


def _contents(products: list[Item]) -> Iterator[Slot]:
    for product in products:
        yield product, "content", product["id"]
        yield from ((criterion, "value", product["id"]) for criterion in product["criteria"])


def _requested(items: list[Item]) -> Iterator[Slot]:
    for item in items:
        yield from ((text, "content", item["id"]) for text in item["texts"])
        yield from ((line, "text", item["id"]) for line in item["lines"])


def _words(value: Any) -> Iterator[Slot]:
    """Yield every other text in a value that is longer than `WORDY`, except the chair's orders."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        if key in ("order", "content", "value"):
            continue
        if isinstance(inner, str) and _bytes(inner) > WORDY:
            yield value, key, ""
        else:
            yield from _words(inner)
