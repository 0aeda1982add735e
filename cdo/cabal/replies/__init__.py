"""Defines the schemas of the agents' replies in a mission, step by step. Pure."""
