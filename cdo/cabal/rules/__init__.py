"""What a reply may change in the state of a mission, and what is wrong with one that may not. Pure."""
