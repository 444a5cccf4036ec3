"""Packages of optional extras, imported when something needs them."""

import importlib
from typing import Any

from solstice.errors import MissingExtraError


def require(package: str, extra: str) -> Any:
    """Import a package (or a module in one), or raise MissingExtraError with the command that installs ``extra``."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        top = package.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != top:
            raise  # the package is there, but something that it imports itself is not: say that, not this
        raise MissingExtraError(top, extra) from error
