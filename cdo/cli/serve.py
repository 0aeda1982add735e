"""Implements the command `serve`: deliberations as models of an OpenAI-compatible endpoint on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from pathlib import Path

import click

from cdo.cli.common import JSON, OUT, VERBOSE, out_folder, print_text
from cdo.core.errors import UsageError

KEY = "CDO_SERVE_KEY"
_LEAST = 16  # characters of a key


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Port (default: a free one).")
@click.option(
    "--max-budget",
    type=click.FloatRange(0, min_open=True),
    metavar="USD",
    help="Most that the runs of other programs may cost together in 24 hours (default: `ask_above`, which is 5).",
)
@OUT
@JSON
@VERBOSE
def serve(port: int, max_budget: float | None, out: str | None, as_json: bool) -> None:
    """Offer the presets as models to programs on this machine.

    A program that speaks Chat Completions then asks cdo/quick, cdo/think or cdo/deep as it would any model. Prints
    the address and a key, the one in CDO_SERVE_KEY if that is set. Ctrl-C ends it, and stops the runs that go on.
    """
    from cdo.chat_server.endpoint import serve as serving
    from cdo.repository.work_tree import root_of

    key = os.environ.get(KEY) or secrets.token_urlsafe(24)
    if len(key) < _LEAST:
        raise UsageError(f"The key in {KEY} has fewer than {_LEAST} characters.", "Unset it, and cdo makes one.")
    root = root_of(Path.cwd()) or Path.cwd()

    def listening(port: int) -> None:
        url = f"http://127.0.0.1:{port}/v1"
        told = json.dumps({"url": url, "key": key})
        print_text(told if as_json else f"OPENAI_BASE_URL={url}\nOPENAI_API_KEY={key}")

    asyncio.run(serving(out_folder(out).absolute(), root, max_budget, key, port, listening))
