"""Defines the basic types of every other folder: steps and replies, errors, results, usage, texts for people.

Nothing here reads or writes a file, reaches a network or starts a process (signals are the one exception). It imports
no other folder of cdo.
"""
