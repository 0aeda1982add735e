"""What a person sees and types at a terminal while a run goes on.

It draws from events and plans, and decides nothing. It imports core, planning, session and the texts of cabal.
"""
