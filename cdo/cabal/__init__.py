"""Runs a mission: a simulated team turns a request into reviewed deliverables.

The state of a mission is a fold over recorded replies. This package does not know the runner. It imports session and
what session imports.
"""
