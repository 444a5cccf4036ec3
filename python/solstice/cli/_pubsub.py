"""``solstice pubsub``: Pub/Sub from the shell."""

import signal
from pathlib import Path
from typing import Annotated

import typer

from solstice.cli import _pubsub_publish, _pubsub_pull, _pubsub_resources, _pubsub_status
from solstice.cli._output import console

app = typer.Typer(help="Pub/Sub from the shell.", no_args_is_help=True)
app.add_typer(_pubsub_resources.topics, name="topics")
app.add_typer(_pubsub_resources.subscriptions, name="subscriptions")
app.command(epilog=_pubsub_publish.EXAMPLES)(_pubsub_publish.publish)
app.command(epilog=_pubsub_pull.PULL_EXAMPLES)(_pubsub_pull.pull)
app.command(epilog=_pubsub_status.STATUS_EXAMPLES)(_pubsub_status.status)

_EXAMPLES = """Examples:

solstice pubsub emulator                 on 127.0.0.1:8085, where Google's emulator listens

solstice pubsub emulator --port 0        on a free port

solstice pubsub emulator --data-dir d    what is in it survives a restart, and kill -9
"""


@app.command(epilog=_EXAMPLES)
def emulator(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on; 0 takes a free one.", min=0, max=65535)] = 8085,
    data_dir: Annotated[
        Path | None, typer.Option(help="The folder to keep everything in; without one it is in memory.")
    ] = None,
) -> None:
    """Run a Pub/Sub server on this machine until Ctrl-C.

    With --data-dir, whatever a client was told is done is there after a restart, also after kill -9. Messages that were
    being processed are delivered anew. A loss of power may cost the last moments: nothing waits for the disk.
    """
    from solstice.testing import PubSubEmulator

    ends = {signal.SIGINT, signal.SIGTERM}
    # Blocked before the native threads start, so that they inherit it and only sigwait sees these signals.
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    try:
        with PubSubEmulator(host, port, data_dir=data_dir) as server:
            out = console()
            out.print(f"Pub/Sub emulator listening on {server.address}; Ctrl-C ends it. Clients find it with:")
            out.print(f"export PUBSUB_EMULATOR_HOST={server.address}")
            signal.sigwait(ends)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
