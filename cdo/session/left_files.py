"""Puts a file that a person may write into a session, beside the process that owns the session.

The file appears whole or not at all, as one that an editor saves. No lock is taken, and no symlink is followed.
"""

from __future__ import annotations

import os
from pathlib import Path

from cdo.core.errors import SessionError
from cdo.core.formatting import without_controls
from cdo.files.atomic_files import closing, encodable, explain, open_below, open_directory, open_path, write_file
from cdo.security.secrets import redactor


def leave(session: Path, name: str, text: str, *, new: bool = False) -> bool:
    """Write the file `name` of a session, without secrets and control characters; raise `SessionError`.

    A `new` one never takes the place of another: then nothing is written, and False is returned.
    """
    folder, _, file = name.rpartition("/")
    data = without_controls(encodable(redactor(os.environ)(text))).encode()
    try:
        with (
            closing(open_path(session.parent)) as out,
            closing(open_directory(session.name, out)) as fd,
            open_below(fd, folder, make=True) as place,
        ):
            write_file(place, file, data, new=new)
    except FileExistsError:
        return False
    except FileNotFoundError:
        raise SessionError(f"There is no session {session}.", "`cdo list` shows what there is.") from None
    except OSError as error:
        raise explain(error, session / name) from None
    return True
