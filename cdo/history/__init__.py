"""Looks back on runs: a session as data, comparisons, search, costs, precedents.

It only reads. It imports programs, cabal, session and what they import.
"""
