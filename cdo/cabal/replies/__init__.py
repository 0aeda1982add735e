"""The schemas of what the agents of a mission answer, step by step. Pure."""
