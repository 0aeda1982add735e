"""Defines every error that a person can see, as one class hierarchy.

An error is one sentence saying what happened (the message), one saying what to do (the hint), and the
exit code of the command. The command line prints exactly that and no traceback; anything that is not
a `CdoError` is a defect of cdo itself and exits 1.
"""

from __future__ import annotations


class CdoError(Exception):
    """Base of all errors meant for a person.

    `message` says what happened; `hint` says what to do about it ("" if nothing can be done).
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(CdoError):
    """The command line cannot be understood."""

    exit_code = 2


class ContentError(CdoError):
    """A preset, brief, protocol or configuration file is wrong. The message names file, key and allowed values."""

    exit_code = 4


class ConfigError(CdoError):
    """A setting, model name or key is wrong or missing."""

    exit_code = 4


class NoModel(ConfigError):
    """No model on this machine can answer."""


class BudgetReached(CdoError):
    """A cap on calls, tokens, money or time stops the run; it can be resumed with a higher one."""

    exit_code = 5


class NeedsHuman(CdoError):
    """The run waits for a person, and there is no terminal to ask at.

    `question` is what the run asks, with the `options` that it offers; "" if it waits for something else.
    """

    exit_code = 6

    def __init__(self, message: str, hint: str = "", question: str = "", options: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint)
        self.question = question
        self.options = options


class WaitsForBatch(CdoError):
    """Calls of the run wait at a provider's batch endpoint; it can be resumed to collect the answers."""

    exit_code = 6


class ModelsFailed(CdoError):
    """Too few voices, or no synthesis, after every retry the policy allows."""

    exit_code = 7


class SessionError(CdoError):
    """The session directory cannot be used: missing, damaged, locked, full or read-only."""

    exit_code = 8


class DiskFailed(SessionError):
    """The disk takes no more: it is full, read-only or broken. `remedy` says in a few words what to do about it."""

    def __init__(self, message: str, hint: str = "", remedy: str = "") -> None:
        super().__init__(message, hint)
        self.remedy = remedy


class ItemsFailed(CdoError):
    """A batch came to its end, and some of its items failed."""

    exit_code = 9


class Interrupted(CdoError):
    """The person pressed Ctrl-C, or the process received TERM or HUP."""

    exit_code = 130
