"""The ``solstice`` command. Nothing heavy loads here: each command imports what it needs when it runs."""

import sys

__all__ = ["main"]


def main() -> int:
    """Run the command line and return its exit code: 0 ok, 1 failed, 2 wrong usage."""
    from solstice.cli._app import build_app, run

    return run(build_app(rich_help=sys.stdout.isatty()), sys.argv[1:])
