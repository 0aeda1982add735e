"""Records the events of a run elsewhere: git commits, tasks in beads.

An observer cannot change a run: its failures are notes. It imports runner and what runner imports.
"""
