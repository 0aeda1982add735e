"""The programs of deliberation: pure generators that yield steps and receive checked replies.

A program cannot read a file, ask for the time or print: it only decides. It does not know the runner, and no
provider. It imports formats, planning and session.
"""
