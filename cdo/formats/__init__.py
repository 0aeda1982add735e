"""Reads, checks and writes the texts of models and people: YAML, Markdown, reply formats, FINAL.md.

A reply format turns the text of a model into checked data, or says in sentences what is wrong. All of it is pure: no
file, no clock, no network. It imports core.
"""
