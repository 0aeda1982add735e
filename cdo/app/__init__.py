"""Implements the use cases (run, resume, fork, replay, audit, nested deliberations) by wiring the parts together.

This package does not know the command line. It imports every package except report and cli.
"""
