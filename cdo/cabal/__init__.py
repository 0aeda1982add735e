"""A mission: the simulated team that turns a request into reviewed deliverables.

Its state is a fold over recorded replies. It does not know the runner. It imports session and what session imports.
"""
