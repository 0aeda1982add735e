"""Fetches a file from the Hugging Face hub: resumed after a stop, and checked against the hash that the hub states.

The library `huggingface_hub` is not used for it: its version 1.33 begins each download anew, does not hash what came
over HTTP, and sends the token to more hosts than the one that the person named.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeAlias
from urllib.parse import quote, urljoin, urlsplit

from msgspec import Struct

from cdo import __version__
from cdo.core.errors import ConfigError, NoModel
from cdo.files.atomic_files import closing, open_directory, sync
from cdo.providers.addresses import is_here

if TYPE_CHECKING:
    import aiohttp

HUB = "https://huggingface.co"
TRIES = 5  # in a row that bring nothing, after which the hub counts as out of reach
LOOKS = 3  # tries of the first request, which only asks what there is
PAUSE = 1.0  # seconds after the first of them, then twice as long each time
REDIRECTS = 5
SPARE = 64 * 2**20  # bytes that stay free on the disk
PIECE = 1 << 20
SILENT = 60.0  # seconds without a byte, after which a connection is given up
_MOVED = (301, 302, 303, 307, 308)
_SHA256 = re.compile(r"[0-9a-f]{64}")

# Is told what is being done, and how many bytes of how many are done.
Progress: TypeAlias = Callable[[str, int, int], None]


class HubFile(Struct, frozen=True):
    """A file of a repository on the hub."""

    repository: str
    file: str

    def __str__(self) -> str:
        return f"{self.repository}/{self.file}"


class Stated(Struct, frozen=True):
    """What the hub states of a file: hash, size in bytes, commit, and the address of this version alone."""

    sha256: str
    size: int
    commit: str
    url: str


class _PassingFault(Exception):
    """A fault that may be gone at the next try."""


class Hub:
    """The hub that HF_ENDPOINT names, else huggingface.co. HF_TOKEN is sent to that address and to no other."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.endpoint = env.get("HF_ENDPOINT", "").strip().rstrip("/") or HUB
        self._token = env.get("HF_TOKEN", "").strip()
        place = urlsplit(self.endpoint)
        if place.scheme not in ("http", "https") or not place.hostname:
            raise ConfigError("HF_ENDPOINT is not an address.", "Set it to one such as https://huggingface.co.")
        if self._token and place.scheme == "http" and not is_here(self.endpoint):
            raise ConfigError(
                f"HF_ENDPOINT ({_origin(self.endpoint)}) would get HF_TOKEN unencrypted.",
                "Use an https:// address, or unset HF_TOKEN.",
            )

    async def stated(self, source: HubFile) -> Stated:
        """Return what the hub states of a file; raise `NoModel` if it cannot be had."""
        url = self._address(source, "main")
        async with self._session() as session:
            for number in range(1, LOOKS + 1):
                try:
                    async with self._response(session, "HEAD", url, {}) as response:
                        return self._read(source, response)
                except _PassingFault as fault:
                    if number == LOOKS:
                        raise self._unreachable(fault) from None
                await asyncio.sleep(PAUSE * 2 ** (number - 1))
        raise AssertionError("unreachable")

    def _read(self, source: HubFile, response: aiohttp.ClientResponse) -> Stated:
        if response.status not in (200, *_MOVED):
            raise self._refused(source, response)
        headers = response.headers
        sha256 = headers.get("X-Linked-Etag", "").removeprefix("W/").strip('"').lower()
        size, commit = headers.get("X-Linked-Size", ""), headers.get("X-Repo-Commit", "")
        if not _SHA256.fullmatch(sha256) or not size.isdecimal() or not re.fullmatch(r"[0-9a-f]{7,64}", commit):
            raise NoModel(
                f"{_origin(self.endpoint)} does not state the hash, size and version of {source}.",
                "Nothing was fetched. Check that HF_ENDPOINT is the address of a Hugging Face hub.",
            )
        return Stated(sha256, int(size), commit, self._address(source, commit))

    async def fetch(self, source: HubFile, stated: Stated, target: Path, progress: Progress) -> None:
        """Fetch a file to `target`, whole or not at all; go on where an earlier try stopped.

        Raises `NoModel` if it cannot be had or is another than the one stated, `ConfigError` if it cannot be stored.
        What arrived before is kept in a file whose name has the hash, so that two versions never mix.
        """
        part = target.with_name(f".{target.name}.{stated.sha256}.part")
        try:
            for other in target.parent.glob(f".{target.name}.*.part"):
                if other != part:  # of another version
                    other.unlink()
            _require_room(part, stated.size)
            await self._complete(source, stated, part, progress)
            found = await digest(part, progress)
            if found != stated.sha256:
                _drop(part)
                raise NoModel(
                    f"What came for {source} is not the file that the hub states (sha256 {found[:16]}… in place of "
                    f"{stated.sha256[:16]}…).",
                    f"Nothing was kept. Try again; if it happens again, check what {_origin(self.endpoint)} serves.",
                )
            with part.open("rb") as file:
                sync(file.fileno())
            part.replace(target)
            with closing(open_directory(target.parent)) as folder:
                sync(folder)
        except OSError as error:
            raise unwritable(target.parent, error) from None

    async def _complete(self, source: HubFile, stated: Stated, part: Path, progress: Progress) -> None:
        """Add to `part` until it has all bytes; raise `NoModel` after several tries that brought nothing."""
        failed, most = 0, _size(part)
        async with self._session() as session:
            while _size(part) != stated.size:
                try:
                    await self._more(session, source, stated, part, progress)
                    if _size(part) < stated.size:
                        raise _PassingFault("the connection ended early")
                except _PassingFault as fault:
                    failed = failed + 1 if _size(part) <= most else 1
                    most = max(most, _size(part))
                    if failed == TRIES:
                        raise self._unreachable(fault, _size(part), stated.size) from None
                    await asyncio.sleep(PAUSE * 2 ** (failed - 1))

    async def _more(
        self, session: aiohttp.ClientSession, source: HubFile, stated: Stated, part: Path, progress: Progress
    ) -> None:
        """Send one request, and write what comes."""
        have = _size(part)
        if have > stated.size:
            _drop(part)
            have = 0
        ask = {"Range": f"bytes={have}-"} if have else {}
        async with self._response(session, "GET", stated.url, ask) as response:
            # A signed address of the storage may have run out: the hub gives another one.
            elsewhere = _origin(str(response.url)) != _origin(self.endpoint)
            if response.status == 416 or (elsewhere and response.status in (401, 403)):
                if response.status == 416:
                    _drop(part)
                raise _PassingFault(f"status {response.status}")
            if response.status not in (200, 206):
                raise self._refused(source, response)
            if response.status == 200:  # the whole file, whatever was asked for
                have = 0
            elif not _continues(response, have, stated.size):
                _drop(part)
                raise _PassingFault("it sent another part of the file than was asked for")
            with part.open("ab") as file:
                if file.tell() != have:
                    file.truncate(have)
                await _pour(response, file, have, stated.size, progress)

    # -- requests --

    def _address(self, source: HubFile, revision: str) -> str:
        return f"{self.endpoint}/{source.repository}/resolve/{quote(revision, safe='')}/{quote(source.file)}"

    def _session(self) -> aiohttp.ClientSession:
        import aiohttp

        return aiohttp.ClientSession(
            trust_env=True,
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=20.0, sock_read=SILENT),
            headers={"Accept-Encoding": "identity", "User-Agent": f"cdo/{__version__}"},
        )

    @contextlib.asynccontextmanager
    async def _response(
        self, session: aiohttp.ClientSession, method: str, url: str, headers: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and follow redirects; a redirect that states the file's hash is the answer to HEAD."""
        import aiohttp
        from yarl import URL

        try:
            for _ in range(REDIRECTS):
                own = dict(headers)
                if self._token and _origin(url) == _origin(self.endpoint):
                    own["Authorization"] = f"Bearer {self._token}"
                place = URL(url, encoded=True)  # a signed address must arrive as it is
                async with session.request(method, place, headers=own, allow_redirects=False) as response:
                    states = method == "HEAD" and "X-Linked-Etag" in response.headers
                    if response.status in (408, 429) or response.status >= 500:
                        raise _PassingFault(f"status {response.status}")
                    if response.status not in _MOVED or states:
                        yield response
                        return
                    url = _next(url, response.headers.get("Location", ""))
            raise _PassingFault("too many redirects")
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise _PassingFault(_reason(error)) from None

    # -- errors --

    def _unreachable(self, fault: _PassingFault, have: int = 0, size: int = 0) -> NoModel:
        kept = (
            f" {megabytes(have)} of {megabytes(size)} are kept: the same command goes on from there." if have else ""
        )
        return NoModel(
            f"The hub at {_origin(self.endpoint)} did not answer ({fault}).",
            f"Check the network and HF_ENDPOINT, then try again.{kept}",
        )

    def _refused(self, source: HubFile, response: aiohttp.ClientResponse) -> NoModel:
        code, page = response.headers.get("X-Error-Code", ""), f"{self.endpoint}/{source.repository}"
        if code == "GatedRepo":
            return NoModel(
                f"{source.repository} may be fetched only after its license was accepted.",
                f"Accept it on {page}, and set HF_TOKEN to a token of your account.",
            )
        if code in ("EntryNotFound", "RevisionNotFound") or (response.status == 404 and code != "RepoNotFound"):
            return NoModel(f"{source.repository} has no file {source.file}.", f"Its files are on {page}/tree/main.")
        if response.status in (401, 403, 404):
            whose = "HF_TOKEN may not read it, or it" if self._token else "It"
            return NoModel(
                f"The hub shows no repository {source.repository} here (status {response.status}).",
                f"{whose} does not exist or is private. Check the name, and HF_TOKEN for a private one.",
            )
        return NoModel(
            f"The hub at {_origin(self.endpoint)} answered with status {response.status} for {source}.",
            "Check HF_ENDPOINT, and try again later.",
        )


async def digest(path: Path, progress: Progress) -> str:
    """Return the sha256 of a file; raise `OSError`."""
    found, done, size = hashlib.sha256(), 0, _size(path)
    with path.open("rb") as file:
        while piece := file.read(8 * PIECE):
            found.update(piece)
            done += len(piece)
            progress("checking", done, size)
            await asyncio.sleep(0)
    return found.hexdigest()


def megabytes(size: int) -> str:
    """Return a number of bytes for people."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{round(size / 1e6)} MB"


def unwritable(folder: Path, error: OSError) -> ConfigError:
    """Return the error for a model that cannot be stored."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return ConfigError(
        f"The model cannot be stored in {folder}: {error.strerror or error}.",
        ("Make room there" if full else "Check that folder") + ", or set CDO_MODELS_DIR to another one.",
    )


