"""The lock file of CI: complete, by hash, true of what is installed; and nothing is let in that it does not name."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.harness import ROOT, lacking, required

LOCK = ROOT / "requirements.lock"
# Lines of `.pth` files are run by every Python of the environment at its start: so litellm 1.82.8 stole keys.
KNOWN_PTH = {"distutils-precedence.pth", "_virtualenv.pth"}
STOLEN = {"1.82.7", "1.82.8"}  # of litellm
# cdo and its tests also run without these.
FREE = {"xllamacpp", "furo", "myst-parser", "sphinx", "sphinx-click", "sphinx-copybutton"}


def locked() -> dict[str, tuple[Requirement, list[str]]]:
    """The lock file by package: what it asks for, and the hashes it allows."""
    text = re.sub(r"(?m)^#.*\n", "", LOCK.read_text("utf-8")).replace("\\\n", " ")
    found: dict[str, tuple[Requirement, list[str]]] = {}
    for line in text.splitlines():
        words, *hashes = re.split(r"\s+--hash=", line.strip())
        requirement = Requirement(words)
        name = canonicalize_name(requirement.name)
        if name in found:  # one line for each range of Python versions; the one for this Python counts
            assert _holds(requirement) != _holds(found[name][0]), f"{requirement.name} is there twice"
        if name not in found or _holds(requirement):
            found[name] = requirement, hashes
    return found


def _holds(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate()


def declared() -> Iterator[Requirement]:
    """What pyproject.toml asks for: to run, to test, to build, to make the documentation."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    project = data["project"]
    extras = project["optional-dependencies"]
    yield from map(Requirement, [*project["dependencies"], *extras["local"], *extras["test"], *extras["docs"]])
    yield from map(Requirement, data["build-system"]["requires"])


def installed() -> dict[str, importlib.metadata.Distribution]:
    """All that is declared, and what that needs in turn, as far as it is installed."""
    found: dict[str, importlib.metadata.Distribution] = {}
    left, seen = list(declared()), set()
    while left:
        wanted = left.pop()
        name, extras = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            found[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            assert name in FREE, f"{name} is not installed"
            continue
        for need in map(Requirement, found[name].requires or []):
            if not need.marker or any(need.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                left.append(need)
    return found


def test_every_package_is_pinned_by_hash_and_no_place_is_named() -> None:
    packages = locked()
    assert len(packages) > 60
    for name, (requirement, hashes) in packages.items():
        assert re.fullmatch(r"==[\w.!+]+", str(requirement.specifier)), f"{name} is not pinned"
        assert not requirement.url, f"{name} comes from a place of its own"
        assert hashes and all(re.fullmatch(r"sha256:[0-9a-f]{64}", value) for value in hashes), name
    # Where packages come from is the reader's own setting.
    assert not re.search(r"://|--(index|extra-index|find|trusted)", LOCK.read_text("utf-8"))


def test_what_is_declared_is_locked_in_a_version_it_allows() -> None:
    packages = locked()
    for requirement in declared():
        pin, _ = packages[canonicalize_name(requirement.name)]
        (version,) = (spec.version for spec in pin.specifier)
        assert requirement.specifier.contains(version), f"{pin} is not {requirement}: make requirements.lock again"
    (version,) = (spec.version for spec in packages["litellm"][0].specifier)
    assert version not in STOLEN and importlib.metadata.version("litellm") not in STOLEN


def test_whatever_is_needed_in_turn_is_locked_too() -> None:
    found = installed()
    assert len(found) > 60
    assert not set(found) - set(locked())


def test_what_is_installed_is_what_is_locked() -> None:
    if "lock" not in required():
        lacking("lock", "only CI installs by the lock file: elsewhere newer versions may be there")
    packages = locked()
    wrong = {
        name: found.version for name, found in installed().items() if found.version not in packages[name][0].specifier
    }
    assert not wrong


def pth_files() -> list[Path]:
    """All files in this environment that a starting Python reads for lines to run."""
    folders = {sysconfig.get_path(kind) for kind in ("purelib", "platlib")}
    return sorted(path for folder in folders for path in Path(folder).glob("*.pth"))


def test_nothing_that_is_installed_runs_at_the_start_of_every_python() -> None:
    bring = {
        name: [file.name for file in distribution.files or [] if file.name.endswith(".pth")]
        for name, distribution in installed().items()
    }
    assert not {name: files for name, files in bring.items() if files}
    run = re.compile(rb"(?m)^import[ \t]")
    running = {path.name for path in pth_files() if run.search(path.read_bytes())}
    assert not running - KNOWN_PTH


# -- what pip does with such a file ----------------------------------------------------------------


def wheel(folder: Path, extra: str = "") -> str:
    """Make the wheel of a package `trusted` 1.0, and return its SHA-256."""
    folder.mkdir()
    files = {
        "trusted.py": f"ANSWER = 42\n{extra}",
        "trusted-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: trusted\nVersion: 1.0\n",
        "trusted-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = []
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record.append(f"{name},sha256={digest},{len(text)}\n")
    files["trusted-1.0.dist-info/RECORD"] = "".join(record) + "trusted-1.0.dist-info/RECORD,,\n"
    path = folder / "trusted-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.slow
def test_a_package_of_another_hash_or_of_none_is_refused(tmp_path: Path) -> None:
    good = wheel(tmp_path / "good")
    wheel(tmp_path / "bad", extra="import os\n")
    (command,) = re.findall(r"pip (install -q --require-hashes) -r", (ROOT / ".ci" / "run").read_text("utf-8"))

    def pip(folder: str, lock: str) -> tuple[int, str, bool]:
        (tmp_path / "lock").write_text(lock)
        target = tmp_path / "target"
        words = ["--no-index", "--find-links", str(tmp_path / folder), "--target", str(target), "-r", "lock"]
        run = [sys.executable, "-m", "pip", "--isolated", *command.split(), *words]
        done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True)
        return done.returncode, done.stderr, (target / "trusted.py").exists()

    code, told, there = pip("bad", f"trusted==1.0 --hash=sha256:{good}\n")
    assert code and "DO NOT MATCH THE HASHES" in told and not there
    code, told, there = pip("good", "trusted==1.0\n")
    assert code and "Hashes are required" in told and not there
    code, told, there = pip("good", f"trusted==1.0 --hash=sha256:{good}\n")
    assert (code, there) == (0, True), told
