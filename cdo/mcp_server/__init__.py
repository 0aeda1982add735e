"""Offers deliberations to other programs over the Model Context Protocol, for `cdo mcp`.

Runs are processes of their own, started as a person starts them; what is read goes through `history` and `session`.
Only `server` and `tasks` import the package `mcp`, so that nothing else needs the extra.
"""
