"""Tokens of Ray: it listens on every interface, and whoever may talk to it may run code.

Ray reads these settings when it is imported. A program that has imported it before has made its own choice.
"""

import os
import secrets
import sys
from pathlib import Path


def use_token() -> None:
    """Show the token, if there is one, to a cluster that is named by its address: Ray itself does so only to others."""
    if "ray" not in sys.modules and _is_given():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def ask_for_token() -> None:
    """Let nobody without a token into the cluster that this process starts."""
    if "ray" in sys.modules or os.environ.setdefault("RAY_AUTH_MODE", "token") != "token":
        return
    if not _is_given():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # for the processes of this cluster only


def _is_given() -> bool:
    return (
        "RAY_AUTH_TOKEN" in os.environ
        or "RAY_AUTH_TOKEN_PATH" in os.environ
        or (Path.home() / ".ray" / "auth_token").exists()
    )
