"""Runs a parliament: motions, amendments, votes counted by code, and the minutes. Pure."""
