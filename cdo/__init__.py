"""cdo: adaptive multi-voice deliberation in a shell."""

__version__ = "0.1.0"
