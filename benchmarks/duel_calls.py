"""Single calls to models, kept on disk: the request before it is sent, each answer before anybody reads it.

A call is one JSON file. Asked for again it is answered from that file; where its process was killed it goes on.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from string import Template
from typing import Any, TypeVar

import msgspec

from cdo.app import seats as seating
from cdo.content.library import Library
from cdo.core.errors import ModelsFailed
from cdo.core.exchange import BackendError, Fault, Message, Request, Response
from cdo.core.steps import InvalidReply
from cdo.core.usage import estimate_tokens
from cdo.files.atomic_files import closing, open_path, write_file
from cdo.planning import settings
from cdo.planning.settings import Settings
from cdo.runner import retry
from cdo.runner.exchange_records import fault_of, usage_of
from cdo.runner.model_seat import ModelSeat
from cdo.runner.retry import AttemptCounter

PROMPTS = Path(__file__).resolve().parent / "duel"
PARSED = TypeVar("PARSED")


@dataclass(frozen=True)
class Ask:
    """What is asked: `kind`, `case` and `name` tell the call from others, `prompt` is its one message."""

    kind: str
    case: str
    name: str
    prompt: str


@dataclass
class Model:
    """A model by its name, reached as cdo reaches it."""

    name: str
    seat: ModelSeat
    settings: Settings
    sending: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(256))

    async def call(self, path: Path, ask: Ask, parse: Callable[[str], PARSED]) -> PARSED:
        """The parsed answer, from the file `path` where it is on record; raise `ModelsFailed` where there is none.

        A reply that cannot be parsed is sent back once. When that fails too, the next run asks from the start.
        """
        record = read(path) or {**asdict(ask), "model": self.name, "exchanges": []}
        save(path, record)
        exchanges: list[dict[str, Any]] = record["exchanges"]
        for exchange in exchanges:
            if "text" in exchange and not exchange["problems"]:
                return parse(exchange["text"])
        messages = [Message("user", record["prompt"])]
        rejected = [exchange for exchange in exchanges if exchange.get("problems")]
        if len(rejected) % 2:
            messages += _sent_back(rejected[-1])
        while True:
            response, taken = await self._answer(path, record, messages)
            try:
                parsed = parse(response.text)
            except InvalidReply as invalid:
                exchanges.append({**taken, "text": response.text, "problems": list(invalid.problems)})
                save(path, record)
                if len(messages) > 1:
                    raise ModelsFailed(f"{ask.case}, {ask.name}: the reply was invalid twice: {invalid}") from None
                messages += _sent_back(exchanges[-1])
            else:
                exchanges.append({**taken, "text": response.text, "problems": []})
                save(path, record)
                return parsed

    async def _answer(
        self, path: Path, record: dict[str, Any], messages: list[Message]
    ) -> tuple[Response, dict[str, Any]]:
        """One complete answer and what it took; passing faults are retried, each is recorded."""
        tries, spec = AttemptCounter(), self.seat.spec
        cap = self.settings.reply_tokens or spec.reply_tokens
        sent = sum(estimate_tokens(message.text) for message in messages)
        while True:
            started, clock = datetime.now(UTC), time.monotonic()
            headers = {
                "X-Cdo-Session": record["case"],
                "X-Cdo-Call": record["name"],
                "X-Cdo-Kind": record["kind"],
                "X-Cdo-Attempt": str(len(record["exchanges"]) + 1),
            }
            request = Request(spec.model, tuple(messages), cap, headers)
            response, error = await self._exchange(request)
            usage = usage_of(response, error, sent)
            taken: dict[str, Any] = {
                "started": started.isoformat(timespec="milliseconds"),
                "seconds": round(time.monotonic() - clock, 3),
            }
            if usage:
                taken |= {"usage": msgspec.structs.asdict(usage), "cost": spec.cost(usage)}
            if response and not error:
                return response, taken
            assert error is not None
            record["exchanges"].append({**taken, "fault": error.fault.value, "message": error.message})
            save(path, record)
            tries.note(error.fault)
            if not tries.retry(error.fault):
                raise ModelsFailed(f"{record['case']}, {record['name']}: {error.fault.value}: {error.message}")
            if error.fault in (Fault.LENGTH, Fault.EMPTY):
                cap *= 2
            delay = tries.delay() if error.fault in retry.PASSING else 0.0
            await asyncio.sleep(max(error.retry_after or 0.0, delay))

    async def _exchange(self, request: Request) -> tuple[Response | None, BackendError | None]:
        """One request within the limit for a whole call."""
        try:
            async with self.sending, asyncio.timeout(self.settings.call_timeout):
                response = await self.seat.backend.complete(request, lambda piece: None)
        except BackendError as error:
            return None, error
        except TimeoutError:
            return None, BackendError(Fault.TIMEOUT, "the limit for a whole call passed (CDO_CALL_TIMEOUT)")
        return response, fault_of(response, request)


def models(*names: str) -> dict[str, Model]:
    """The models of these names; raise `ConfigError` for one that cannot be reached from here."""
    library = Library.at(Path.cwd())
    values = settings.resolve({}, library).values
    found = seating.specs(names, library, values, os.environ)
    seats = seating.seats(found, values, library, lambda text: print(text, file=sys.stderr))
    return {name: Model(name, seat, values) for name, seat in seats.items()}


def prompt(name: str, **values: str) -> str:
    """A prompt of the duel with its places filled; what is put in stays as it is."""
    return Template((PROMPTS / f"{name}.md").read_text("utf-8")).substitute(values)


def taken(path: Path) -> dict[str, Any]:
    """What a recorded call took: requests, tokens, dollars (None where a price is unknown), seconds."""
    return added((read(path) or {"exchanges": []})["exchanges"])


def added(exchanges: list[dict[str, Any]]) -> dict[str, Any]:
    """The sum of what exchanges took, as they are recorded here and in sessions."""
    charged = [exchange for exchange in exchanges if exchange.get("usage")]
    costs = [exchange.get("cost") for exchange in charged]
    return {
        "calls": len(exchanges),
        "input_tokens": sum(exchange["usage"]["input_tokens"] for exchange in charged),
        "output_tokens": sum(exchange["usage"]["output_tokens"] for exchange in charged),
        "cost": None if None in costs else sum(costs),
        "seconds": round(sum(float(exchange.get("seconds", 0.0)) for exchange in exchanges), 3),
    }


def read(path: Path) -> dict[str, Any] | None:
    """A file of JSON, or None where there is none."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    return dict(found)


def save(path: Path, data: Mapping[str, Any] | str) -> None:
    """Write a file, whole or not at all: text as it is, other data as JSON."""
    text = data if isinstance(data, str) else json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    with closing(open_path(path.parent.absolute(), make=True)) as folder:
        write_file(folder, path.name, text.encode("utf-8", "replace"))


def _sent_back(rejected: Mapping[str, Any]) -> list[Message]:
    """An invalid reply, and what is wrong with it."""
    problems = "\n".join(f"- {problem}" for problem in rejected["problems"])
    return [Message("assistant", rejected["text"]), Message("user", prompt("repair", problems=problems))]
