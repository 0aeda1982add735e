"""Executes the steps of a program durably: calls, retries, budgets, records, pauses for people.

The runner knows no particular program or mission. It imports session, and the packages that session imports.
"""
