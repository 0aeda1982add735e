"""Limits what the process that parses a model file can do: llama.cpp is native code, and the file may be hostile.

With Landlock the process reads the model, Python and the system's libraries. It writes only to graphics devices and
begins no TCP connection; it accepts those of cdo. On macOS, sandbox-exec does the same. Elsewhere the process runs
with the person's rights.
"""

from __future__ import annotations

import importlib.util
import os
import re
import site
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from cdo.security import command_sandbox
from cdo.security.command_sandbox import FILES, TCP
from cdo.security.secrets import secret_values

# Files outside of `command_sandbox.SYSTEM` that the loader, Python, OpenSSL and llama.cpp read. None has a secret.
_CONFIGURATION = (
    "/etc/ld.so.cache /etc/ld.so.conf /etc/ld.so.conf.d /etc/alternatives /etc/localtime /etc/hosts /etc/host.conf "
    "/etc/nsswitch.conf /etc/resolv.conf /etc/gai.conf /etc/ssl/openssl.cnf /etc/pki/tls/openssl.cnf "
    "/etc/crypto-policies /etc/vulkan /etc/OpenCL /proc /sys"
)
_GRAPHICS = re.compile(r"nvidia.*|dri|kfd|dxg")  # devices in /dev


def command(argv: Sequence[str], model: Path) -> tuple[str, ...]:
    """Return the command that runs `argv`, a Python program, with access to a model file and little else."""
    return command_sandbox.limited(argv, [*_libraries(), *_files(model)], _devices())


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the process: those without a secret."""
    secret = secret_values(env)
    return {name: value for name, value in env.items() if name not in secret}


def rights() -> str:
    """Say in a few words with which rights the process runs on this machine."""
    held = command_sandbox.limits_here([sys.executable, "-I", "-c", "import ssl"], _libraries(), _devices()).held
    if FILES not in held:
        return "its process runs with your rights: neither Landlock nor sandbox-exec works here"
    return f"its process reads only the model and Python, and writes no file{', connects nowhere' * (TCP in held)}"


def _libraries() -> list[str]:
    """Return the folders of Python, its packages and the system's libraries."""
    packages = [place for place in sys.path if Path(place).name in ("site-packages", "dist-packages")]
    found = importlib.util.find_spec("xllamacpp")
    if found and found.origin:
        packages.append(str(Path(found.origin).parent))
    for variable in ("PYTHONPATH", "LD_LIBRARY_PATH"):
        packages += [place for place in os.environ.get(variable, "").split(os.pathsep) if place.startswith("/")]
    own = [str(Path(__file__).with_name("embedded_server.py")), str(Path(os.path.realpath(sys.executable)).parent)]
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, site.getusersitepackages()}
    return [*command_sandbox.SYSTEM, *_CONFIGURATION.split(), *sorted(prefixes), *packages, *own]


def _files(model: Path) -> list[str]:
    parts = _parts(model.name)
    others = [path for path in model.parent.glob("*.gguf") if parts and _parts(path.name) == parts]
    return [str(path) for path in (model, *others)]


def _parts(name: str) -> tuple[str, ...]:
    """Return what the names of all files of one model have in common; () for a model in one file."""
    found = re.fullmatch(r"(.*)-\d{5}(-of-\d{5}\.gguf)", name)  # llama.cpp opens all of them
    return found.groups() if found else ()


def _devices() -> list[str]:
    with os.scandir("/dev") as entries:
        return [entry.path for entry in entries if _GRAPHICS.fullmatch(entry.name)]