async def _pour(response: aiohttp.ClientResponse, file: BinaryIO, have: int, size: int, progress: Progress) -> None:
    async for piece in response.content.iter_chunked(PIECE):
        have += len(piece)
        if have > size:
            file.truncate(0)
            raise _PassingFault("it sent more bytes than it stated")
        file.write(piece)
        progress("fetching", have, size)


def _continues(response: aiohttp.ClientResponse, have: int, size: int) -> bool:
    """Return True if a partial answer begins where the file so far ends, and is of a file of the stated size."""
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
    return found is not None and int(found[1]) == have and found[2] in ("*", str(size))


def _next(url: str, location: str) -> str:
    """Return where a redirect leads; raise `NoModel` for one that leaves https or HTTP."""
    target = urljoin(url, location)
    if not location or urlsplit(target).scheme not in ({"https"} if url.startswith("https:") else {"http", "https"}):
        raise NoModel(
            f"{_origin(url)} redirects to an address that cdo does not follow.", "Check HF_ENDPOINT, and try again."
        )
    return target


def _origin(url: str) -> str:
    """Return scheme, host and port of an address, without parts that may be secret."""
    place = urlsplit(url)
    default = {"http": 80, "https": 443}.get(place.scheme)
    port = "" if place.port in (None, default) else f":{place.port}"
    return f"{place.scheme}://{place.hostname}{port}"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _drop(path: Path) -> None:
    path.unlink(missing_ok=True)


def _require_room(part: Path, size: int) -> None:
    """Raise `ConfigError` if the disk has no room for what is missing."""
    free, missing = shutil.disk_usage(part.parent).free, size - _size(part)
    if missing + SPARE > free:
        raise ConfigError(
            f"{part.parent} has no room for the model: {megabytes(missing)} are missing, {megabytes(free)} are free.",
            "Make room there, or set CDO_MODELS_DIR to a folder on another disk.",
        )


def _reason(error: Exception) -> str:
    """Return why a connection failed, in a few words without addresses."""
    if type(error).__name__ == "ClientConnectorDNSError":
        return "its name is not known here"
    number = getattr(error, "errno", None)
    if isinstance(number, int) and number > 0:
        return os.strerror(number)
    return "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
