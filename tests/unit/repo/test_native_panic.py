"""A Rust panic becomes a Python exception, and the process goes on."""

import logging
import time

import pytest

from solstice import _native
from solstice._core.logging import start_native_logging
from solstice.errors import NativeError


def test_a_panic_is_an_exception_that_names_its_message() -> None:
    for _ in range(3):
        with pytest.raises(NativeError, match=r"panicked: on purpose.*bug in Solstice"):
            _native.provoke_panic("on purpose")


def test_a_panic_is_logged_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    start_native_logging()
    with caplog.at_level(logging.ERROR), pytest.raises(NativeError):
        _native.provoke_panic("look here")
    deadline = time.monotonic() + 5
    while not any("look here" in record.message and "errors.rs" in record.message for record in caplog.records):
        assert time.monotonic() < deadline, "the panic was not logged"
        time.sleep(0.01)
