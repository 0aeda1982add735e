"""The deliberation: turns, syntheses, the ledgers of tensions and objections, when it ends, and FINAL.md. Pure."""
