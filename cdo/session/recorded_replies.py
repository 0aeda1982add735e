"""Reads the text of a reply from the record of its exchanges. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any


def reply_text(record: Mapping[str, Any], exchanges: Sequence[Mapping[str, Any]]) -> str:
    """Return the reply that a recorded response gives; `exchanges` are all of its call, in order.

    A response that corrects the object of a draft alone gives it with the documents of that draft.
    """
    text = str(record["response"]["text"])
    if not record["request"].get("joins"):
        return text
    from cdo.formats.document_blocks import with_documents

    before = takewhile(lambda item: item is not record, exchanges)
    drafts = [item for item in before if "response" in item and item["model"] == record["model"]]
    return with_documents(text, str(drafts[-1]["response"]["text"])) if drafts else text
