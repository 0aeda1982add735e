"""Splits a batch among machines: which items a shard has, which one an array job's task takes, who owns a batch."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from cdo.core.errors import UsageError
from cdo.core.formatting import one_line
from cdo.core.schema import Schema, fitted

AUTO = "auto"
# Variables by which schedulers tell a task its number: (number, first number, step, how many tasks, last number). ""
# where a scheduler states none. PBS counts from 0 or from 1, as the person says.
_SCHEDULERS = (
    ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_STEP", "SLURM_ARRAY_TASK_COUNT", ""),
    ("JOB_COMPLETION_INDEX", "", "", "", ""),
    ("AWS_BATCH_JOB_ARRAY_INDEX", "", "", "AWS_BATCH_JOB_ARRAY_SIZE", ""),
    ("SGE_TASK_ID", "SGE_TASK_FIRST", "SGE_TASK_STEPSIZE", "", "SGE_TASK_LAST"),
    ("PBS_ARRAY_INDEX", "", "", "", ""),
)
_FROM_ONE = ("PBS_ARRAY_INDEX",)


class Shard(Schema, frozen=True, kw_only=True):
    """One of several parts of a batch; `number` counts from 1 to `of`."""

    number: Annotated[int, Meta(ge=1)]
    of: Annotated[int, Meta(ge=1, le=100_000)]

    def require_sound(self) -> None:
        if self.number > self.of:
            raise ValueError("the number must not be above the count")

    def has(self, identity: str) -> bool:
        """True if the item of this id belongs to the shard. Every id belongs to exactly one."""
        return int(sha256(identity.encode()).hexdigest()[:15], 16) % self.of == self.number - 1

    @property
    def suffix(self) -> str:
        """What is added to the name of a batch for this shard."""
        return f"-{self.number}-of-{self.of}"


def shard_of(given: str | None, env: Mapping[str, str]) -> Shard | None:
    """Return the shard of `--shard K/N`, `auto` or `auto/N`; None for the whole batch. Raises `UsageError`.

    A task of an array job that does not say which part it takes would pay for the whole batch, as all others would.
    """
    task = next((names[0] for names in _SCHEDULERS if env.get(names[0], "").isdecimal()), "")
    if given is None:
        if task:
            raise UsageError(
                f"This is a task of an array job ({task} is set), and each task would pay for the whole batch.",
                "Pass --shard auto (or auto/N) to take a part, or --shard 1/1 for the whole batch here.",
            )
        return None
    match = re.fullmatch(r"(?:([0-9]{1,6})|auto)(?:/([0-9]{1,6}))?", given)
    count = int(match[2]) if match and match[2] else None
    try:
        if match and match[1] and count:
            return fitted(Shard, {"number": int(match[1]), "of": count})
        if match and not match[1]:
            return _of_scheduler(env, count)
    except ValueError:
        pass
    raise UsageError(f"--shard cannot be `{one_line(given, 40)}`.", "Write K/N with K from 1 to N, auto, or auto/N.")


def _of_scheduler(env: Mapping[str, str], count: int | None) -> Shard:
    """Return the shard of this task; `count` of tasks is given where the scheduler states none."""
    for name, first, step, many, last in _SCHEDULERS:
        if not env.get(name, "").isdecimal():
            continue
        number, begin, each = int(env[name]), _whole(env, first, 0), _whole(env, step, 1)
        if count is None and many in env:
            count = _whole(env, many, 0)
        if count is None and last in env:
            count = (_whole(env, last, 0) - begin) // each + 1
        if not count:
            raise UsageError(f"{name} says which task this is, and not how many there are.", "Pass --shard auto/N.")
        if name in _FROM_ONE:
            return fitted(Shard, {"number": number or count, "of": count})
        return fitted(Shard, {"number": (number - begin) // each + 1, "of": count})
    raise UsageError(
        "No array job is running here, so there is no shard to be found.",
        f"Pass --shard K/N. `auto` reads {', '.join(names[0] for names in _SCHEDULERS)}.",
    )


def _whole(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, "")
    return int(text) if text.isdecimal() and int(text) else default


class BatchOwner(Schema, frozen=True, kw_only=True):
    """The process that ran a batch last: the machine, when that was started, and the number of the process."""

    host: str = ""
    boot: str = ""
    pid: int = 0


def owner_here() -> BatchOwner:
    """Return this process. The host is that of the machine, also after a restart, and of a container with a name."""
    machine = boot = ""
    with contextlib.suppress(OSError, ValueError):
        machine = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    with contextlib.suppress(OSError, ValueError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    told = f"{os.uname().nodename} {sha256(machine.encode()).hexdigest()[:8]}"
    return BatchOwner(host=told, boot=boot, pid=os.getpid())
