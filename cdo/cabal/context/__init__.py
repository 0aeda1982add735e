"""Selects the context that an agent of a mission may see, and cuts it to the token budget. Pure."""
