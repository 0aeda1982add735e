"""What keeps untrusted texts, files and programs from doing harm: secrets, trust, safe opening, sandboxes.

Every other folder that opens a file it did not write, or runs a program, does so through this one. It imports core
and formats.
"""
