"""Implements the commands about this machine: doctor, content, config, completion. They send nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins

from cdo import __version__
from cdo.cli.batch_results import unfinished
from cdo.cli.common import JSON, VERBOSE, dumps, library_here, print_table, print_text
from cdo.core.errors import CdoError, UsageError
from cdo.core.schema import field_names

if TYPE_CHECKING:
    from cdo.content.library import Library
    from cdo.planning.settings import Resolved


@click.command()
@JSON
@VERBOSE
def doctor(as_json: bool) -> None:
    """Show what a run would use here, and why."""
    rows = _findings()
    if as_json:
        click.echo(dumps(rows))
    else:
        for key, value in rows.items():
            print_text(f"{key + ':':16}{value}")
    if rows["model"].startswith("none: "):
        raise click.exceptions.Exit(4)


def _findings() -> dict[str, str]:
    import shutil

    from cdo.app import seats
    from cdo.app.session_places import NO_SETTINGS, placed
    from cdo.planning import settings
    from cdo.providers import models
    from cdo.providers.model_names import meant

    library = library_here()
    resolved = placed(settings.resolve({}, library))
    rows = {"cdo": __version__, "python": sys.version.split()[0]}
    try:
        if resolved.values.model:
            names = meant(resolved.values.model, library)
            for name in names:
                models.resolve(name, library, resolved.values.prices, os.environ)
            rows["model"] = f"{', '.join(names)} (from {resolved.sources['model']})"
        else:
            name, why = models.choose(library, os.environ, seats.first_of_ollama)
            rows["model"] = f"{name} ({why})"
            rows["mixed models"] = _mixed(library, resolved)
    except CdoError as error:
        rows["model"] = f"none: {error.message} {error.hint}"
    rows |= _asked(library, resolved)
    rows |= _keys(library)
    rows["embedded model"] = _embedded(library) + _rights()
    rows["litellm"] = "installed" if importlib.util.find_spec("litellm") else "missing"
    rows["git"] = shutil.which("git") or "missing"
    rows["check"] = _sandbox()
    rows["content"] = " > ".join(f"{source} ({root})" for source, root in library.roots)
    files = [str(path) for path in library.config_files() if path.exists()]
    set_ = [source for source in resolved.sources.values() if source.startswith("CDO_")]
    rows["settings"] = ", ".join([*set_, *files]) or "no file"
    if waiting := _waiting(library, resolved):
        rows["not trusted"] = waiting
    known = {*NO_SETTINGS, *(f"CDO_{key.upper()}" for key in field_names(settings.Settings) if key != "prices")}
    if ignored := sorted(name for name in os.environ if name.startswith("CDO_") and name not in known):
        rows["not settings"] = ", ".join(ignored)
    rows["sessions"] = f"{resolved.values.out} ({_writable(Path(resolved.values.out).absolute())})"
    if waits := _for_batches(Path(resolved.values.out)):
        rows["waiting"] = waits
    if batches := unfinished(Path(resolved.values.out)):
        more = [f"and {len(batches) - 3} more: `cdo batch status`"] if len(batches) > 3 else []
        rows["batches"] = "; ".join([*batches[:3], *more])
    return rows


def _for_batches(out: Path) -> str:
    """Say which sessions in `out` wait for answers of batch endpoints; "" if none does."""
    from cdo.core.formatting import one_line
    from cdo.history import run_index

    waiting = [row for row in run_index.rows(out) if row["status"] == "waiting"]
    told = [one_line(f"{row['session']}: {row['waits']}", 200) for row in waiting[:3]]
    more = f"; and {len(waiting) - len(told)} more" if len(waiting) > len(told) else ""
    return "; ".join(told) + more


def _asked(library: Library, resolved: Resolved) -> dict[str, str]:
    """Describe when models in use will be shut down, as litellm's table or the provider's own list says.

    Name the providers that refuse the key or cannot be reached, too.
    """
    import asyncio

    from cdo.app import seats
    from cdo.core.formatting import one_line
    from cdo.planning.mixed_models import mix
    from cdo.providers import models, shutdowns
    from cdo.providers.model_names import meant

    values, ollama = resolved.values, seats.first_of_ollama
    try:
        names = meant(values.model, library) or mix(library, os.environ, ollama, values.prices).names
        specs = [models.resolve(name, library, values.prices, os.environ) for name in names]
    except CdoError:
        return {}

    async def answers() -> list[tuple[str, str]]:
        return await asyncio.gather(*(shutdowns.stated(spec, os.environ.get(spec.key_env, "")) for spec in specs))

    found = list(zip(specs, asyncio.run(answers()), strict=True))
    ends = [(spec.name, day or shutdowns.listed(spec)) for spec, (day, _) in found]
    told = {
        "shut down": [f"{name} on {day}: name another model" for name, day in ends if day],
        "no answer": [f"{spec.name}: {problem}" for spec, (_, problem) in found if problem],
    }
    return {row: "; ".join(one_line(text, 200) for text in texts) for row, texts in told.items() if texts}


def _mixed(library: Library, resolved: Resolved) -> str:
    """Describe the models that presets such as deep and full use by default."""
    from cdo.app import seats
    from cdo.content.schemas import Preset
    from cdo.planning.mixed_models import mix

    presets = [name for name in library.names("presets") if library.read(f"presets/{name}", Preset)[0].mixed]
    values, ollama = resolved.values, seats.first_of_ollama
    found = mix(library, os.environ, ollama, values.prices, capped=values.budget is not None)
    if not presets or not found.several:
        return "off: no models of different makers are set up here"
    return f"{found.listed()} in {' and '.join(presets)}, unless -m names others"


def _sandbox() -> str:
    """Describe the sandbox that `cdo debug --check` and `cdo cabal --exec` would use."""
    from cdo.runner import check_command

    try:
        sandbox = check_command.sandbox_here()
    except CdoError as error:
        return f"none: {error.message}"
    refused = "" if sandbox.holds_models else "; --exec is refused"
    kept = f"held by {sandbox.name}" if sandbox.name else "no sandbox works here: --check would run unprotected"
    return f"{kept}{refused}"


def _keys(library: Library) -> dict[str, str]:
    """List the keys that are set, and any changes to the addresses to which they are sent."""
    from cdo.providers import models

    try:
        table = models.table(library)
    except CdoError as error:
        return {"keys set": "not known without the table of providers", "addresses": f"none: {error.message}"}
    source, path = library.find(models.PROVIDERS)
    whose = "this project's table, trusted" if source == "project" else "your table"
    told = [] if source == "packaged" else [f"{path} ({whose})"]
    keys = [key for provider in table.values() for key in provider.key_env if os.environ.get(key)]
    urls = [name for provider in table.values() for name in provider.url_env if os.environ.get(name)]
    told += [f"{name} ({_origin(os.environ[name])})" for name in urls]
    return {"keys set": ", ".join(keys) or "none", "addresses": ", ".join(told) or "as shipped"}


def _writable(out: Path) -> str:
    """Say whether sessions can be created in `out`, which need not exist yet."""
    place = next(folder for folder in (out, *out.parents) if os.path.lexists(folder))
    if not place.is_dir():
        return f"{place} is not a folder: use --out"
    return "writable" if os.access(place, os.W_OK | os.X_OK) else "not writable: use --out"


def _origin(url: str) -> str:
    """Return a URL's host and port, without parts that may be secret: user, path and query."""
    from urllib.parse import urlsplit

    place = urlsplit(url if "://" in url else f"//{url}")
    return place.netloc.rpartition("@")[2]


