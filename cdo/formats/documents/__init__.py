"""Documents that a run hands over (ADR, C4, ATAM, WBS): described by content files, read by parsers here. Pure."""
