"""Implements the commands that serve other programs: `mcp` over stdio, and how to register it; `serve` over HTTP."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import secrets
from pathlib import Path

import click

from cdo.cli.common import JSON, OUT, VERBOSE, library_here, out_folder, print_text
from cdo.core.errors import ConfigError, UsageError

KEY = "CDO_SERVE_KEY"
_LEAST = 16  # characters of a key


MAX_BUDGET = click.option(
    "--max-budget",
    type=click.FloatRange(0, min_open=True),
    metavar="USD",
    help="Most that the runs of other programs may cost together in 24 hours (default: `ask_above`, which is 5).",
)


@click.group(invoke_without_command=True)
@MAX_BUDGET
@OUT
@VERBOSE
@click.pass_context
def mcp(ctx: click.Context, max_budget: float | None, out: str | None) -> None:
    """Let other agents deliberate: serve MCP on stdio.

    An agent starts it in your project; `cdo mcp install AGENT` tells it to. It needs the extra `mcp`.
    """
    if ctx.invoked_subcommand:
        return
    if not importlib.util.find_spec("mcp"):
        raise ConfigError("cdo mcp needs the package mcp, which is an extra.", "pip install 'cdo-deliberate[mcp]'")
    from cdo.mcp_server.server import serve
    from cdo.repository.work_tree import root_of

    serve(out_folder(out).absolute(), root_of(Path.cwd()) or Path.cwd(), max_budget)


@mcp.command("install")
@click.argument("agent")
@click.option("--write", is_flag=True, help="Register it now. Without this option, only print the steps.")
@VERBOSE
@click.pass_context
def mcp_install(ctx: click.Context, agent: str, write: bool) -> None:
    """Register the server with AGENT: claude, codex or opencode.

    Prints the command, or the part of the configuration, and changes nothing without --write. Options of the server
    come before: `cdo mcp --max-budget 5 install codex`.
    """
    from cdo.mcp_server.registration import registration

    given = ctx.parent.params if ctx.parent else {}
    options = ["--max-budget", f"{given['max_budget']:g}"] if given.get("max_budget") else []
    options += ["--out", str(Path(given["out"]).absolute())] if given.get("out") else []
    found = registration(agent, library_here(), options)
    print_text(found.written() if write else found.shown())


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Port (default: a free one).")
@MAX_BUDGET
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
