"""The Pub/Sub emulator as a context manager."""

from types import TracebackType
from typing import Self

from solstice import _native
from solstice._core.logging import start_native_logging
from solstice.errors import ConfigError


class PubSubEmulator:
    """A Pub/Sub server inside this process, on the native runtime; port 0 takes a free port.

    It runs within ``with``, or from :meth:`start` to :meth:`stop`::

        with PubSubEmulator() as emulator:
            emulator.create_topic("projects/p/topics/events")
            emulator.create_subscription("projects/p/subscriptions/events", "projects/p/topics/events")
            os.environ["PUBSUB_EMULATOR_HOST"] = emulator.address

    Everything it holds is in memory. The counters can still be read after :meth:`stop`. With ``tls``, a certificate and
    its key as PEM texts, it speaks TLS.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0, *, tls: tuple[str, str] | None = None) -> None:
        if not 0 <= port <= 65535:
            raise ConfigError(
                f"port {port} is no port.", option="port", value=port, remedy="Give 0 to 65535; 0 takes a free one."
            )
        self.host = host
        self._port = port
        self._tls = tls
        self._native: _native.Emulator | None = None

    def start(self) -> Self:
        """Listen. An emulator starts once."""
        if self._native is not None:
            raise ConfigError("this emulator was started already.", remedy="Make another PubSubEmulator.")
        start_native_logging()
        self._native = _native.Emulator.start(self.host, self._port, tls=self._tls)
        return self

    def stop(self) -> None:
        """End every stream with UNAVAILABLE and close the port; does nothing the second time."""
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

    def create_topic(self, name: str) -> None:
        """Create ``projects/P/topics/T``."""
        self._started.create_topic(name)

    def create_subscription(
        self, name: str, topic: str, ack_deadline_s: int = 10, *, enable_message_ordering: bool = False
    ) -> None:
        """Create ``projects/P/subscriptions/S`` on a topic; it gets what is published from now on."""
        self._started.create_subscription(name, topic, ack_deadline_s, enable_message_ordering)

    def require_token(self, token: str | None) -> None:
        """Answer UNAUTHENTICATED to every call that does not show exactly this bearer token; None lets everybody in."""
        self._started.require_token(token)

    def deny(self, *permissions: str) -> None:
        """Answer PERMISSION_DENIED to the calls that need one of these, such as ``pubsub.subscriptions.consume``.

        Replaces what was denied before; without arguments everything is allowed again.
        """
        self._started.deny(list(permissions))

    def published(self, topic: str) -> int:
        """How many messages were published to the topic."""
        return self._started.published(topic)

    def counters(self, subscription: str) -> dict[str, int]:
        """What happened to the subscription's messages.

        ``outstanding`` (delivered, neither acknowledged nor given back nor expired), ``backlog`` (waiting for a
        delivery), and since its creation ``acked``, ``nacked``, ``expired``, ``delivered``, ``redelivered``.
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
