"""Imports what reads replies while the first replies of a process are awaited."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from importlib import import_module

from cdo.core.steps import ReplyFormat
from cdo.formats.lenient.layout import LenientFormat

SENDING = 0.06  # seconds after which the first requests are usually on their way
_begun = False


def import_ahead(form: ReplyFormat, modules: Sequence[str]) -> None:
    """Import soon, in a thread, what checks the replies of a format, then `modules`; do so once in a process.

    The classes of replies take a tenth of a second to import and to make, as long as a short reply takes to come.
    """
    global _begun
    if _begun:
        return
    _begun = True
    thread = threading.Thread(target=_import, args=(form, modules), name="cdo-formats", daemon=True)
    asyncio.get_running_loop().call_later(SENDING, thread.start)


def _import(form: ReplyFormat, modules: Sequence[str]) -> None:
    with contextlib.suppress(Exception):  # whoever needs one of them meets the error again, and reports it
        left = [*(form.layout.models if isinstance(form, LenientFormat) else ())]
        while left:
            block = left.pop()
            block.model_rebuild()
            left += block.__subclasses__()
        for name in modules:
            import_module(name)
