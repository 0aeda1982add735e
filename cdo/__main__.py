"""Entry point of the `cdo` command and of `python -m cdo`."""

from __future__ import annotations


def main() -> None:
    """Run the command line; never returns."""
    from cdo.cli import run

    run()


if __name__ == "__main__":
    main()
