"""The command line: one module for each command or family of commands.

It parses words, calls app, prints and picks the exit code. Nothing imports it but `python -m cdo`.
"""
