"""A batch: many deliberations of one file, each in a session of its own, under common caps.

Here live its items, its folder and how it is run. No program is here, and nothing that prints.
"""
