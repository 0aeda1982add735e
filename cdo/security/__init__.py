"""Contains untrusted texts, files and programs: secret detection, trust, safe file opening, sandboxes.

Every other package that opens files it did not write, or runs programs, does so through this one. It imports core and
formats.
"""
