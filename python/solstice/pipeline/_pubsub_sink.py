"""A Pub/Sub topic as the end of a job."""

from typing import TYPE_CHECKING, Any, Unpack

from solstice.pipeline._sink import Sink
from solstice.pipeline._split import Split, SplitPayload

if TYPE_CHECKING:
    import pyarrow as pa

    from solstice.pubsub import Publisher, PublishOptions

ID_ATTRIBUTE = "solstice-id"


class PubSubSink(Sink):
    """Publishes every row at least once. The options are those of ``solstice.pubsub.publish``.

    The columns are ``data`` and, if wanted, ``attributes`` and ``ordering_key``. To these the attribute ``solstice-id``
    is added: the split and the row, the same whenever a split is published again, so that a reader can drop what comes
    twice. (With ``rebatch_rows`` a split that is tried again is put together differently, and the ids differ.)
    """

    def __init__(self, topic: str, **options: "Unpack[PublishOptions]") -> None:
        self._topic = topic
        self._options = options
        self._publisher: Publisher | None = None

    def setup(self) -> None:
        """Make the publisher; it connects with the first split."""
        from solstice.pubsub import Publisher

        self._publisher = Publisher(self._topic, **self._options).__enter__()

    def teardown(self) -> None:
        """Disconnect."""
        if self._publisher is not None:
            self._publisher.__exit__(None, None, None)
            self._publisher = None

    def write(self, split: Split, payload: SplitPayload) -> None:
        """Publish a split; when this returns, the service has every row."""
        if self._publisher is None:
            self.setup()
        assert self._publisher is not None
        try:
            self._publisher.publish(_with_ids(payload.to_arrow(), split.split_id))
            self._publisher.flush()
        except BaseException:
            # What failed stays in a publisher, and would fail the splits that come after.
            publisher, self._publisher = self._publisher, None
            publisher.cancel()
            raise


def _with_ids(table: "pa.Table", split_id: str) -> "pa.Table":
    import pyarrow as pa

    ids = [f"{split_id}/{row}" for row in range(table.num_rows)]
    if "attributes" in table.column_names:
        given = table["attributes"].to_pylist()
        attributes: Any = [[*_pairs(one), (ID_ATTRIBUTE, own)] for one, own in zip(given, ids, strict=True)]
        table = table.drop_columns(["attributes"])
    else:
        attributes = [[(ID_ATTRIBUTE, own)] for own in ids]
    return table.append_column("attributes", pa.array(attributes, pa.map_(pa.string(), pa.string())))


def _pairs(attributes: Any) -> list[tuple[str, str]]:
    if attributes is None:
        return []
    pairs = attributes.items() if isinstance(attributes, dict) else attributes
    return [tuple(pair.values()) if isinstance(pair, dict) else tuple(pair) for pair in pairs]
