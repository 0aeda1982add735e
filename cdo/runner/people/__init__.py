"""Where a run asks people: pauses, questions, letters, and seats of their own among the voices.

What a form or a reply looks like is not here: that is in `formats/`.
"""
