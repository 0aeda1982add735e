"""The audit of a run: another chair sums up the same answers in several orders. Pure."""
