"""The session directory: how it is created, locked, written, read and recovered.

This is the only folder that writes into sessions. It imports planning and what planning imports.
"""
