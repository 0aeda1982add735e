"""Implements `cdo verify`, which checks a mission's certificate against the session's files."""

from __future__ import annotations

import click

from cdo.cli.common import JSON, OUT, SESSION, VERBOSE, dumps, print_text, session_archive
from cdo.core.errors import SessionError


@click.command("verify")
@SESSION
@OUT
@JSON
@VERBOSE
def verify_command(session: str | None, out: str | None, as_json: bool) -> None:
    """Check the certificate of a mission again.

    Checks every claim against the session's files, offline. Exits with code 8 if a claim does not hold. Without a
    name, check the newest session.
    """
    from cdo.cabal.verification import verified
    from cdo.core.formatting import pluralise

    proof = verified(session_archive(session, out))
    wrong = sum(not claim.holds for claim in proof.claims)
    if as_json:
        claims = [
            {"about": claim.about, "claim": claim.text, "holds": claim.holds, "why": claim.why}
            for claim in proof.claims
        ]
        told = {"session": proof.session, "holds": proof.holds, "claims": claims, "uncovered": list(proof.uncovered)}
        click.echo(dumps(told))
    else:
        print_text("\n".join(claim.line for claim in proof.claims))
        print_text("\n".join(["", "Not proved:", *(f"- {what}" for what in proof.uncovered)]))
    if wrong:
        raise SessionError(
            f"{proof.session} is not as it was certified: {wrong} of {pluralise(len(proof.claims), 'claim')} "
            f"{'does' if wrong == 1 else 'do'} not hold.",
            "Each line with ✗ says what and why; take these files from a copy of the session, or from its branch.",
        )
