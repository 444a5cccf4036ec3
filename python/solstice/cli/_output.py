"""How commands write: rich on a terminal, plain lines elsewhere."""

from rich.console import Console


def console(*, stderr: bool = False) -> Console:
    """A console that colours on a terminal only (and never under ``NO_COLOR``) and leaves markup in data alone.

    Lines are never wrapped: elsewhere than on a terminal somebody greps them, and on one the terminal wraps.
    """
    return Console(stderr=stderr, markup=False, highlight=False, emoji=False, soft_wrap=True)
