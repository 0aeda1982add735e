"""Words the line that says before the first call what is sent where and what it may cost. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from cdo.core.formatting import about, about_money, one_line, pluralise
from cdo.planning.estimate import Range
from cdo.planning.spending import free
from cdo.providers.models import ModelSpec
from cdo.repository.shown_files import ShownFile

SHORT = 8  # files that a plan lists
_NOTHING = 20  # tokens of a context that only says that there is none


def sending(
    files: Sequence[ShownFile],
    context_tokens: int,
    specs: Sequence[ModelSpec],
    to: str,
    span: Range,
    *,
    looks: str = "",
    option: str = "",
) -> str:
    """Return the line. `to` counts the recipients ("3 voices"); `looks` says who may read more of the
    repository ("voices"), "" for nobody.

    `option` names the option that sends no files, "" if there is none.
    """
    names = one_line(", ".join(dict.fromkeys(spec.name for spec in specs)), 200)
    here = " on this machine" if specs and all(spec.route == "local" for spec in specs) else ""
    material = _material(files, context_tokens)
    told = [cost(specs, span)]
    if looks:
        told.append(f"{looks} may read further files of the repository")
    if option and (material or looks):
        told.append(f"{option} sends none")
    return f"Sending {material or 'the question and no files'} to {names}{here} × {to}, {'; '.join(told)}"


def _material(files: Sequence[ShownFile], tokens: int) -> str:
    if files:
        return f"{pluralise(len(files), 'file')} (about {about(tokens)} tokens)"
    return "" if tokens <= _NOTHING else f"about {about(tokens)} tokens of text and no files"


def cost(specs: Sequence[ModelSpec], span: Range) -> str:
    """Return what a run may cost, rounded. An unknown price is not free: a server here may pass calls on."""
    if span.cost is not None:
        return "free" if all(free(spec) for spec in specs) else about_money(*span.cost)
    known = f"{about_money(*span.known)} for the others, " if span.known[1] else ""
    unknown = [spec.name for spec in specs if spec.price is None]
    return f"{known}price unknown" + (f" for {one_line(', '.join(unknown), 120)}" if known else "")


def calls(span: Range) -> str:
    """Return how many calls a run makes."""
    low, high = span.calls
    return pluralise(high, "call") if low == high else f"{low} to {high} calls"


def listed(files: Sequence[ShownFile], *, whole: bool) -> list[str]:
    """Return a row for each file with its tokens; unless `whole`, only the first ones and a count of the rest."""
    shown = files if whole else files[:SHORT]
    rows = [f"{one_line(file.path, 200)} (about {about(file.tokens)} tokens)" for file in shown]
    if rest := len(files) - len(shown):
        rows.append(f"and {pluralise(rest, 'more file')} (-v lists all)")
    return rows
