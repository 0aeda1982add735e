"""Records the events of a run elsewhere: git commits, tasks in beads, spans at a collector.

An observer cannot change a run: its failures are notes. It imports runner, tracing and what they import.
"""
