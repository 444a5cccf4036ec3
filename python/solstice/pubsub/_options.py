"""The options of ``format("pubsub")`` and of ``solstice.pubsub``: every option once, in tables for code and docs."""

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from solstice._core.options import (
    Option,
    OptionTable,
    OptionValues,
    boolean,
    duration_s,
    integer,
    names,
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

_STREAMS = Option("streams", integer(minimum=1, maximum=64), "StreamingPull streams to hold.", default=1)
_MAX_OUTSTANDING_MESSAGES = Option(
    "maxOutstandingMessages",
    integer(minimum=1),
    "The most messages held unacknowledged.",
    default=100_000,
    unit="messages",
)
_MAX_OUTSTANDING_BYTES = Option(
    "maxOutstandingBytes", size_bytes(minimum=1), "The most bytes held unacknowledged.", default="256mib", unit="bytes"
)
_LEASES = (
    Option(
        "ackDeadline",
        duration_s(minimum=10, maximum=600),
        "The least lease of a message; longer where acknowledging takes longer, extended while it is held.",
        default="60s",
        unit="s",
    ),
    Option(
        "maxLeaseDuration",
        duration_s(minimum=10),
        "Leases are extended no longer than this; then the message may come again.",
        default="1h",
        unit="s",
    ),
)

PULL_OPTIONS = OptionTable(
    "solstice.pubsub.pull",
    (
        *_CONNECTION,
        _STREAMS,
        _MAX_OUTSTANDING_MESSAGES,
        _MAX_OUTSTANDING_BYTES,
        *_LEASES,
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
            default="50ms",
            unit="s",
        ),
        Option("idle", duration_s(minimum=0), "The iteration ends when nothing came for so long.", unit="s"),
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
            "createSubscription",
            boolean(),
            "Make the subscription, of topicId and with ackDeadline, when it is missing.",
            default="false",
        ),
        Option("topicId", text(), "The topic of createSubscription: projects/P/topics/T, or T with projectId."),
        Option(
            "columns",
            names(),
            "Which of message_id, publish_time, data, attributes, ordering_key, delivery_attempt the rows have. "
            "Default: all; with format: none.",
        ),
        Option("attributeColumns", names(), "Attributes that become string columns of their own, by name."),
        Option("format", one_of("json", "avro"), "Parse the payload into the columns of .schema(...)."),
        Option("avroSchema", text(), "The schema of the payloads' writer, as JSON text; for format=avro."),
        Option(
            "mode",
            one_of("PERMISSIVE", "DROPMALFORMED", "FAILFAST"),
            "What becomes of payloads that do not fit: nulls, left out, an error.",
            default="PERMISSIVE",
        ),
        Option(
            "deadLetterTopic",
            text(),
            "Where messages with payloads that do not fit are published: projects/P/topics/T, or T with projectId. "
            "Streams only.",
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
            "numPartitions",
            integer(minimum=1, maximum=10_000),
            "Spark tasks a batch. Default: the cores of the cluster.",
        ),
        Option(
            "maxMessagesPerTrigger",
            integer(minimum=1),
            "The most messages of one batch. Streams only.",
            default=100_000,
            unit="messages",
        ),
        Option(
            "maxBytesPerTrigger",
            size_bytes(minimum=1),
            "The most bytes of one batch. Streams only.",
            default="256mib",
            unit="bytes",
        ),
        Option(
            "availableNowIdle",
            duration_s(minimum=0.1),
            "A subscription counts as drained when nothing came for so long; ends availableNow and a peek.",
            default="5s",
            unit="s",
        ),
        Option(
            "maxMessages",
            integer(minimum=1, maximum=1_000_000),
            "The most messages a peek (spark.read) takes; 64 MB at most. Peeks only.",
            default=10_000,
            unit="messages",
        ),
        replace(_STREAMS, doc="StreamingPull streams the agent holds; Pub/Sub gives about 10 MB/s to each."),
        replace(_MAX_OUTSTANDING_MESSAGES, doc="The most messages the agent holds unacknowledged.", default=1_000_000),
        replace(_MAX_OUTSTANDING_BYTES, doc="The most bytes the agent holds unacknowledged.", default="1gib"),
        *_LEASES,
        Option(
            "agentHost",
            text(),
            "The driver's address for executors on other hosts. Default: Spark's own; no port is opened in local mode.",
        ),
        Option(
            "agentPort",
            integer(minimum=0, maximum=65_535),
            "The TCP port of the agent for executors on other hosts; 0 is any that is free.",
            default=0,
        ),
        Option(
            "metricsPort",
            integer(minimum=1, maximum=65_535),
            "The port of a Prometheus endpoint on the driver's loopback. Default: none.",
        ),
    ),
)

_PUBLISH = (
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
        default="1mb",
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
        default="60s",
        unit="s",
    ),
    Option("compression", one_of("none", "gzip"), "How requests are compressed.", default="none"),
)

PUBLISH_OPTIONS = OptionTable("solstice.pubsub.publish", (*_CONNECTION, *_PUBLISH))

SINK_OPTIONS = OptionTable(
    'format("pubsub")',
    (
        *_CONNECTION,
        Option("topicId", text(), "The topic: projects/P/topics/T, or T with projectId.", required=True),
        Option(
            "format",
            one_of("json"),
            "Make the payload of all columns but attributes and ordering_key. Default: it is the column data.",
        ),
        Option(
            "enableMessageOrdering",
            boolean(),
            "Publish the rows of one ordering_key in their order; without it the column is refused.",
            default="false",
        ),
        Option(
            "dedupAttribute",
            text(),
            "An attribute that names query, batch, partition and row, by which consumers can drop repeats.",
        ),
        *_PUBLISH,
        Option("checkpointLocation", text(), "Spark's own option of a streaming query."),
        Option("queryName", text(), "Spark's own option of a streaming query."),
    ),
)

