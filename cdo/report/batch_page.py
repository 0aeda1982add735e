"""Renders a batch as one self-contained page: outcomes, costs, outliers, and every item with a link to its session.

Texts of models and files enter the page as in `cdo.report.page`: escaped, as text and never as Markdown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from cdo import __version__
from cdo.core.formatting import money, one_line, pluralise, rounded
from cdo.report.rendering import PageTemplates

if TYPE_CHECKING:
    from cdo.content.library import Library

PAGE = "templates/report-batch"
MOST = 5000  # items that the page shows
FACTOR = 3  # times the median above which an item is an outlier
_FEWEST = 5  # answered items without which nothing is an outlier
_SHOWN = 10  # outliers of each kind
_BAD, _OPEN = "failed", "open"
_GOOD = ("converged", "survives", "done")
_MEASURED = (("cost", "cost"), ("calls", "calls"), ("seconds", "seconds"))


def batch_page(told: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], base: str, library: Library) -> str:
    """Return the page of a batch; raise `ContentError` if a template is broken.

    `told` is what `cdo batch status` tells, `rows` the table of results, `base` the address of the batch's folder
    relative to the page.
    """
    shown = [_row(row, number, base) for number, row in enumerate(rows[:MOST], 1)]
    values = {
        "told": told,
        "title": f"{pluralise(told['items'], 'question')} of {one_line(told['file'], 100) or told['batch']}",
        "version": __version__,
        "figures": list(_figures(told, rows)),
        "statuses": _statuses(rows),
        "causes": list(told["causes"].items())[:_SHOWN],
        "outliers": list(_outliers(rows[:MOST])),
        "factor": FACTOR,
        "rows": shown,
        "left_out": len(rows) - len(shown),
    }
    return PageTemplates(library).page(PAGE, values)


def _row(row: Mapping[str, Any], number: int, base: str) -> dict[str, str]:
    """Return an item as the page shows it."""
    folder = str(row["path"]).rpartition("/")[2]
    file = "" if row["status"] == _BAD else "FINAL.md"
    link = "/".join(filter(None, (base, quote(folder, errors="replace"), file)))
    return {
        "anchor": _anchor(number),
        "id": one_line(row["id"], 64),
        "link": link if folder else "",
        "question": one_line(row["question"], 200),
        "status": str(row["status"]),
        "kind": _kind(str(row["status"])),
        "decision": one_line(row["decision"], 300),
        "error": one_line(row["error"], 300),
        "confidence": "" if row["confidence"] is None else f"{row['confidence']:.2f}",
        "cost": "" if row["calls"] is None else money(row["cost"]),
        "calls": "" if row["calls"] is None else str(row["calls"]),
        "seconds": "" if row["seconds"] is None else f"{row['seconds']:.1f}",
    }


def _anchor(number: int) -> str:
    return f"item-{number}"


def _kind(status: str) -> str:
    return "bad" if status == _BAD else "warn" if status == _OPEN else "good" if status in _GOOD else "plain"


def _statuses(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, int, str]]:
    counted = Counter(str(row["status"]) for row in rows)
    return [(status, count, _kind(status)) for status, count in counted.most_common()]


def _answered(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, Mapping[str, Any]]]:
    """Return the items that have an answer, with their numbers from 1."""
    return [(number, row) for number, row in enumerate(rows, 1) if row["status"] not in (_BAD, _OPEN)]


def _figures(told: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, str]]:
    answered = [row for _, row in _answered(rows)]
    yield {"name": "answered", "value": f"{len(answered):,}", "more": f"of {pluralise(told['items'], 'item')}"}
    yield {"name": "failed", "value": f"{told['failed']:,}", "more": f"{told['open']:,} open"}
    more = f"{pluralise(told['calls'], 'call')}, {rounded(told['tokens'])} tokens"
    yield {"name": "cost", "value": money(told["cost"]), "more": more}
    for key, name in (("cost", "cost of an item"), ("confidence", "confidence")):
        values = sorted(row[key] for row in answered if row[key] is not None)
        if values:
            low, middle, high = (
                money(v) if key == "cost" else f"{v:.2f}" for v in (values[0], median(values), values[-1])
            )
            yield {"name": f"{name}, median", "value": middle, "more": f"from {low} to {high}"}


def _outliers(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, str]]:
    """Yield the items that took far more than the others, and those of the lowest confidence."""
    answered = _answered(rows)
    if len(answered) < _FEWEST:
        return
    for key, name in _MEASURED:
        known = [(row[key], number, row) for number, row in answered if row[key]]
        usual = median(value for value, _, _ in known) if known else 0.0
        far = sorted((entry for entry in known if entry[0] > FACTOR * usual), key=lambda entry: -entry[0])
        for value, number, row in far[:_SHOWN]:
            shown, middle = (money(one) if key == "cost" else f"{one:,.0f}" for one in (value, usual))
            yield {
                "anchor": _anchor(number),
                "id": one_line(row["id"], 64),
                "why": f"{name} {shown}, median {middle}",
            }
    sure = [(row["confidence"], number, row) for number, row in answered if row["confidence"] is not None]
    usual = median(value for value, _, _ in sure) if sure else 0.0
    for value, number, row in sorted(sure, key=lambda entry: entry[:2])[:_SHOWN]:
        if value < usual - 0.1:
            why = f"confidence {value:.2f}, median {usual:.2f}"
            yield {"anchor": _anchor(number), "id": one_line(row["id"], 64), "why": why}
