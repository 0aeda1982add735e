"""What a person reads when too few replies came: the true cause, once, and the command that helps."""

from __future__ import annotations

import pytest

from cdo.core.errors import BudgetReached, CdoError, ConfigError, ModelsFailed
from cdo.core.exchange import Fault
from cdo.core.steps import Missing, Reply
from cdo.providers.models import ModelSpec
from cdo.runner.failures import MissingReply, failure

SPEC = ModelSpec("openai/gpt-9", "direct", "gpt-9", key_env="OPENAI_API_KEY")
LIMIT = "The time limit of 20 s is reached."


def missing(fault: Fault, text: str, count: int = 3, spec: ModelSpec = SPEC) -> list[MissingReply]:
    return [MissingReply(Reply(f"t1-v{n}", reason=Missing(fault.value, text)), spec) for n in range(count)]


@pytest.mark.parametrize(
    ("fault", "text", "kind", "words", "helps"),
    [
        (Fault.DENIED, "HTTP 401: Incorrect key.", ConfigError, "refuses access", ("OPENAI_API_KEY", "cdo doctor")),
        (Fault.USED_UP, "HTTP 429: no credit", ConfigError, "used up", ("Add credit", "-m NAME")),
        (Fault.REJECTED, "HTTP 404: no such model", ModelsFailed, "404", ("cdo models", "-m NAME")),
        (Fault.NETWORK, "no connection to u: refused", ModelsFailed, "no connection to u", ("Check the network",)),
        (Fault.OVERLOADED, "HTTP 529: Overloaded", ModelsFailed, "0 of 3 answered", ("asks only for what",)),
    ],
)
def test_each_cause_is_said_once_with_what_helps(
    fault: Fault, text: str, kind: type[CdoError], words: str, helps: tuple[str, ...]
) -> None:
    error = failure(missing(fault, text), 3, 2)
    assert type(error) is kind and words in error.message
    assert error.message.count(text.rstrip(".")) == 1 and "rate-limited" not in error.message
    assert all(word in error.hint for word in helps)


def test_more_time_does_not_help_without_a_connection() -> None:
    assert isinstance(failure(missing(Fault.NETWORK, "no connection"), 3, 2, LIMIT), ModelsFailed)
    error = failure(missing(Fault.RATE_LIMITED, "HTTP 429: slow down"), 3, 2, LIMIT)
    assert isinstance(error, BudgetReached)
    assert error.message == f"{LIMIT} Meanwhile: t1-v0, t1-v1, t1-v2: rate-limited: HTTP 429: slow down."
    assert failure(missing(Fault.TIMEOUT, "no answer"), 3, 2, LIMIT).message == LIMIT


def test_an_agent_is_logged_in_to_and_a_long_page_is_cut() -> None:
    agent = ModelSpec("codex", "command", "", agent="codex")
    error = failure(missing(Fault.DENIED, "x" * 5000, spec=agent), 3, 2)
    assert error.hint.startswith("Log in with `codex`") and len(error.message) < 400
