"""Parses the documents that a run hands over (ADR, C4, ATAM, WBS), which content files describe. Pure."""
