"""What the command lines of Spark's processes tell, read from the real ones of processes that look like Spark's."""

import json
import os
import subprocess
import sys

import pytest

from solstice.pubsub import _cluster

# As Spark 4.3 starts them; the middle of the JVM's own arguments is left out.
JAVA = ["java", "-cp", "/opt/spark/conf:/opt/spark/jars/*", "-Xmx1g", "--add-modules=jdk.incubator.vector"]
SUBMIT = [*JAVA, "org.apache.spark.deploy.SparkSubmit"]
EXECUTOR = [
    *JAVA,
    "-Dspark.driver.port=33091",
    "org.apache.spark.executor.CoarseGrainedExecutorBackend",
    *("--driver-url", "spark://CoarseGrainedScheduler@10.0.0.7:33091", "--executor-id", "3", "--hostname", "10.0.0.9"),
    *("--cores", "4", "--app-id", "app-20261116141019-0000", "--resourceProfileId", "0"),
]

LOOK = """
import dataclasses, json
from solstice.pubsub import _cluster
executor = _cluster.executor()
print(json.dumps([dataclasses.asdict(_cluster.driver()), executor and dataclasses.asdict(executor)]))
"""
BETWEEN = "import os, subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', os.environ['LOOK']]))"


def below(arguments: list[str], **environment: str) -> tuple[dict, dict | None]:
    """What a grandchild of a process with this command line sees. The process is a shell that calls itself so."""
    shell = [arguments[0], "-c", '"$PYTHON" -c "$BETWEEN"; exit $?', *arguments[1:]]
    env = {name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_IP"}
    env |= {"PYTHON": sys.executable, "BETWEEN": BETWEEN, "LOOK": LOOK} | environment
    done = subprocess.run(shell, executable="/bin/sh", env=env, capture_output=True, text=True, check=True)
    return tuple(json.loads(done.stdout))


def test_the_driver_and_the_executor_are_found_above_the_processes_in_between() -> None:
    driver, executor = below([*SUBMIT, "--conf", "spark.master=local[3,4]", "pyspark-shell"])
    assert (driver["is_local"], driver["cores"], executor) == (True, 3, None)
    _, executor = below(EXECUTOR)
    assert executor == {"id": "3", "cores": 4, "driver_host": "10.0.0.7"}


def test_no_jvm_above_is_no_cluster() -> None:
    driver, executor = below(["sh"])
    assert (driver["is_local"], driver["address"], executor) == (True, "127.0.0.1", None)


def test_the_driver_listens_where_spark_does() -> None:
    given = ["--conf", "spark.driver.host=driver.example", "--conf", "spark.driver.bindAddress=10.0.0.7"]
    assert below([*SUBMIT, *given])[0]["address"] == "10.0.0.7"
    assert below([*SUBMIT, *given[:2]], SPARK_LOCAL_IP="10.0.0.8")[0]["address"] == "10.0.0.8"
    assert below([*SUBMIT, *given[:2]])[0]["address"] == "driver.example"
    assert below(SUBMIT)[0]["address"] == "0.0.0.0"


@pytest.fixture
def driver_of(monkeypatch: pytest.MonkeyPatch):
    def driver(arguments: list[str]) -> _cluster.Driver:
        monkeypatch.setattr(_cluster, "_ancestors", lambda: iter([["python"], arguments, ["java", "another"]]))
        monkeypatch.setattr(os, "cpu_count", lambda: 6)
        return _cluster.driver()

    return driver


@pytest.mark.parametrize(
    ("given", "cores"),
    [
        (["--master", "local"], 1),
        (["--master=local[2]"], 2),
        (["--verbose", "--master", "local[*]"], 6),
        (["--conf", "spark.master=local[*,4]"], 6),
        (["-c", "spark.master=local[12]", "app.py", "--master", "yarn"], 12),
    ],
)
def test_a_local_master_is_known_for_certain(driver_of, given, cores) -> None:
    driver = driver_of([*SUBMIT, *given])
    assert (driver.is_local, driver.cores) == (True, cores)


@pytest.mark.parametrize(
    ("given", "cores"),
    [
        ([], 6),
        (["--master", "local-cluster[2,1,1024]"], 6),
        (["app.py", "--master", "local"], 6),
        (["--master", "yarn", "--num-executors", "5", "--executor-cores", "4"], 20),
        (["--conf", "spark.master=k8s://https://h", "--conf", "spark.executor.instances=3"], 3),
        (["--master", "spark://h:7077", "--total-executor-cores", "16"], 16),
        (["--master", "spark://h:7077", "--conf", "spark.executor.instances=lots"], 6),
    ],
)
def test_everything_else_may_have_executors_elsewhere(driver_of, given, cores) -> None:
    driver = driver_of([*SUBMIT, *given])
    assert (driver.is_local, driver.cores) == (False, cores)


def test_a_python_program_without_a_master_has_the_one_of_spark_defaults_or_a_local_one(
    driver_of, monkeypatch, tmp_path
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    given = [*SUBMIT, "--conf", "spark.ui.enabled=false", "pyspark-shell"]
    driver = driver_of(given)
    assert (driver.is_local, driver.cores) == (True, 6)
    for line in ("spark.master  spark://h:7077", "spark.master=spark://h:7077"):
        (tmp_path / "spark-defaults.conf").write_text(f"# defaults\n\n{line}\n")
        assert not driver_of(given).is_local


def test_properties_of_the_jvm_count_as_well(driver_of) -> None:
    driver = driver_of([*JAVA, "-Dspark.master=local[5]", "com.example.Main", "--master", "yarn"])
    assert (driver.is_local, driver.cores) == (True, 5)
    assert not driver_of([*JAVA, "com.example.Main"]).is_local
