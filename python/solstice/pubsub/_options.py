"""The options of ``format("pubsub")`` and of ``solstice.pubsub``: one table each for code and docs."""

import re

from solstice._core.options import (
    Option,
    OptionTable,
    OptionValues,
    duration_s,
    integer,
    number,
    one_of,
    size_bytes,
    text,
)
from solstice.errors import ConfigError

_CONNECTION = (
    Option("projectId", text(), "The Google Cloud project of names given without one.", env=("GOOGLE_CLOUD_PROJECT",)),
    Option(
        "endpoint",
        text(),
        "host:port of Pub/Sub, with TLS and credentials; http://host:port goes without both. "
        "Default: pubsub.googleapis.com:443.",
    ),
    Option(
        "emulatorHost",
        text(),
        "host:port of a Pub/Sub emulator: no TLS, no credentials.",
        env=("PUBSUB_EMULATOR_HOST",),
    ),
    Option(
        "credentialsFile",
        text(),
        "A service account's key or an authorized user's credentials. Default: those of gcloud, then those of the "
        "machine (the metadata server).",
        env=("GOOGLE_APPLICATION_CREDENTIALS",),
    ),
)

SOURCE_OPTIONS = OptionTable(
    'format("pubsub")',
    (
        *_CONNECTION,
        Option(
            "subscriptionId",
            text(),
            "The subscription: projects/P/subscriptions/S, or S with projectId.",
            required=True,
        ),
        Option(
            "delivery",
            one_of("ack-on-commit", "log"),
            "When messages are acknowledged: after Spark's commit, or when they are in the log. Streams only.",
            default="ack-on-commit",
        ),
        Option("logPath", text(), "Where delivery=log keeps batches: a directory or an object store."),
        Option(
            "logRetention",
            duration_s(minimum=0),
            "How long delivery=log remembers message ids, to drop repeats.",
            default="10m",
            unit="s",
        ),
        Option(
            "numPartitions", integer(minimum=1, maximum=10_000), "Spark tasks a batch; default: the driver's cores."
        ),
        Option("streams", integer(minimum=1, maximum=64), "StreamingPull streams the agent holds.", default=1),
        Option(
            "maxMessagesPerTrigger",
            integer(minimum=1),
            "The most messages of one batch.",
            default=100_000,
            unit="messages",
        ),
        Option(
            "maxBytesPerTrigger", size_bytes(minimum=1), "The most bytes of one batch.", default=256 << 20, unit="bytes"
        ),
        Option(
            "maxOutstandingMessages",
            integer(minimum=1),
            "The most messages the agent holds unacknowledged.",
            default=1_000_000,
            unit="messages",
        ),
        Option(
            "maxOutstandingBytes",
            size_bytes(minimum=1),
            "The most bytes the agent holds unacknowledged.",
            default=1 << 30,
            unit="bytes",
        ),
        Option(
            "ackDeadline",
            duration_s(minimum=10, maximum=600),
            "The lease of a message; extended while it is held.",
            default=60.0,
            unit="s",
        ),
        Option(
            "maxLeaseDuration",
            duration_s(minimum=10),
            "Leases are extended no longer than this; then the message may come again.",
            default=3600.0,
            unit="s",
        ),
    ),
)

PULL_OPTIONS = OptionTable(
    "solstice.pubsub.pull",
    (
        *_CONNECTION,
        Option("streams", integer(minimum=1, maximum=64), "StreamingPull streams to hold.", default=1),
        Option(
            "maxOutstandingMessages",
            integer(minimum=1),
            "The most messages held unacknowledged.",
            default=100_000,
            unit="messages",
        ),
        Option(
            "maxOutstandingBytes",
            size_bytes(minimum=1),
            "The most bytes held unacknowledged.",
            default=256 << 20,
            unit="bytes",
        ),
        Option(
            "ackDeadline",
            duration_s(minimum=10, maximum=600),
            "The least lease of a message; longer where acknowledging takes longer, extended while it is held.",
            default=60.0,
            unit="s",
        ),
        Option(
            "maxLeaseDuration",
            duration_s(minimum=10),
            "Leases are extended no longer than this; then the message may come again.",
            default=3600.0,
            unit="s",
        ),
        Option(
            "maxBatchRows",
            integer(minimum=1, maximum=1_000_000),
            "The most rows of a batch.",
            default=10_000,
            unit="rows",
        ),
        Option(
            "linger",
            duration_s(minimum=0, maximum=5),
            "How long a batch that is not full waits for more rows.",
            default=0.05,
            unit="s",
        ),
        Option("idle", duration_s(minimum=0), "The iteration ends when nothing came for so long.", unit="s"),
    ),
)

PUBLISH_OPTIONS = OptionTable(
    "solstice.pubsub.publish",
    (
        *_CONNECTION,
        Option(
            "batchSize",
            integer(minimum=1, maximum=1_000),
            "The most messages of a request.",
            default=1_000,
            unit="messages",
        ),
        Option(
            "maxBatchBytes",
            size_bytes(minimum=1, maximum=10_000_000),
            "The most bytes of a request of several messages.",
            default=1_000_000,
            unit="bytes",
        ),
        Option(
            "lingerMs",
            number(minimum=0, maximum=60_000),
            "How long a request that is not full waits for more rows.",
            default=10.0,
            unit="ms",
        ),
        Option(
            "publishTimeout",
            duration_s(minimum=1, maximum=86_400),
            "How long a request is tried before its rows count as failed.",
            default=60.0,
            unit="s",
        ),
        Option("compression", one_of("none", "gzip"), "How requests are compressed.", default="none"),
    ),
)

ADMIN_OPTIONS = OptionTable("solstice pubsub", _CONNECTION)

_FULL_NAME = re.compile(r"projects/[^/]+/(topics|subscriptions)/[^/]+")


def project_name(values: OptionValues) -> str:
    """``projects/P`` of the option or the environment."""
    project = values["projectId"]
    if not project:
        raise ConfigError(
            "there is no project.", option="projectId", remedy="Set projectId (--project, or GOOGLE_CLOUD_PROJECT)."
        )
    return f"projects/{project}"


def resource_name(kind: str, given: str, values: OptionValues) -> str:
    """The full name of a topic or subscription (``kind``: "topics" or "subscriptions")."""
    option = "subscriptionId" if kind == "subscriptions" else "topicId"
    match = _FULL_NAME.fullmatch(given)
    if match and match.group(1) == kind:
        return given
    if match or "/" in given:
        raise ConfigError(
            f"{option} is '{given}', which is no name of one of the {kind}.",
            option=option,
            value=given,
            remedy=f"Give projects/PROJECT/{kind}/NAME, or NAME with projectId.",
        )
    project = values["projectId"]
    if not project:
        raise ConfigError(
            f"{option} is '{given}' and there is no project.",
            option=option,
            value=given,
            remedy=f"Set projectId (or GOOGLE_CLOUD_PROJECT), or give projects/PROJECT/{kind}/{given}.",
        )
    return f"projects/{project}/{kind}/{given}"
