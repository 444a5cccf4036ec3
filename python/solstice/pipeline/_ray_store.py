"""Payloads in Ray's object store (``ray://``), copied there by an actor that owns them.

An object that a Spark worker puts itself dies with that worker; Ray has no way left to name another owner.
"""

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from solstice._core.extras import require
from solstice._core.urls import parse_url
from solstice.errors import ConfigError
from solstice.pipeline._message import PayloadRef
from solstice.pipeline._ray_token import use_token
from solstice.pipeline._split import SplitPayload
from solstice.pipeline._store import SplitPayloadStore, key_of, key_segments, read_payload, write_payload

if TYPE_CHECKING:
    import pyarrow as pa

NAMESPACE = "solstice"


class PayloadOwner:
    """The actor: keys and references, no more. It is detached, so that payloads outlive the process of the job."""

    def __init__(self) -> None:
        self._refs: dict[str, Any] = {}

    def put(self, key: str, data: Any) -> None:
        """Copy a payload, so that this process owns it."""
        import ray

        self._refs[key] = ray.put(data)

    def get(self, key: str) -> list[Any]:
        """The reference, in a list: Ray would replace a bare one by the object itself."""
        return [self._refs[key]] if key in self._refs else []

    def delete(self, key: str) -> None:
        """Forget one payload."""
        self._refs.pop(key, None)

    def clear(self, prefix: str) -> None:
        """Forget the payloads below a prefix."""
        for key in self.keys(prefix):
            del self._refs[key]

    def keys(self, prefix: str) -> list[str]:
        """The keys below a prefix."""
        return [key for key in self._refs if not prefix or key.startswith(prefix + "/")]

    def address(self) -> str:
        """The address of the cluster."""
        import ray

        return str(ray.get_runtime_context().gcs_address)


class RaySplitPayloadStore(SplitPayloadStore):
    """``ray://name`` is in the Ray cluster of this machine, ``ray://host:6379/name`` in the one at this address."""

    caution = (
        "payloads are in Ray's object store: they outlive a crash of the job, but not the end of the Ray cluster, "
        "after which splits that were under way cannot be read."
    )

    def __init__(self, url: str) -> None:
        super().__init__(url)
        parsed = parse_url(url)
        self._address = "auto" if parsed.port is None else f"{parsed.host}:{parsed.port}"
        self._connected = False
        self._name = (parsed.path if parsed.port else parsed.host + parsed.path).strip("/")
        if not self._name:
            raise ConfigError(
                f"the payload store {url!r} has no name.", option="payloads", value=url, remedy="Write ray://name."
            )

    def store(self, key: str, payload: "SplitPayload | pa.Table | bytes") -> PayloadRef:
        """Hand a payload to its owner."""
        import pyarrow as pa

        key_segments(key)
        sink = pa.BufferOutputStream()
        written = write_payload(sink, key, payload, self._compression)
        self._call("put", key, sink.getvalue())
        return PayloadRef(key, "", written.size, written.checksum)

    def get(self, key: str | PayloadRef) -> SplitPayload | None:
        """The payload, in the memory that all processes of a machine share."""
        found = self._call("get", key_of(key))
        import ray

        return read_payload(ray.get(found[0]), key) if found else None

    def delete(self, key: str | PayloadRef) -> None:
        """Remove a payload; who has it keeps it."""
        self._call("delete", key_of(key))

    def clear(self, prefix: str = "") -> None:
        """Remove every payload, or all those of a stage or of one writer."""
        self._call("clear", prefix)

    def keys(self, prefix: str = "") -> Iterator[str]:
        """The keys that exist."""
        return iter(self._call("keys", prefix))

    def writers(self) -> Iterator[tuple[str, str]]:
        """Each (stage, writer) that has a payload."""
        return iter({(stage, writer) for stage, writer, *_ in (key.split("/") for key in self.keys())})

    def shared_url(self) -> str:
        """With the address of the cluster: a machine may have several, and another process would take any of them."""
        if self._address != "auto":
            return self.url
        address = self._call("address")
        return self.url.replace("://", f"://{address}/", 1)

    def close(self) -> None:
        """Leave the cluster: Ray ends a process whose cluster is gone, after a minute of looking for it."""
        if self._connected:
            import ray

            ray.shutdown()
            self._connected = False
            self.__dict__.pop("_owner", None)

    def _call(self, method: str, *args: Any) -> Any:
        owner = self._owner  # before Ray is imported here: it reads its settings then
        import ray

        return ray.get(getattr(owner, method).remote(*args))

    @functools.cached_property
    def _owner(self) -> Any:
        """On first use: it connects."""
        use_token()
        ray = require("ray", "ray")
        if not ray.is_initialized():
            try:
                ray.init(address=self._address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False)
            except ConnectionError as error:
                raise ConfigError(
                    f"the payload store {self.url!r} needs a Ray cluster: {error}: {error.__cause__}",
                    option="payloads",
                    value=self.url,
                    remedy="Start one with `ray start --head`, or use runner='ray', which does; RAY_AUTH_TOKEN, or "
                    "~/.ray/auth_token, has to hold its token.",
                ) from error
            self._connected = True
        # No CPU is reserved: it only keeps references.
        actor = ray.remote(num_cpus=0, max_restarts=0)(PayloadOwner)
        return actor.options(
            name=f"payloads-{self._name}", namespace=NAMESPACE, lifetime="detached", get_if_exists=True
        ).remote()
