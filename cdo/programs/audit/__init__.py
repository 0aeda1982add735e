"""Audits a run: other models sum up the same answers again, in several orders. Pure."""
