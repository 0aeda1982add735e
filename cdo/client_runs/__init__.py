"""Runs that other programs begin: within what the person allows, as processes that outlive the server.

`mcp_server` and `chat_server` offer them over their protocols; nothing here knows one.
"""
