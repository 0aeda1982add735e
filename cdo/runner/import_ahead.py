"""Imports what reads replies while the first replies of a process are awaited."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from importlib import import_module

from cdo.core.steps import ReplyFormat
from cdo.formats.lenient.layout import LenientFormat

SENDING = 0.06  # seconds after which the first requests are usually on their way
_begun = False


def import_ahead(form: ReplyFormat, modules: Sequence[str]) -> None:
    """Import soon what checks the replies of a format, then `modules`; do so once in a process.

    The classes of replies take a tenth of a second to import and to make, as long as a short reply takes to come. The
    loop does it itself: a thread that imports the same packages at the same time could find them half made.
    """
    global _begun
    if not _begun:
        _begun = True
        asyncio.get_running_loop().call_later(SENDING, _import, form, modules)


def _import(form: ReplyFormat, modules: Sequence[str]) -> None:
    with contextlib.suppress(Exception):  # whoever needs one of them meets the error again, and reports it
        for block in form.layout.models if isinstance(form, LenientFormat) else ():
            block.model_rebuild()
        for name in modules:
            import_module(name)