def _embedded(library: Library) -> str:
    """Describe which model `local` means, and whether it is on this machine."""
    if not importlib.util.find_spec("xllamacpp"):
        return "not installed: pip install 'cdo-deliberate[local]'"
    from cdo.core.demo_model import DEMO_MODEL
    from cdo.providers import demo_model_file, local_models

    name = local_models.best(library)
    if name != DEMO_MODEL:
        return f"local is {name} ({local_models.located(name.partition(':')[2], library)})"
    if demo_model_file.present():
        return f"local is the 135M demo model ({demo_model_file.model_path()}); `cdo models` lists better ones"
    return "local is the 135M demo model, fetched at its first use; `cdo models` lists better ones"


def _rights() -> str:
    """Describe what the process of the embedded model can do; "" if the model is not installed."""
    if not importlib.util.find_spec("xllamacpp"):
        return ""
    from cdo.providers import embedded_sandbox

    return f"; {embedded_sandbox.rights()}"


# -- content and settings --------------------------------------------------------------------------


@click.group()
def content() -> None:
    """Look at presets, briefs, protocols and roles.

    cdo looks for each file in the nearest .cdo folder, then in your user folder, then among the files that ship with
    it. It takes the first one that it finds.
    """


@content.command("list")
@click.argument("folder", required=False)
@JSON
@VERBOSE
def content_list(folder: str | None, as_json: bool) -> None:
    """List content files (of one FOLDER) and their source."""
    library = library_here()

    def inside(name: str) -> bool:
        return folder is None or name.startswith(f"{folder.rstrip('/')}/")

    rows = [
        {"name": name, "source": library.find(name)[0], "path": str(library.find(name)[1])}
        for name in library.every()
        if inside(name)
    ]
    own = library.project
    for name, path in sorted(own.paths().items()) if own and not own.trusted else ():
        if inside(name):
            rows.append({"name": name, "source": "project, not trusted", "path": str(path)})
    if not rows:
        from cdo.content.project import FOLDERS

        raise UsageError(f"There is no content in a folder called {folder}.", f"Folders: {', '.join(FOLDERS)}.")
    if as_json:
        click.echo(dumps(rows))
        return
    print_table([[row["name"], row["source"]] for row in rows])


