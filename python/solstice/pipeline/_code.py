"""Tells whether the code of a stage is still the one that a job was started with."""

import hashlib
import inspect
import textwrap
from typing import Any

from solstice.pipeline._function import FunctionOperator
from solstice.pipeline._operator import Operator


def code_fingerprint(work: Any) -> str | None:
    """A name for the source text of a stage's function or class; None where there is none to be had.

    What the function calls is not looked at.
    """
    if isinstance(work, FunctionOperator):
        code: Any = work.code
    elif isinstance(work, Operator):
        code = type(work)
    else:
        return None
    try:
        text = textwrap.dedent(inspect.getsource(code))
    except (OSError, TypeError):
        return None
    return hashlib.sha256(text.encode()).hexdigest()[:16]
