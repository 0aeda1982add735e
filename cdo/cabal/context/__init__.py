"""What an agent of a mission is shown: what it may see, cut to what fits. Pure."""
