"""Reads the user's repository as evidence: selects files, ranks them for a question, and checks citations of them.

Nothing in the repository is executed. This package imports core, formats, security and content.
"""
