"""The base of what files and replies may hold: known keys only, and values that do not change."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Schema(BaseModel):
    """What a file may hold, or a part of one: these keys and no others. It does not change."""

    model_config = ConfigDict(frozen=True, extra="forbid")
