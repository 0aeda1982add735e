"""Implements the command line: one module for each command or family of commands.

It parses arguments, calls app, prints results and chooses the exit code. Only `python -m cdo` imports this package.
"""
