"""Python environments beside this one: for clients, servers and packages that cannot live in it.

Each is made once, by uv and from its cache, in ``target/environments``, and found there by what is to be in it.
"""

import fcntl
import hashlib
import subprocess
import sys
from pathlib import Path

import uv

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "target" / "environments"


def environment(name, requirements, *, alone=(), pinned=True):
    """The Python of an environment with these requirements; those of ``alone`` are installed without what they need.

    ``pinned`` environments take the versions of the rest from ``constraints.txt``.
    """
    constraints = ROOT / "constraints.txt"
    wanted = repr((sys.version, requirements, alone, pinned and constraints.read_text()))
    folder = FOLDER / f"{name}-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    python, complete = folder / "bin" / "python", folder / ".complete"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            _uv("venv", "--clear", "--python", sys.executable, folder)
            if requirements:
                pins = ("--constraint", constraints) if pinned else ()
                _uv("pip", "install", "--python", python, *pins, *requirements)
            if alone:
                _uv("pip", "install", "--python", python, "--no-deps", *alone)
            complete.touch()
    return python


def _uv(*arguments):
    command = [uv.find_uv_bin(), "--quiet", *map(str, arguments)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise RuntimeError(f"uv {' '.join(command[2:])}: {made.stderr.strip()}")
