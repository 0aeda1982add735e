"""A session as one HTML page that loads nothing and runs nothing.

It imports history and what history imports.
"""
