"""Texts that models and people write: how each is read, checked and written. YAML, Markdown, reply formats, FINAL.md.

A reply format turns the text of a model into checked data, or says in sentences what is wrong. All of it is pure: no
file, no clock, no network. It imports core.
"""
