"""Checks the evidence in replies: their citations and their quoted words. Each result is recorded once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

from msgspec import Struct, field

from cdo.core.steps import CheckRun, CitationCheck
from cdo.repository.quotes import CHECK, CONTEXT, QUESTION, REPOSITORY, Material
from cdo.session.artifact import Artifact
from cdo.session.store import Session

RECALLED = "# Earlier runs, not evidence"  # heading of the part of the context that does not count as evidence


class EvidenceChecks(Struct):
    """The evidence checks of one session. A recorded result is kept even if the files change later.

    `given` returns the text of one of the run's initial files. `checked` holds the citation checks so far, by the
    hash of their artifact. `check` checks the citations of a text. `search` returns the quotes that occur in the
    repository. Both are None if there is no repository. `check_runs` are the runs of the person's command so far,
    `further` the stems of the files that show further files of the repository.
    """

    session: Session
    given: Callable[[str], str]
    checked: dict[str, tuple[CitationCheck, ...]]
    check: Callable[[str], tuple[CitationCheck, ...]] | None = None
    search: Callable[[Sequence[str]], frozenset[str]] | None = None
    check_runs: list[CheckRun] = field(default_factory=list)
    further: list[str] = field(default_factory=list)

    async def citations(self, artifact: Artifact, data: Any) -> tuple[CitationCheck, ...]:
        """Return the checks of an artifact's citations; check and record them if that was not done before.

        `data` is the artifact's reply as its format has read it.
        """
        if artifact.sha not in self.checked and self.check:
            texts: tuple[str, ...] | None = getattr(data, "texts", None)  # see `Citing`
            text = artifact.reply if texts is None else "\n\n".join(texts)
            found = await asyncio.to_thread(self.check, text)
            self.checked[artifact.sha] = found
            if found:
                listed = [finding.record() for finding in found]
                await self.session.commit({"kind": "checked", "sha": artifact.sha, "findings": listed})
        return self.checked.get(artifact.sha, ())

    async def places(self, artifact: Artifact, data: Any) -> dict[str, str]:
        """Return where each quote of a reply was found: in the run's material first, else in the repository."""
        quotes: tuple[str, ...] = getattr(data, "quotes", ())  # see `Quoting`
        if not quotes:
            return {}
        material = self._material()
        found = {words: material.place(words) for words in quotes}
        missing = [words for words, place in found.items() if not place]
        if missing:
            standing = await self._standing(artifact.sha, missing)
            found |= {words: REPOSITORY for words in missing if words in standing}
        return found

    async def _standing(self, sha: str, words: Sequence[str]) -> Sequence[str]:
        """Return the quotes of the reply with this hash that occur in the repository; record them once."""
        for record in self.session.records:
            if record["kind"] == "quoted" and record["sha"] == sha:
                return cast("list[str]", record["words"])
        if self.search is None:
            return ()
        found = await asyncio.to_thread(self.search, words)
        record = await self.session.commit({"kind": "quoted", "sha": sha, "words": sorted(found)})
        return cast("list[str]", record["words"])

    def _material(self) -> Material:
        """Return the run's material so far: the runs of the person's command, the question, the context."""
        context = self.given("00-context").partition(f"\n{RECALLED}\n")[0]
        runs = [(CHECK, run.text) for run in self.check_runs]
        further = [(CONTEXT, self.given(name)) for name in dict.fromkeys(self.further)]
        return Material([*runs, (QUESTION, self.given("00-input")), (CONTEXT, context), *further])
