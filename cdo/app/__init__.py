"""The use cases: run, resume, fork, replay, audit, nested deliberations. Here the parts are wired together.

It knows no command line. It imports every folder but report and cli.
"""
