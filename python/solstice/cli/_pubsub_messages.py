"""``solstice pubsub pull``: messages as JSON, one a line, for people, jq and pipes."""

import base64
import json
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from solstice.cli._pubsub_resources import CredentialsFile, EmulatorHost, Endpoint, Project, Subscription

if TYPE_CHECKING:
    from solstice.pubsub import PulledBatch

PULL_EXAMPLES = """Examples:

solstice pubsub pull events --project p                     until Ctrl-C

solstice pubsub pull events --project p --limit 10 --no-ack | jq -r .data

solstice pubsub pull events --project p --idle 5 > events.jsonl
"""


def pull(
    subscription: Subscription,
    limit: Annotated[int | None, typer.Option(help="End after so many messages.", min=1)] = None,
    idle: Annotated[float | None, typer.Option(help="End when nothing came for so many seconds.", min=0)] = None,
    ack: Annotated[
        bool, typer.Option(help="Acknowledge what was written; with --no-ack everything is given back at the end.")
    ] = True,
    project: Project = None,
    emulator_host: EmulatorHost = None,
    endpoint: Endpoint = None,
    credentials_file: CredentialsFile = None,
) -> None:
    """Pull messages and write each as a JSON object on a line of its own.

    A message is acknowledged after its line was written and flushed. Whatever else was received is given back at the
    end, also after Ctrl-C and when nobody reads the output any more. Payloads that are no UTF-8 text stand under
    data_base64.
    """
    from solstice.pubsub import pull as open_puller

    puller = open_puller(
        subscription,
        project_id=project,
        emulator_host=emulator_host,
        endpoint=endpoint,
        credentials_file=credentials_file,
        idle_s=idle,
        max_batch_rows=1_000,
    )
    left = limit
    try:
        with puller:
            for batch in puller:
                wanted = batch if left is None or len(batch) <= left else batch.split(left)[0]
                _write(wanted)
                if ack:
                    wanted.ack()
                if left is not None:
                    left -= len(wanted)
                    if left == 0:
                        break
    except KeyboardInterrupt:
        pass  # how a pull without a limit ends
    except BrokenPipeError:
        # Nobody reads any more. Python would flush once more at its end, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write(batch: "PulledBatch") -> None:
    lines = [json.dumps(_fields(row), ensure_ascii=False) + "\n" for row in batch.rows.to_pylist()]
    out = sys.stdout.buffer
    out.write("".join(lines).encode())
    out.flush()


def _fields(row: dict[str, Any]) -> dict[str, Any]:
    fields = {"message_id": row["message_id"], "publish_time": _rfc3339(row["publish_time"])}
    try:
        fields["data"] = row["data"].decode()
    except UnicodeDecodeError:
        fields["data_base64"] = base64.b64encode(row["data"]).decode()
    fields["attributes"] = dict(row["attributes"])
    fields |= {name: row[name] for name in ("ordering_key", "delivery_attempt") if row[name] is not None}
    return fields


def _rfc3339(time: Any) -> str | None:
    return None if time is None else time.isoformat().replace("+00:00", "Z")
