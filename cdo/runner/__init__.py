"""Executes the steps of a program durably: calls, retries, budgets, records, pauses for people.

The runner knows no program and no mission. It imports session and what session imports.
"""
