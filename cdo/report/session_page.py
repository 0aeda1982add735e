"""The page of any session: that of a mission, or that of a deliberation."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cdo.content.library import Library
    from cdo.report.rendering import ServedPage
    from cdo.session.reader import SessionReader


def page(archive: SessionReader, library: Library, base: str | None, served: ServedPage | None = None) -> str:
    """Return the page of a session as it is now; `base` as in `cdo.report.page.Papers`.

    Raises `SessionError` if the session is damaged, `ContentError` if a template is broken.
    """
    from cdo.cabal import reconstruction
    from cdo.history import history
    from cdo.report import mission_page, page
    from cdo.session.reader import SessionFolder
    from cdo.session.records import locked

    now = page.standing(archive, isinstance(archive, SessionFolder) and locked(archive.path))
    if reconstruction.is_mission(archive):
        return mission_page.page(archive, reconstruction.retrace(archive), library, base, now, served)
    return page.page(history.read(archive), page.papers(archive, base), library, now, served)
