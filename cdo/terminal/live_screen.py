"""Draws the live region of a run: rows of rich's text that fit into the width and height of the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cdo.core.formatting import one_line, shorten_middle
from cdo.terminal.run_state import CallProgress, CallState, LiveRun, ProductProgress, TensionProgress

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_HEADS = ("voice", "state", "time", "tokens", "cost", "conf", "model", "position")
_CALLS = ("call", "state", "time", "tokens", "cost", "", "model", "reply")  # missions state no confidence
_LEAST = (9, 8, 6, 6, 7, 4, 5, 12)  # minimum widths, so that columns seldom move
_NUMBERS = (2, 3, 4, 5)
_DROPPED = (6, 7, 3, 4, 5)  # columns that a narrow terminal omits, in this order
_COLOURS = ("cyan", "cyan", "yellow", "dim", "green", "red", "yellow", "magenta", "green", "blue")
_ROOMY = 100  # columns from which on several models have a column
_WIDE, _HIGH = 80, 12  # from this screen size on, the question has a row
_NAME = 56  # most columns of a product's name, with its indent
_VERDICTS = {"approved": "green", "needs revision": "yellow", "blocked": "red"}
_STYLES = dict(zip(CallState, _COLOURS, strict=True))


def frame(board: LiveRun, now: float, width: int, height: int, *, folded: bool = False) -> RenderableType:
    """Return the live region: a head, the calls (none if `folded`), and tensions or products, as far as they fit.

    A deliberation shows tensions, a mission shows products.
    """
    from rich.console import Group
    from rich.text import Text

    width = max(20, width - 1)  # a sign in the last column makes some terminals wrap
    rows = [Text(row, "bold") for row in _flowed(board.header(), width)]
    if board.question and width + 1 >= _WIDE and height >= _HIGH:
        rows.append(Text(one_line(board.question, 2 * width), "dim"))
    if board.asks and (most := min(4, height - len(rows) - 6)) > 0:
        rows += [Text(row, "bold yellow") for row in _wrapped(f"? {board.asks}", width, most)]
    voices, tensions = [] if folded else list(board.voices.values()), list(board.tensions.values())
    products = _products(board, width)
    # Leave one spare row, and a few finished lines above on the screen.
    room = max(2, height - len(rows) - 1 - min(6, 1 + len(board.finished)))
    # On a screen too low for all rows, tensions get at least a third, products half; voices get the rest.
    share = 1 + len(products) if products else 1 + len(tensions) if tensions else 0
    least = room // 2 if products else room // 3
    share = min(share, max(least, room - 1 - len(voices) if voices else room))
    if voices:
        rows += _voices(voices, now, width, max(1, room - share - 1), _CALLS if board.mission else _HEADS)
    if products:
        rows += _fitting(board, products, share)
    elif share:
        rows += _tensions(board, tensions, width, share)
    for row in rows:
        row.truncate(width, overflow="ellipsis")
    return Group(*rows)


def _voices(voices: list[CallProgress], now: float, width: int, room: int, heads: Sequence[str]) -> list[Text]:
    """Return the table of voices with `room` rows below its head. If there are too many, active voices come first."""
    from rich.text import Text

    rest: list[CallProgress] = []
    if len(voices) > room:
        order = list(CallState)
        voices.sort(key=lambda voice: order.index(voice.state))
        voices, rest = voices[: max(1, room - 1)], voices[max(1, room - 1) :]
    rows = _table(voices, now, width, heads)
    if rest:
        counts = Counter(voice.state.value for voice in rest)
        states = ", ".join(f"{number} {state}" for state, number in counts.items())
        rows.append(Text(f"… and {len(rest)} more: {states}", "dim"))
    return rows


def _products(board: LiveRun, width: int) -> list[tuple[ProductProgress, Text]]:
    """Return a row for each product, and up to three for its blockers. Narrow terminals omit the owner."""
    from rich.text import Text

    gap, items = 2 if width >= 70 else 1, list(board.products.values())
    cells = [
        (
            one_line(item.status, 12),
            f"v{item.version}" if item.version else "",
            one_line(item.owner, 14) if width >= 80 else "",
            one_line(item.verdict, 14),
        )
        for item in items
    ]
    widths = [max((len(row[index]) for row in cells), default=0) for index in range(4)]
    room = max(12, width - sum(size + gap for size in widths if size))
    room = min(room, _NAME, max((2 * item.depth + len(one_line(item.name, 120)) for item in items), default=0))
    rows = []
    for item, texts in zip(items, cells, strict=True):
        accepted = item.status == "accepted"
        row = Text(_fitted("  " * min(item.depth, 6) + one_line(item.name, 120), room, right=False))
        row.stylize("dim" if accepted else "")
        looks = ("green" if accepted else "", "", "dim", _VERDICTS.get(item.verdict, ""))
        for text, size, look in zip(texts, widths, looks, strict=True):
            if size:
                row.append(" " * gap + _fitted(text, size, right=False), look)
        row.rstrip()
        rows.append((item, row))
        rows += [
            (item, Text(f"{'  ' * min(item.depth, 6)}  ✗ {one_line(why, 200)}", "red")) for why in item.blocked[:3]
        ]
    return rows


def _fitting(board: LiveRun, products: list[tuple[ProductProgress, Text]], room: int) -> list[Text]:
    """Return a head with counts and at most `room` - 1 product rows.

    If there are too many products, blocked ones take precedence, then those not yet accepted.
    """
    from rich.text import Text

    blocked = sum(bool(item.blocked) for item in board.products.values())
    total = "{} of {} accepted".format(*board.accepted) + (f", {blocked} blocked" if blocked else "")
    rows = [Text(f"products: {total}" if board.accepted[1] else "products", "dim")]
    if len(products) <= room - 1:
        return [*rows, *(row for _, row in products)]
    urgent = sorted(
        range(len(products)),
        key=lambda at: (not products[at][0].blocked, products[at][0].status == "accepted", at),
    )
    shown = sorted(urgent[: max(0, room - 2)])
    kept = {products[at][0].name for at in shown}
    rows += [products[at][1] for at in shown]
    return [*rows, Text(f"… and {len(board.products) - len(kept)} more", "dim")] if room > 1 else rows


def _tensions(board: LiveRun, tensions: list[TensionProgress], width: int, room: int) -> list[Text]:
    """Return a head with counts and the tensions, in `room` rows: first those changed last, then open ones."""
    from rich.text import Text

    counts = Counter(one_line(tension.status, 12) for tension in tensions)
    total = ", ".join(f"{number} {status}" for status, number in counts.most_common(4))
    news = f" · turn {board.turn}: {board.news}" if board.news else ""
    rows = [Text(f"tensions: {total}{news}", "dim")]
    tensions.sort(key=lambda tension: (tension.changed != board.turn, tension.status != "open"))
    if len(tensions) > room - 1:
        tensions = tensions[: max(0, room - 2)]
    gap = " " * (2 if width >= 70 else 1)
    cells = [(one_line(item.id, 12), item.told(board.turn)) for item in tensions]
    widths = [max((len(row[index]) for row in cells), default=0) for index in range(2)]
    for tension, texts in zip(tensions, cells, strict=True):
        new, settled = tension.changed == board.turn, tension.status != "open"
        style = ("green" if settled else "yellow") if new else "dim" if settled else ""
        fitted = [_fitted(text, size, right=False) for text, size in zip(texts, widths, strict=True)]
        row = Text(f"{'»' if new else ' '} {gap.join(fitted)}", style)
        rows.append(row.append(gap + one_line(tension.title, 200), "dim" if settled else ""))
    if (left := len(board.tensions) - len(tensions)) and room > 1:
        rows.append(Text(f"… and {left} more", "dim"))
    return rows


def _wrapped(text: str, width: int, most: int) -> list[str]:
    """Wrap a text into at most `most` lines."""
    import textwrap

    return textwrap.wrap(text, width, max_lines=most, placeholder=" …", subsequent_indent="  ")


def _flowed(parts: Sequence[str], width: int) -> list[str]:
    """Join the parts with dots, on as few lines as possible."""
    rows: list[str] = []
    for part in parts:
        if rows and len(rows[-1]) + 3 + len(part) <= width:
            rows[-1] += f" · {part}"
        else:
            rows.append(part)
    return rows


def _table(voices: Sequence[CallProgress], now: float, width: int, heads: Sequence[str]) -> list[Text]:
    """Return a head and one row for each voice. Built by hand, because rich's own table takes many times as long.

    Models have a column if there are several and room for it: a single one is named in the head of the screen.
    """
    from rich.text import Text

    gap, cap = 2 if width >= 70 else 1, min(24, max(10, width // 6 + (3 if all(heads) else 8)))
    if width < _ROOMY or len({voice.model for voice in voices if voice.model}) < 2:
        heads = ["" if head == "model" else head for head in heads]
    cells = [
        [
            shorten_middle(one_line(voice.label), cap),
            *figures,
            shorten_middle(one_line(_short(voice.model)), cap),
            text,
        ]
        for voice, (*figures, text) in ((voice, voice.cells(now)) for voice in voices)
    ]
    widths = [max(least, *(len(row[index]) for row in cells)) for index, least in enumerate(_LEAST)]
    widths[1] = max(widths[1], 16 if width >= 95 else 0)
    widths[-1] = _LEAST[-1]
    shown = [index for index, head in enumerate(heads) if head]
    for column in filter(shown.__contains__, _DROPPED):
        if sum(widths[index] + gap for index in shown) - gap > width:
            shown.remove(column)
    widths[-1] += max(0, width - sum(widths[index] + gap for index in shown) + gap)
    rows = [Text() for _ in range(len(voices) + 1)]
    styles = [("dim",) * 8]
    for voice in voices:
        style = _STYLES[voice.state]
        last = "dim" if voice.state is CallState.WRITING else style if voice.confidence is None else ""
        styles.append(("", style, "", "", "", "bold", "dim", last))
    for voice, row_cells in zip(voices, cells, strict=True):
        if voice.state is CallState.WRITING:
            row_cells[-1] = _ending(row_cells[-1], widths[-1])
    for row, texts, looks in zip(rows, (heads, *cells), styles, strict=True):
        for index in shown:
            row.append(_fitted(texts[index], widths[index], right=index in _NUMBERS) + " " * gap, looks[index])
        row.rstrip()
    return rows


def _short(model: str) -> str:
    """Return a model's own name, without its provider."""
    return one_line(model.rpartition("/")[2])


def _ending(text: str, width: int) -> str:
    """Return the end of `text` in at most `width` columns of a terminal."""
    from rich.cells import cell_len

    if cell_len(text) <= width:
        return text
    text = text[-width:]
    while cell_len(text) > width - 1:
        text = text[1:]
    return f"…{text}"


def _fitted(text: str, width: int, *, right: bool) -> str:
    """Return `text` in exactly `width` columns of a terminal."""
    from rich.cells import cell_len, set_cell_size

    if text.isascii() and len(text) <= width:
        return text.rjust(width) if right else text.ljust(width)
    return set_cell_size(text, width) if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"
