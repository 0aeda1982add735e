"""The session directory: how it is created, locked, written, read and recovered.

Only this package writes into sessions. It imports planning, and the packages that planning imports.
"""