ADMIN_OPTIONS = OptionTable("solstice pubsub", _CONNECTION)

# What pull and publish call the options in Python.
_KEYWORDS = {
    "project_id": "projectId",
    "emulator_host": "emulatorHost",
    "endpoint": "endpoint",
    "credentials_file": "credentialsFile",
    "streams": "streams",
    "max_outstanding_messages": "maxOutstandingMessages",
    "max_outstanding_bytes": "maxOutstandingBytes",
    "ack_deadline_s": "ackDeadline",
    "max_lease_s": "maxLeaseDuration",
    "max_batch_rows": "maxBatchRows",
    "linger_s": "linger",
    "idle_s": "idle",
    "batch_size": "batchSize",
    "max_batch_bytes": "maxBatchBytes",
    "linger_ms": "lingerMs",
    "publish_timeout_s": "publishTimeout",
    "compression": "compression",
}


def parse_keywords(table: OptionTable, given: Mapping[str, Any], others: Collection[str] = ()) -> OptionValues:
    """The options of a Python call; None is as good as left out. ``others`` are keywords that are no options."""
    taken = {option.name for option in table.options}
    known = {keyword: name for keyword, name in _KEYWORDS.items() if name in taken}
    for keyword in given:
        if keyword not in known and keyword not in others:
            listed = ", ".join((*known, *others))
            raise TypeError(f"{table.owner} got an unexpected keyword argument {keyword!r}; known: {listed}")
    return table.parse(
        {known[keyword]: str(value) for keyword, value in given.items() if keyword in known and value is not None}
    )


# What a peek has no use for: it takes messages once, gives them back and starts no agent.
_STREAM_ONLY = (
    "createSubscription",
    "topicId",
    "deadLetterTopic",
    "delivery",
    "logPath",
    "logRetention",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "maxOutstandingMessages",
    "maxOutstandingBytes",
    "streams",
    "maxLeaseDuration",
    "agentHost",
    "agentPort",
    "metricsPort",
)
_PEEK_ONLY = ("maxMessages",)


def parse_source(given: Mapping[str, str]) -> OptionValues:
    """The options of reading, checked also against each other."""
    values = SOURCE_OPTIONS.parse(given)
    resource_name("subscriptions", values["subscriptionId"], values)
    for name in ("mode", "avroSchema", "deadLetterTopic"):
        if values["format"] is None and values.written(name):
            raise _conflict(values, name, "there is no format", "Set format to json or avro, or leave it out.")
    if (values["format"] == "avro") != (values["avroSchema"] is not None):
        raise _conflict(
            values, "format", f"avroSchema is {values['avroSchema']!r}", "format=avro and avroSchema go together."
        )
    if values["deadLetterTopic"] and values["mode"] == "FAILFAST":
        raise _conflict(
            values,
            "deadLetterTopic",
            "mode is FAILFAST, which fails the query at the first of these messages",
            "Use mode PERMISSIVE or DROPMALFORMED with it.",
        )
    if values["delivery"] == "log" and values["logPath"] is None:
        raise _conflict(values, "delivery", "there is no logPath", "Set logPath to a directory or an object store.")
    for name in ("logPath", "logRetention"):
        if values["delivery"] != "log" and values.written(name):
            raise _conflict(values, name, f"delivery is {values['delivery']}", "Set delivery to log, or leave it out.")
    if values["createSubscription"] != (values["topicId"] is not None):
        raise _conflict(
            values,
            "createSubscription",
            f"topicId is {values['topicId']!r}",
            "createSubscription=true needs the topicId; a subscription that is there has its topic: leave both out.",
        )
    if values["topicId"] is not None:
        resource_name("topics", values["topicId"], values)
    return values


def check_for_stream(values: OptionValues) -> None:
    """No option of a peek was written."""
    _check_unused(values, _PEEK_ONLY, "spark.readStream", "spark.read")


def check_for_peek(values: OptionValues) -> None:
    """No option of a stream was written."""
    _check_unused(values, _STREAM_ONLY, "spark.read", "spark.readStream")


def _check_unused(values: OptionValues, names: Collection[str], here: str, there: str) -> None:
    for name in names:
        if values.written(name):
            raise ConfigError(
                f'option {name!r} means nothing to {here}.format("pubsub").',
                option=name,
                value=values[name],
                remedy=f"Leave it out; it is for {there}.",
            )


def _conflict(values: OptionValues, name: str, why: str, remedy: str) -> ConfigError:
    shown = str(values[name]).lower() if isinstance(values[name], bool) else values[name]
    return ConfigError(f"{name} is {shown}, but {why}.", option=name, value=values[name], remedy=remedy)


_FULL_NAME = re.compile(r"projects/[^/]+/(topics|subscriptions)/[^/]+")


def project_name(values: OptionValues) -> str:
    """``projects/P`` of the option or the environment."""
    project = values["projectId"]
    if not project:
        raise ConfigError(
            "there is no project.", option="projectId", remedy="Set projectId (--project, or GOOGLE_CLOUD_PROJECT)."
        )
    return f"projects/{project}"


def resource_name(kind: str, given: str, values: OptionValues, option: str | None = None) -> str:
    """The full name of a topic or subscription (``kind``: "topics" or "subscriptions"); errors name the option."""
    option = option or ("subscriptionId" if kind == "subscriptions" else "topicId")
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
