"""The Pub/Sub emulator as a context manager."""

from collections.abc import Mapping
from os import PathLike
from types import TracebackType
from typing import Self

from solstice import _native
from solstice._core.logging import start_native_logging
from solstice.errors import ConfigError


class PubSubFaults:
    """The faults of a :class:`PubSubEmulator`: each stays until it is used up, or until :meth:`clear`.

    Methods are named as in the service: ``Publish``, ``Acknowledge``, ``ModifyAckDeadline``, ``StreamingPull``, ...
    """

    def __init__(self, native: _native.Emulator) -> None:
        self._native = native

    def answer(self, method: str, code: str, *, times: int = 1) -> None:
        """Answer the next calls with a code such as ``UNAVAILABLE``; they do nothing else. Several queue up.

        ``StreamingPull`` is refused when it opens; a running stream ends with :meth:`cut_streams`.
        """
        self._native.answer(method, code, _at_least(1, "times", times))

    def delay(self, method: str, seconds: float, *, times: int = 1) -> None:
        """Let the next calls wait, in real time, before they are carried out."""
        self._native.delay(method, seconds, _at_least(1, "times", times))

    def cut_streams(self, after: int, *, times: int | None = None) -> None:
        """End each StreamingPull with ``UNAVAILABLE`` after it has delivered so many messages.

        ``times`` bounds how many streams are cut; without it every one is. ``after=0`` cuts the open ones at once.
        """
        self._native.cut_streams(_at_least(0, "after", after), None if times is None else _at_least(1, "times", times))

    def duplicate(self, every: int = 1) -> None:
        """Deliver every n-th message twice, under two ack ids; acknowledging either acknowledges the message.

        But not once the other one was given back or has expired: then the message comes again all the same.
        """
        self._native.duplicate(_at_least(1, "every", every))

    def drop_acks(self, *, times: int = 1) -> None:
        """Answer the next acknowledge requests with success and forget them: the messages come again."""
        self._native.drop_acks(_at_least(1, "times", times))

    def clear(self) -> None:
        """No faults any more."""
        self._native.clear_faults()


