"""Where Pub/Sub is and who asks, from the options."""

from typing import TYPE_CHECKING

from solstice._core.options import OptionValues
from solstice.errors import ConfigError

if TYPE_CHECKING:
    from solstice import _native

_GOOGLE = "pubsub.googleapis.com:443"


def connection(values: OptionValues) -> "_native.Connection":
    """What ``endpoint``, ``emulatorHost`` and ``credentialsFile`` say. An option beats the other one's environment."""
    from solstice import _native

    if values.written("endpoint") and values.written("emulatorHost"):
        raise ConfigError(
            f"endpoint is {values['endpoint']!r} and emulatorHost is {values['emulatorHost']!r}: two places.",
            option="endpoint",
            value=values["endpoint"],
            remedy="Set emulatorHost for an emulator, endpoint for anything else.",
        )
    if values["emulatorHost"] and not values.written("endpoint"):
        return _native.Connection(_address("emulatorHost", values["emulatorHost"]), True)
    place = values["endpoint"] or _GOOGLE
    scheme, separator, address = place.rpartition("://")
    if separator and scheme not in ("http", "https"):
        raise ConfigError(
            f"endpoint is {place!r}.",
            option="endpoint",
            value=place,
            remedy="Give host:port or https://host:port, or http://host:port for a server without TLS.",
        )
    if scheme == "http":
        return _native.Connection(_address("endpoint", address), True)
    return _native.Connection(_address("endpoint", address), False, values["credentialsFile"])


def connection_keywords(values: OptionValues) -> dict[str, str | None]:
    """The same place and caller as keywords of ``pull`` and ``publish``, whatever the environment of the process."""
    if values["emulatorHost"] and not values.written("endpoint"):
        place = {"emulator_host": values["emulatorHost"]}
    else:
        place = {"endpoint": values["endpoint"] or _GOOGLE}
    return place | {"project_id": values["projectId"], "credentials_file": values["credentialsFile"]}


def _address(option: str, given: str) -> str:
    host, colon, port = given.rpartition(":")
    bare = (host.startswith("[") and host.endswith("]")) or not set(host) & set(":/@?# ")
    if not (colon and host and bare and port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise ConfigError(
            f"{option} is {given!r}.",
            option=option,
            value=given,
            remedy="Give host:port, with a port from 1 to 65535 and an IPv6 address in brackets: [::1]:8085.",
        )
    return given
