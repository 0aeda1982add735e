"""Analyses the root cause of a fault: keeps hypotheses, rates evidence for them, and checks the report. Pure."""
