"""Renders a session as one HTML page that loads nothing and runs no scripts.

It imports history and what history imports.
"""