@content.command("show")
@click.argument("name")
@VERBOSE
def content_show(name: str) -> None:
    """Print a content file as it is."""
    from cdo.formats.markdown import line_breaks

    library = library_here()
    print_text(line_breaks(library.data(library.resolve(name)).decode("utf-8-sig", "replace")))


@content.command("path")
@click.argument("name")
@VERBOSE
def content_path(name: str) -> None:
    """Print the path of the file that wins for NAME."""
    library = library_here()
    print_text(str(library.find(library.resolve(name))[1]))


@click.command()
@JSON
@VERBOSE
def config(as_json: bool) -> None:
    """Show each setting, and where its value comes from."""
    from cdo.app.session_places import placed
    from cdo.planning import settings

    library = library_here()
    resolved = placed(settings.resolve({}, library))
    values = to_builtins(resolved.values)
    if as_json:
        click.echo(dumps({key: {"value": value, "source": resolved.sources[key]} for key, value in values.items()}))
        return
    print_table([[key, _value(key, value), resolved.sources[key]] for key, value in values.items()])
    print_text("\nFiles, strongest first: " + ", ".join(str(path) for path in library.config_files()))
    if waiting := _waiting(library, resolved):
        print_text(waiting)


def _waiting(library: Library, resolved: Resolved) -> str:
    """What of the project waits for trust; "" if nothing does."""
    from cdo.content.library import Library
    from cdo.content.project import unused

    own = library.project
    return unused(own, resolved.untrusted, Library(library.roots).has) if own and not own.trusted else ""


def _value(key: str, value: Any) -> str:
    """Format a setting as a person would write it."""
    if value in (None, (), {}):
        return "not set"
    if key == "width":
        return "-".join(str(number) for number in dict.fromkeys(value))
    if isinstance(value, tuple):
        return ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="SHELL")
@VERBOSE
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    SHELL is bash, zsh or fish. In bash: eval "$(cdo completion bash)".
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise UsageError(f"There is no completion for {shell}.", "Use bash, zsh or fish.")
    root = ctx.find_root().command
    click.echo(kind(root, {}, "cdo", "_CDO_COMPLETE").source())
