"""Defines how replies change the state of a mission, and which problems make a reply invalid. Pure."""