class PubSubEmulator:
    """A Pub/Sub server inside this process, on the native runtime; port 0 takes a free port.

    It runs within ``with``, or from :meth:`start` to :meth:`stop`::

        with PubSubEmulator() as emulator:
            emulator.create_topic("projects/p/topics/events")
            emulator.create_subscription("projects/p/subscriptions/events", "projects/p/topics/events")
            os.environ["PUBSUB_EMULATOR_HOST"] = emulator.address

    Tests turn its clock (:meth:`advance`), ask for faults (:attr:`faults`) and read its counters; those can still be
    read after :meth:`stop`. With ``tls``, a certificate and its key as PEM texts, it speaks TLS.

    Everything it holds is in memory, unless ``data_dir`` names a folder: then whatever a client was told is done is
    there at the next start on that folder, also when this process was killed. Leased messages are delivered anew,
    counters begin at 0. A loss of power may cost the last moments. A folder serves one emulator at a time.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        tls: tuple[str, str] | None = None,
        data_dir: str | PathLike[str] | None = None,
    ) -> None:
        if not 0 <= port <= 65535:
            raise ConfigError(
                f"port {port} is no port.", option="port", value=port, remedy="Give 0 to 65535; 0 takes a free one."
            )
        self.host = host
        self._port = port
        self._tls = tls
        self._data_dir = data_dir
        self._native: _native.Emulator | None = None

    def start(self) -> Self:
        """Listen. An emulator starts once."""
        if self._native is not None:
            raise ConfigError("this emulator was started already.", remedy="Make another PubSubEmulator.")
        start_native_logging()
        self._native = _native.Emulator.start(self.host, self._port, tls=self._tls, data_dir=self._data_dir)
        return self

    def stop(self) -> None:
        """End every stream with UNAVAILABLE and close the port; does nothing the second time, nor in a forked child."""
        if self._native is not None:
            self._native.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._started.port

    @property
    def address(self) -> str:
        """``host:port``, as ``PUBSUB_EMULATOR_HOST`` wants it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def create_topic(
        self, name: str, *, message_retention_s: float | None = None, labels: Mapping[str, str] | None = None
    ) -> None:
        """Create ``projects/P/topics/T``; with a retention, subscriptions can seek back to its messages."""
        self._started.create_topic(name, message_retention_s, labels or {})

    def create_subscription(
        self,
        name: str,
        topic: str,
        ack_deadline_s: int = 10,
        *,
        enable_message_ordering: bool = False,
        enable_exactly_once_delivery: bool = False,
        filter: str = "",
        dead_letter_topic: str | None = None,
        max_delivery_attempts: int = 5,
        minimum_backoff_s: float | None = None,
        maximum_backoff_s: float | None = None,
        retain_acked_messages: bool = False,
        message_retention_s: float | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Create ``projects/P/subscriptions/S`` on a topic; it gets what is published from now on.

        The settings are those of the service. A backoff of either kind makes a retry policy: the one that is left out
        gets the service's default (10 s, 600 s). Without a retention messages are kept for 7 days.
        """
        settings: dict[str, object] = {
            "ack_deadline_s": ack_deadline_s,
            "enable_message_ordering": enable_message_ordering,
            "enable_exactly_once_delivery": enable_exactly_once_delivery,
            "filter": filter,
            "dead_letter_topic": dead_letter_topic,
            "max_delivery_attempts": max_delivery_attempts,
            "minimum_backoff_s": minimum_backoff_s,
            "maximum_backoff_s": maximum_backoff_s,
            "retain_acked_messages": retain_acked_messages,
            "message_retention_s": message_retention_s,
            "labels": labels or {},
        }
        self._started.create_subscription(name, topic, settings)

    def advance(self, seconds: float) -> None:
        """Turn the emulator's clock forward; it goes on from there.

        On return everything that the time does is done: leases have ended, retries are due, messages past their
        retention are gone. Publish times are of this clock, too.
        """
        self._started.advance(seconds)

    @property
    def faults(self) -> PubSubFaults:
        """What is to go wrong: nothing, until it is asked for."""
        return PubSubFaults(self._started)

    def calls(self) -> dict[str, int]:
        """How often each method was called, failed calls included: ``{"Publish": 3, "StreamingPull": 1}``.

        Calls of the methods of this class do not count: they do not go over the wire.
        """
        return self._started.calls()

    def require_token(self, token: str | None) -> None:
        """Answer UNAUTHENTICATED to every call that does not show exactly this bearer token; None lets everybody in."""
        self._started.require_token(token)

    def deny(self, *permissions: str) -> None:
        """Answer PERMISSION_DENIED to the calls that need one of these, such as ``pubsub.subscriptions.consume``.

        Replaces what was denied before; without arguments everything is allowed again. What no call needs is refused.
        """
        self._started.deny(list(permissions))

    def published(self, topic: str) -> int:
        """How many messages were published to the topic."""
        return self._started.published(topic)

    def counters(self, subscription: str) -> dict[str, int]:
        """What happened to the subscription's messages.

        ``outstanding`` (delivered, neither acknowledged nor given back nor expired), ``backlog`` (waiting for a
        delivery), and since its creation ``acked``, ``nacked``, ``expired``, ``delivered``, ``redelivered``,
        ``dead_lettered`` (forwarded to the dead-letter topic) and ``filtered`` (published, but not for it).
        """
        return self._started.counters(subscription)

    def acked_ids(self, subscription: str) -> list[str]:
        """The ids of the messages that were acknowledged, in the order of publishing."""
        return self._started.acked_ids(subscription)

    @property
    def _started(self) -> _native.Emulator:
        if self._native is None:
            raise ConfigError("the emulator is not running.", remedy="Use it within `with`, or call start().")
        return self._native


def _at_least(minimum: int, option: str, value: int) -> int:
    if value < minimum:
        raise ConfigError(
            f"{option} is {value}.", option=option, value=value, remedy=f"Give a number from {minimum} on."
        )
    return value
