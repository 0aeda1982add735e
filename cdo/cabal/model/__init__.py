"""What a mission consists of: its products, versions, feedback and verdicts, and the state that holds them. Pure."""
