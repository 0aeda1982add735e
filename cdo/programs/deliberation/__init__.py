"""Runs a deliberation: turns, syntheses, the ledgers of tensions and objections, its end, and FINAL.md. Pure."""
