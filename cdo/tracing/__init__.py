"""A session as an OpenTelemetry trace: spans from records, their encoding as OTLP/JSON, the way to a collector.

Attributes have the names of the semantic conventions for generative AI, version 0.1.0. It imports session and what
session imports. It reads no session itself and writes no file.
"""
