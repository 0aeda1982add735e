"""Serves deliberations as models over Chat Completions, for programs that can name a model and an address.

`conversation` reads requests and words answers, and is pure. `endpoint` is the HTTP server.
"""
