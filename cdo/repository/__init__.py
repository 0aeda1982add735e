"""The user's files as evidence: which may be shown, which matter for a question, and whether citations hold.

Nothing of a repository is executed here. It imports core, formats, security and content.
"""
