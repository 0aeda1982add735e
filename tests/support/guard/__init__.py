"""What keeps the tests on this machine."""
