"""How a model is reached: one request in, one response out.

No retries, no budgets and no records here: the runner decides about those. It imports core, formats, security and
content.
"""
