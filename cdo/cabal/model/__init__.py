"""Defines what a mission consists of (products, versions, feedback, verdicts) and the state that holds it. Pure."""
