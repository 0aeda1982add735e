"""Root-cause analysis: hypotheses, what evidence makes of them, and the report. Pure."""
