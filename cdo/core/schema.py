"""Defines the base class for files and replies: known keys only, and values that do not change."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Schema(BaseModel):
    """The base of models for files and their parts. Unknown keys are errors; instances are immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
