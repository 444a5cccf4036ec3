import pytest
from connect_recorder import session
from pyspark import SparkConf

from solstice.connect import SparkSession, _builder, _conf, _opening
from solstice.errors import ConfigError, RemoteError


@pytest.fixture
def opened(monkeypatch):
    """What was opened, instead of opening it."""
    found = []

    def opening(kind):
        def open_(*arguments):
            found.append((kind, *arguments))
            return session()

        return open_

    monkeypatch.setattr(_opening, "connect", opening("connect"))
    monkeypatch.setattr(_opening, "local", opening("local"))
    monkeypatch.setattr(_builder, "_active", [])
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    return found


def test_a_remote_server_is_connected_to(opened):
    spark = SparkSession.builder.remote("sc://host:1").appName("x").getOrCreate()
    assert opened == [("connect", "sc://host:1")]
    assert SparkSession.getActiveSession() is SparkSession.active() is spark


def test_the_environment_says_where_to(opened, monkeypatch):
    monkeypatch.setenv("SPARK_REMOTE", "sc://there")
    SparkSession.builder.getOrCreate()
    assert opened == [("connect", "sc://there")]


def test_without_a_server_one_is_started_here_with_all_settings(opened):
    builder = SparkSession.builder.master("local[2]").appName("mine").config("spark.x", True).enableHiveSupport()
    spark = builder.getOrCreate()
    assert opened == [("local", {"spark.x": "true", "spark.master": "local[2]", "spark.app.name": "mine"})]
    assert spark._link.driver.calls == []  # nothing to set any more, and of what is static nothing to warn about
    builder.getOrCreate()
    assert len(spark._link.driver.calls) == 1


def test_a_session_is_made_once(opened):
    first = SparkSession.builder.remote("sc://host").getOrCreate()
    assert SparkSession.builder.remote("sc://host").getOrCreate() is first
    assert SparkSession.builder.remote("sc://host").create() is not first
    assert len(opened) == 2


def test_a_stopped_session_is_not_given_again(opened):
    first = SparkSession.builder.remote("sc://host").getOrCreate()
    first._stopped = True
    assert SparkSession.builder.remote("sc://host").getOrCreate() is not first


def test_settings_are_set_in_the_session(opened):
    spark = SparkSession.builder.remote("sc://host").config(map={"a": 1, "b": False}).getOrCreate()
    pairs = [pair for _, request in spark._link.driver.calls for pair in request.operation.set.pairs]
    assert [(pair.key, pair.value) for pair in pairs] == [("a", "1"), ("b", "false")]


def test_settings_come_of_a_spark_conf_too(opened):
    conf = SparkConf(loadDefaults=False).set("spark.x", "1")
    SparkSession.builder.config(conf=conf).getOrCreate()
    assert opened == [("local", {"spark.x": "1", "spark.master": "local[*]"})]


def test_a_setting_of_the_whole_server_is_only_warned_about(opened, monkeypatch, caplog):
    def refuse(self, key, value):
        raise RemoteError("Cannot modify the value of a static config")

    monkeypatch.setattr(_conf.RuntimeConfig, "set", refuse)
    SparkSession.builder.remote("sc://host").config("spark.driver.memory", "1g").getOrCreate()
    assert "spark.driver.memory" in caplog.text


def test_a_cluster_that_is_no_server_is_refused(opened):
    with pytest.raises(ConfigError, match="yarn") as caught:
        SparkSession.builder.master("yarn").getOrCreate()
    assert caught.value.option == "spark.master"
