"""Runs a server in its own environment until standard input ends: ``python serve.py spark|sail CONFIG``.

Prints where the server is, as JSON.
"""

import json
import os
import sys


def spark(config):
    from solstice._core import java
    from solstice.connect import _local

    os.environ["JAVA_HOME"] = str(java._bundled().home)  # the environment's own: the system's may be too new
    server = _local.start_server(config)
    return server.url, server.stop


def sail(config):
    from pysail.spark import SparkConnectServer

    server = SparkConnectServer(ip="127.0.0.1", port=0)
    server.start(background=True)
    host, port = server.listening_address
    return f"sc://{host}:{port}/", server.stop


if __name__ == "__main__":
    url, stop = {"spark": spark, "sail": sail}[sys.argv[1]](json.loads(sys.argv[2]))
    sys.stdout.write(json.dumps({"url": url}) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    stop()
