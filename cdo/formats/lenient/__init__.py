"""Reads replies of models that deviate from their format, where the meaning is unambiguous. Pure.

Never used for files that people edit. The strict format is tried first. Only if that fails, the reply is rewritten
into the strict layout, and the strict format judges the result. Each deviation is noted in a short phrase for people.

No value is guessed. These stay invalid: a confidence of 8 (8% or 8 of 10?) or of 140%, an objection without severity,
two different positions, an id that is used twice and referred to, and keys that the format does not know.
"""
