"""``SparkSession.builder``: sessions as PySpark scripts make them."""

import logging
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from solstice.connect._camel import camel_cased
from solstice.errors import ConfigError, RemoteError

if TYPE_CHECKING:
    from solstice.connect._session import Session

_log = logging.getLogger("solstice.connect")
_lock = threading.Lock()
_active: "list[Session]" = []  # the session that getOrCreate() gives again, if there is one

_REMOTE, _MASTER, _APP_NAME = "spark.remote", "spark.master", "spark.app.name"


@camel_cased()
class Builder:
    """Collects settings, then connects: to ``remote(url)``, to ``SPARK_REMOTE``, or to a server started here."""

    def __init__(self) -> None:
        self._options: dict[str, str] = {}

    def remote(self, url: str) -> "Builder":
        """The server: ``sc://host:port/;key=value``; ``local[2]`` starts one here."""
        return self.config(_REMOTE, url)

    def master(self, master: str) -> "Builder":
        """How a server that is started here runs: ``local[2]``."""
        return self.config(_MASTER, master)

    def app_name(self, name: str) -> "Builder":
        """A name; servers that run already have their own."""
        return self.config(_APP_NAME, name)

    def config(
        self, key: str | None = None, value: Any = None, conf: Any = None, *, map: Mapping[str, Any] | None = None
    ) -> "Builder":
        """A setting, or several; those of a SparkConf as ``conf``."""
        several = dict(map or {} if conf is None else conf.getAll())
        settings = several if key is None else {key: value}
        self._options |= {
            name: str(each).lower() if isinstance(each, bool) else str(each) for name, each in settings.items()
        }
        return self

    def enable_hive_support(self) -> "Builder":
        """Nothing: what a server supports is its own affair. PySpark has it."""
        return self

    def get_or_create(self) -> "Session":
        """The session that was made this way before, with these settings too, or a new one."""
        with _lock:
            session = get_active_session()
            if session is None:
                session = self._open()
            else:
                self._configure(session)
            _active[:] = [session]
        return session

    def create(self) -> "Session":
        """A new session."""
        session = self._open()
        with _lock:
            _active[:] = [session]
        return session

    def _open(self) -> "Session":
        from solstice.connect._opening import connect, local

        remote = self._options.get(_REMOTE, os.environ.get("SPARK_REMOTE"))
        if remote is not None and remote.startswith("sc://"):
            session = connect(remote)
            self._configure(session)
            return session
        master = remote or self._options.get(_MASTER, "local[*]")
        if not master.startswith("local"):
            raise ConfigError(
                f"a session cannot be made on {master!r}.",
                option=_REMOTE if remote else _MASTER,
                value=master,
                remedy="Use remote('sc://host:15002'), or master('local[*]') to start a server here.",
            )
        return local({key: value for key, value in self._options.items() if key != _REMOTE} | {_MASTER: master})

    def _configure(self, session: "Session") -> None:
        for key, value in self._options.items():
            if key in (_REMOTE, _MASTER, _APP_NAME):
                continue
            try:
                session.conf.set(key, value)
            except RemoteError as error:
                # Settings of the server as a whole are often given, in scripts that once started it themselves.
                _log.warning("the setting %s is not changed: %s", key, error.message)


class BuilderProperty:
    """A new builder each time: ``SparkSession.builder``."""

    def __get__(self, instance: object, owner: type) -> Builder:
        return Builder()


def get_active_session() -> "Session | None":
    """The session that a builder made last, unless it is stopped."""
    return _active[0] if _active and not _active[0].is_stopped else None
