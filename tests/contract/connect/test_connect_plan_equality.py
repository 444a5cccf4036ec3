"""Our client and the installed pyspark's send the same: for every method, and for all functions, with all parameters.

What differs by nature is left out: ids of plans are compared by their order, call sites not at all.
"""

import inspect
import re
from pathlib import Path

import connect_function_cases
import pytest
from connect_cases import CASES, LATER, NO_PLAN
from connect_clients import OfficialClient, OurClient, compared, sent

import solstice.connect as sc
from solstice.connect import _builder, _camel, _conf, _dataframe, _keep, _reader, _statistics, _table_functions

README = Path(__file__).parents[3] / "README.md"
# More ways to call what the cases cover: lists, keywords, literals of all kinds, local data. One on each line.
MORE_FORMS = Path(__file__).with_name("more_forms.txt").read_text().splitlines()
FUNCTIONS = [name for name in connect_function_cases.names() if f"functions.{name}" not in LATER]


@pytest.fixture(scope="module")
def clients():
    official = OfficialClient()
    yield OurClient(), official
    official.close()


def official_classes():
    import pyspark.sql
    from pyspark.sql.connect import (
        column,
        conf,
        dataframe,
        group,
        observation,
        readwriter,
        session,
        table_arg,
        tvf,
        window,
    )

    return {
        "DataFrame": (dataframe.DataFrame, sc.DataFrame),
        "DataFrameNaFunctions": (dataframe.DataFrameNaFunctions, _statistics.DataFrameNaFunctions),
        "DataFrameStatFunctions": (dataframe.DataFrameStatFunctions, _dataframe.DataFrameStatFunctions),
        "Column": (column.Column, sc.Column),
        "GroupedData": (group.GroupedData, sc.GroupedData),
        "Window": (window.Window, sc.Window),
        "WindowSpec": (window.WindowSpec, sc.WindowSpec),
        "DataFrameReader": (readwriter.DataFrameReader, _reader.DataFrameReader),
        "TableValuedFunction": (tvf.TableValuedFunction, _table_functions.TableValuedFunction),
        "TableArg": (table_arg.TableArg, _keep.TableArg),
        "SparkSession": (session.SparkSession, sc.SparkSession),
        "Builder": (pyspark.sql.SparkSession.Builder, _builder.Builder),  # as scripts have it
        "RuntimeConf": (conf.RuntimeConf, _conf.RuntimeConfig),
        "Observation": (observation.Observation, sc.Observation),
    }


def official_names():
    """All that the official client offers for DataFrames, but for what is LATER."""
    operators = {"__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__"}
    operators |= {"__mod__", "__rmod__", "__pow__", "__rpow__", "__neg__", "__eq__", "__ne__", "__lt__", "__le__"}
    operators |= {"__gt__", "__ge__", "__and__", "__rand__", "__or__", "__ror__", "__invert__"}
    operators |= {"__getitem__", "__getattr__"}
    names = {
        f"{group}.{name}"
        for group, (official, _) in official_classes().items()
        for name in dir(official)
        if not name.startswith("_") or (group == "Column" and name in operators)
    }
    return names | {f"functions.{name}" for name in connect_function_cases.names()}


def assert_equal(clients, expression):
    ours, official = clients
    expected = compared(sent(official, expression))
    assert expected, f"{expression} sends nothing and so proves nothing"
    assert compared(sent(ours, expression)) == expected, expression


@pytest.mark.parametrize("name", CASES)
def test_a_method_sends_what_the_official_one_does(clients, name):
    for expression in CASES[name]:
        assert_equal(clients, expression)


@pytest.mark.parametrize("expression", MORE_FORMS)
def test_another_form_of_a_call_sends_what_the_official_one_does(clients, expression):
    assert_equal(clients, expression)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_what_the_official_one_is(clients, name):
    compared_calls = 0
    for expression in connect_function_cases.calls(name):
        try:
            sent(clients[1], expression)
        except Exception:  # noqa: BLE001  (a combination that the official client refuses, in its own ways)
            continue
        assert_equal(clients, expression)
        compared_calls += 1
    assert compared_calls, f"no call of {name} works in the official client"


def test_nothing_that_the_official_client_has_is_forgotten():
    covered = set(CASES) | {f"functions.{name}" for name in FUNCTIONS}
    assert official_names() - covered - LATER - NO_PLAN == set()


@pytest.mark.parametrize("name", sorted(NO_PLAN))
def test_what_sends_no_plan_is_here_too(name):
    group, _, attribute = name.partition(".")
    official, ours = official_classes()[group]
    assert hasattr(official, attribute)
    assert hasattr(ours, attribute)
    assert name not in CASES


def test_what_comes_later_is_known_to_the_official_client_and_not_here_yet():
    assert official_names() >= LATER
    assert not LATER & (set(CASES) | NO_PLAN)


def test_all_errors_of_pyspark_have_their_names_here():
    import pyspark.errors

    # Of Python functions on the server and of streaming: with those, later.
    later = {"PickleException", "PySparkPicklingError", "StreamingPythonRunnerInitializationException"}
    assert set(pyspark.errors.__all__) - later == set(sc.errors.__all__)


def test_a_method_that_comes_later_is_not_taken_for_a_column(clients):
    frame = clients[0].session.range(1)
    for name in LATER:
        group, _, method = name.partition(".")
        assert group != "DataFrame" or not hasattr(frame, method), name


def test_the_count_that_the_compatibility_table_shows():
    # Each of these is one of the tests above, so all of them are equal.
    names = set(CASES) | {f"functions.{name}" for name in FUNCTIONS}
    shown = re.search(r"(\d+) / (\d+) functions and methods", README.read_text())
    assert shown is not None
    assert [int(number) for number in shown.groups()] == [len(names)] * 2


def test_all_functions_have_the_official_parameters():
    import pyspark.sql.connect.functions.builtin as official

    def parameters(function):
        found = inspect.signature(function).parameters.values()
        return [(parameter.name, parameter.default is parameter.empty) for parameter in found]

    different = [n for n in FUNCTIONS if parameters(getattr(sc.functions, n)) != parameters(getattr(official, n))]
    assert different == []


@pytest.mark.parametrize("name", ["csv", "json", "orc", "text", "xml"])
def test_a_reader_takes_its_options_by_position_as_the_official_one_does(clients, name):
    reader, _ = official_classes()["DataFrameReader"]
    names = list(inspect.signature(getattr(reader, name)).parameters)[1:]
    values = ["path", *(None if name == "schema" else f"value of {name}" for name in names[1:])]
    assert_equal(clients, f"spark.read.{name}({', '.join(map(repr, values))})")
    with pytest.raises(TypeError):
        getattr(clients[0].session.read, name)(*values, "one more")


@pytest.mark.parametrize("group", official_classes())
def test_a_method_takes_the_official_keywords(group):
    official, ours = official_classes()[group]
    for name in dir(official):
        method = inspect.getattr_static(official, name)
        if name.startswith("_") or f"{group}.{name}" in LATER or not callable(getattr(official, name)):
            continue
        expected = inspect.signature(getattr(official, name)).parameters
        parameters = inspect.signature(getattr(ours, name)).parameters
        if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            continue
        known = {spelling for parameter in parameters for spelling in (parameter, _camel.camel(parameter))}
        missing = {n for n, p in expected.items() if p.kind is not p.VAR_KEYWORD} - known - {"kwargs"}
        assert not missing, f"{group}.{name} does not take {missing} ({method})"
