"""A machine that lacks a command, for the tests that try what happens then."""

import os
from pathlib import Path


def path_without(folder: Path, *names: str) -> str:
    """A PATH on which every command of this machine is found but those named; the links to them stand in ``folder``."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for command in Path(place).iterdir() if Path(place).is_dir() else ():
            link = folder / command.name
            if command.name not in names and not link.is_symlink():
                link.symlink_to(command)
    return str(folder)
