"""Native clients of model providers over HTTP, one module for each protocol, and what the protocols share."""
