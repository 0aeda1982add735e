"""Offers deliberations to other programs over the Model Context Protocol, for `cdo mcp`.

What its tools do is done by `client_runs`. Only `server`, `tasks` and `tools` import the package `mcp`, so that
nothing else needs the extra.
"""
