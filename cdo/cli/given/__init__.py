"""What a person gives to a run on the command line: a question or request, and a check command."""
