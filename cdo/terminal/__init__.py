"""Shows a run to a person at a terminal while it goes on, and reads what the person types.

It draws from events and plans, and decides nothing. It imports core, content, planning, programs, providers and
session.
"""
