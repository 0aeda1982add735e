"""Implements the command `mcp`: a server for other agents over stdio, and its registration with them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click

from cdo.cli.common import OUT, VERBOSE, library_here, out_folder, print_text
from cdo.core.errors import ConfigError


@click.group(invoke_without_command=True)
@click.option(
    "--max-budget",
    type=click.FloatRange(0, min_open=True),
    metavar="USD",
    help="Most that the runs of agents may cost together in 24 hours (default: `ask_above`, which is 5).",
)
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
@click.option("--write", is_flag=True, help="Register it now; without this, print what is to be done.")
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
