"""Reaches models: one request in, one response out.

There are no retries, budgets or records here: the runner handles those. It imports core, files, formats, security and
content.
"""
