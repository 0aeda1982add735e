"""Implements the mission commands: `cabal` begins one, `answer` answers its team, `context` shows an agent's view."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from cdo.cli.common import (
    JSON,
    OUT,
    VERBOSE,
    dumps,
    library_here,
    print_text,
    session_archive,
    session_folder,
)
from cdo.cli.given.question import given_request, given_text
from cdo.cli.help import RequestWords
from cdo.cli.options import BRANCH, CONSENT, LIMITS, NO_GIT, OTLP, OUTPUT, TRUST, model_option, preview, resolve
from cdo.core.errors import UsageError

if TYPE_CHECKING:
    from cdo.content.library import Library
    from cdo.planning.estimate import Range
    from cdo.planning.mission_crew import Crew
    from cdo.planning.settings import Resolved
    from cdo.terminal.plan_preview import Preview

EPILOG = """\b
Examples:
  cdo cabal "Build a simple TODO list web application MVP"
  cdo cabal -m anthropic/claude-sonnet-5-5 --seat watchdog=openai/gpt-4.1 -c docs/ @request.md
  cdo answer todo "httpOnly cookies"     # then: cdo resume todo
  cdo verify todo                        # prove what was accepted from the files alone

\b
Exit codes: 0 done, 3 unresolved (a cap or a stall ended it; FINAL.md says what is missing),
6 the team waits for your answer; others as of `cdo run`."""


@click.command("cabal", cls=RequestWords, epilog=EPILOG)
@click.argument("words", nargs=-1, required=True, metavar="REQUEST…")
@model_option("Model to use. Repeat to spread the team over several models.")
@click.option(
    "--seat", multiple=True, metavar="ROLE=MODEL", help="Model of one role: chair, operatives, watchdog or envoy."
)
@click.option(
    "--independent", is_flag=True, help="Seat the watchdog on a model of another maker, if you have access to one."
)
@click.option("--operatives", type=click.IntRange(1, 16), metavar="N", help="Number of operatives (default: 3).")
@click.option("--rounds", type=click.IntRange(1, 100), metavar="N", help="Maximum number of rounds (default: 8).")
@click.option(
    "--deliberations",
    type=click.IntRange(0, 20),
    metavar="N",
    help="Maximum number of Decisions that get a deliberation (default: 2).",
)
@click.option("-c", "--context", multiple=True, metavar="PATH", help="File or folder to show to the team.")
@click.option("--no-context", is_flag=True, help="Show the team no files.")
@click.option(
    "--exec",
    is_flag=True,
    help="Run commands that the team names in definitions of done, on its files in a sandbox without network.",
)
@click.option(
    "--sign-off",
    is_flag=True,
    help="Ask you for a sign-off before the mission ends as done; say what is wrong, and it goes on.",
)
@click.option(
    "--deliver",
    type=click.Choice(["branch", "patch"]),
    help="Hand accepted files over to this git repository: as a new branch, or as a patch in the session.",
)
@LIMITS
@OUT
@click.option("--session", metavar="NAME", help="Name of the session; its folder is tmp/cdo-NAME/.")
@TRUST
@click.option("--dry-run", is_flag=True, help="Print the team and the range of calls and cost. Send nothing.")
@NO_GIT
@BRANCH
@OTLP
@CONSENT
@OUTPUT
@click.pass_context
def cabal(ctx: click.Context, /, words: tuple[str, ...], **options: Any) -> None:
    """Have a team turn a request into reviewed deliverables.

    A chair plans, operatives write, peers review, a watchdog inspects, an envoy tells you; nothing is accepted before
    code has checked it. `@FILE` reads the request from a file, `-` from a pipe.
    """
    from cdo.app import seats as seating
    from cdo.app.new_run import context_of, looked_at, room_for_files, seen_repository
    from cdo.cli.consent import agree
    from cdo.cli.models import require_demo_model
    from cdo.cli.run_session import run_and_report
    from cdo.planning import mission_plan
    from cdo.runner import check_command
    from cdo.security import secrets
    from cdo.session import records, session_file

    if options["session"] is not None:
        records.session_path(Path(), options["session"])
    library = library_here(trust_now=options["trust"])
    after = ctx.meta.get("cdo.after")
    before = words if after is None else words[: len(words) - len(after)]
    request = secrets.redactor(os.environ)(given_request(before, after, library, options["out"]))
    resolved = resolve(options, library).sure(library)
    around = looked_at(options["context"], look=not options["no_context"])
    crew, notes = _crew(options, resolved, library, request)
    specs = seating.specs(list(crew.seats.values()), library, resolved.values, os.environ)
    notes = [*notes, *filter(None, [mission_plan.remark(crew.seats, {spec.name: spec.vendor for spec in specs})])]
    root, looks = seen_repository(resolved, specs, library, around)
    if options["context"] or root:
        evidence = room_for_files(resolved, specs, mission_plan.most_files(crew, library))
        crew = replace(crew, material=True, evidence=evidence)
    plan = mission_plan.plan(request, crew, specs, library, notes, root, looks)
    context = context_of(options["context"], plan, resolved, specs, request, around)
    shown = preview(plan, specs, request, context, library, options["session"] or "")
    if options["dry_run"]:
        span = mission_plan.estimate(crew, specs, shown.given, plan.tools)
        return _dry_run(shown, span, notes, as_json=options["as_json"], verbose=options["verbose"])
    agree(shown, resolved.values, resolved.sources, options, option="--no-context")
    seating.allow_weights(specs)
    require_demo_model(specs, quiet=options["quiet"])
    session = session_file.create(plan, request, context, resolved, options["session"])
    if crew.exec:
        check_command.allow_team(session.path, session_file.load(session).created)
    return run_and_report(session, plan, shown, resolved.values, options, resumed=False, notes=notes)


def _crew(options: Mapping[str, Any], resolved: Resolved, library: Library, request: str) -> tuple[Crew, list[str]]:
    """Return the team of a mission, and notes for the person on how it was chosen."""
    from cdo.app import seats as seating
    from cdo.core.mission_names import WATCHDOG
    from cdo.core.usage import estimate_tokens
    from cdo.planning import mission_plan
    from cdo.planning.mission_crew import RULES, Crew
    from cdo.providers import models
    from cdo.providers.model_names import meant

    kernel = mission_plan.kernel(library)
    count = options["operatives"] or kernel.operatives
    chosen = mission_plan.given(options["seat"])
    chosen = dict(zip(chosen, meant(chosen.values(), library), strict=True))
    names = resolved.values.model or (models.choose(library, os.environ, seating.first_of_ollama)[0],)
    offered = models.available(library, os.environ, seating.first_of_ollama)
    every = dict.fromkeys([*names, *chosen.values(), *(name for name, _ in offered)])
    found = [models.resolve(name, library, resolved.values.prices, os.environ) for name in every]
    vendors = {spec.name: spec.vendor for spec in found}
    # An embedded model or an agent is not chosen as judge merely because its vendor differs.
    fit = [spec.name for spec in found if spec.route not in ("local", "command", "scripted")]
    same = {vendors[name] for name in names}
    others = (name for name, _ in offered if name in fit and vendors[name] not in same | {""})
    other = next(others, "") if options["independent"] else ""  # nobody pays a maker that was not named unasked
    seats = mission_plan.seats(count, names, chosen, vendors, other)
    notes = []
    if other and seats[WATCHDOG] == other and other not in (*names, *chosen.values()):
        notes.append(f"The watchdog is {other}, of another family; `--seat watchdog=…` names another one.")
    root = _repository(resolved) if options["deliver"] else ""
    if options["sign_off"]:
        notes.append("You are asked for a sign-off before the mission ends as done.")
    if options["exec"]:
        from cdo.runner import check_command

        sandbox, limit = check_command.require_sandbox(), resolved.values.check_timeout
        notes.append(f"Commands of the team run on its files in the sandbox {sandbox.name}, {limit:g} s at most.")
    room = min(spec.window for spec in found if spec.name in seats.values())
    return (
        Crew(
            operatives=count,
            rounds=options["rounds"] or kernel.rounds,
            idle=kernel.idle,
            deliberations=kernel.deliberations if options["deliberations"] is None else options["deliberations"],
            questions=kernel.questions,
            presets=kernel.presets,
            tokens=min(kernel.tokens, room // 3),
            seats=seats,
            exec=options["exec"],
            sign_off=options["sign_off"],
            rules=RULES,
            deliver=options["deliver"] or "",
            root=root,
            request=estimate_tokens(request),
        ),
        notes,
    )


def _repository(resolved: Resolved) -> str:
    """Return the work tree around this folder, as seen from a session; raise `UsageError` if there is none."""
    from cdo.repository import git
    from cdo.repository.work_tree import root_of

    root = root_of(Path.cwd())
    if root is None or git.program("git", str(root)) is None:
        raise UsageError(
            f"--deliver needs a git repository, and {Path.cwd()} is in none.",
            "Begin the mission in one, or leave --deliver out: accepted files are in deliverables/ in any case.",
        )
    return os.path.relpath(root, Path(resolved.values.out).absolute() / "session")


def _dry_run(shown: Preview, span: Range, notes: Sequence[str], *, as_json: bool, verbose: bool) -> None:
    """Print the plan of a mission; send nothing."""
    from cdo.cli.consent import mission_lines, would_send

    crew, request = shown.plan.crew, shown.problem
    assert crew
    if as_json:
        cost = None if span.cost is None else [round(value, 6) for value in span.cost]
        files = [{"path": file.path, "tokens": file.tokens} for file in shown.files]
        row = {
            "request": request,
            "files": files,
            "context_tokens": shown.context_tokens,
            "repository": shown.plan.tools is not None,
            "rounds": crew.rounds,
            "seats": crew.seats,
            "deliberations": crew.deliberations,
        }
        click.echo(
            dumps({**row, "calls": list(span.calls), "tokens": list(span.tokens), "cost": cost, "notes": list(notes)})
        )
        return
    for text in mission_lines(shown.plan, request, span, notes):
        print_text(text)
    for text in would_send(replace(shown, span=span), option="--no-context", whole=verbose):
        print_text(text)
    click.echo("Nothing was sent.")


@click.command()
@click.argument("session")
@click.argument("words", nargs=-1, required=True, metavar="ANSWER…")
@click.option("--seat", metavar="NAME", help="Who answers, if several people are asked about a turn.")
@OUT
@VERBOSE
def answer(session: str, words: tuple[str, ...], seat: str | None, out: str | None) -> None:
    """Answer a team's question, or a turn that you sit in.

    To a team give one of the options, its number, or any other text; to a turn what you would do, in plain words.
    `@FILE` is the text of a file, `-` what comes by stdin. A run that waits for it takes it up; after that run has
    ended, `cdo resume SESSION` does.
    """
    from cdo.app.waiting import answer_question, answer_seat
    from cdo.cabal.reconstruction import is_mission
    from cdo.formats.person_reply import PersonFormat, summary, worded
    from cdo.history.pending import open_seats
    from cdo.session.reader import SessionFolder
    from cdo.session.records import PREFIX, locked

    text = " ".join(words).strip()
    if not text:
        raise UsageError("The answer is empty.", f'Say something: cdo answer {session} "…"')
    path, text = session_folder(session, out), given_text(text)
    if seat is not None or open_seats(archive := SessionFolder(path)) or not is_mission(archive):
        question = answer_seat(path, text, seat or "").question
        taken = "; ".join(summary(PersonFormat().parse(worded(text) or "")))
    else:
        question, taken = answer_question(path, text)
    print_text(f"{question}\n→ {taken}")
    if locked(path):
        print_text("The process that runs it takes it.")
    else:
        print_text(f"`cdo resume {path.resolve().name.removeprefix(PREFIX)}` goes on.")


@click.command()
@click.argument("product")
@click.option("--step", required=True, metavar="STEP", help="One of reflect, plan, write, review, inspect, present.")
@click.option("--agent", metavar="ID", help="The agent that is shown it (default: the one that does this step).")
@click.option("--session", metavar="NAME", help="Mission to look into (default: the newest session).")
@OUT
@JSON
@VERBOSE
def context(product: str, step: str, agent: str | None, session: str | None, out: str | None, as_json: bool) -> None:
    """Show what an agent of a mission reads about a product.

    The text is the present one, with its tokens. PRODUCT is an id (p4) or a name.
    """
    from cdo.cabal.context_preview import look
    from cdo.runner import prompts

    archive = session_archive(session, out)
    found = look(archive, product, step, agent or "")
    texts = {name: archive.text(f"{name}.md") or "" for name in found.call.reads}
    messages = prompts.messages(found.call, texts, library_here(), tools=found.call.tools)
    if as_json:
        click.echo(dumps(found.json(messages)))
        return
    for line in found.lines(messages):
        print_text(line)
