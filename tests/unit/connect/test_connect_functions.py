"""How functions are made; that they are the right ones is what the contract tests say."""

import inspect
import subprocess
import sys
import time

import connect_function_stub
import pytest

import solstice.connect as sc
from solstice.connect import functions as F
from solstice.connect._encode import encode_query
from solstice.connect._plan import Project, Range
from solstice.connect._protocol import load_protocol
from solstice.connect._text import text_of
from solstice.errors import InvalidPlanError


def text(column):
    return text_of(column._expression)


def test_the_stub_is_what_the_tables_say():
    assert connect_function_stub.PATH.read_text() == connect_function_stub.stub(), (
        "run: python tests/unit/connect/connect_function_stub.py"
    )


def test_no_function_is_made_before_it_is_used():
    script = "from solstice.connect import functions as F; print('sin' in vars(F), F.sin.__name__, 'sin' in vars(F))"
    result = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert result.stdout.split() == ["False", "sin", "True"]


def test_a_function_that_was_made_looks_like_one_that_was_written():
    assert F.lpad.__doc__ == "Filled up at the left to a length, or cut to it."
    assert F.lpad.__module__ == "solstice.connect.functions"
    assert str(inspect.signature(F.bround)) == "(col, scale=None)"
    assert F.lpad is F.lpad


def test_all_names_can_be_imported_at_once():
    namespace = {}
    exec("from solstice.connect.functions import *", namespace)
    assert set(F.__all__) <= set(namespace)
    assert dir(F) == sorted(F.__all__)


def test_a_wrong_call_is_told_as_python_tells_it():
    with pytest.raises(TypeError, match=r"lpad\(\) missing 2 required positional arguments"):
        F.lpad("a")
    with pytest.raises(TypeError, match="unexpected keyword argument 'nope'"):
        F.sin("a", nope=1)


def test_a_function_that_is_not_here_says_how_to_call_it():
    with pytest.raises(AttributeError, match=r"call_function\('brand_new'\)"):
        F.brand_new("a")
    assert text(F.call_function("brand_new", "a")) == "brand_new(a)"


def test_a_number_is_no_column():
    with pytest.raises(TypeError, match=r"functions\.lit"):
        F.sin(1)


def test_an_argument_that_is_not_given_is_left_out():
    assert text(F.bround("a")) == "bround(a)"
    assert text(F.bround("a", 2)) == "bround(a, 2)"


def test_a_random_function_gets_a_seed_of_its_own():
    assert text(F.rand()) != text(F.rand())
    assert text(F.rand(3)) == "rand(3)"


def test_lambdas_within_lambdas_have_variables_of_their_own():
    nested = F.transform("a", lambda x: F.transform(x, lambda y: y + x))._expression
    outer = nested.arguments[1]
    inner = outer.function.arguments[1]
    assert outer.arguments[0].name_parts != inner.arguments[0].name_parts
    assert inner.function.arguments[1] is outer.arguments[0]


@pytest.mark.parametrize(
    "f",
    [lambda: F.lit(1), lambda a, b, c, d: a, lambda *a: a[0], lambda x: 1],
    ids=["none", "four", "star", "constant"],
)
def test_a_function_that_cannot_be_a_lambda_is_refused(f):
    with pytest.raises(InvalidPlanError):
        F.transform("a", f)


@pytest.mark.parametrize(
    "call",
    [
        lambda: F.greatest("a"),
        lambda: F.json_tuple("a"),
        lambda: F.variant_delete("a"),
        lambda: F.sha2("a", 100),
        lambda: F.make_timestamp("a", "b"),
        lambda: F.make_timestamp(years="a", date="b"),
        lambda: F.make_timestamp(),
    ],
)
def test_what_spark_would_refuse_is_refused_with_a_remedy(call):
    with pytest.raises(InvalidPlanError) as caught:
        call()
    assert caught.value.remedy


@pytest.mark.parametrize("call", [lambda: F.log(2), lambda: F.from_json("a", 3), lambda: F.window("a", 3)])
def test_the_wrong_kind_of_argument_is_a_type_error(call):
    with pytest.raises(TypeError):
        call()


def test_a_select_of_1000_expressions_is_built_and_encoded_fast():
    protocol = load_protocol()

    def cpu_ms():
        start = time.process_time()
        columns = [(F.upper(F.col(f"c{i}")) + F.lit(i)).alias(f"x{i}") for i in range(1000)]
        relation = Project(Range(0, 1, 1), tuple(column._expression for column in columns))
        request = protocol.ExecutePlanRequest()
        encode_query(relation, request.plan)
        assert len(request.SerializeToString()) > 40_000
        return (time.process_time() - start) * 1000

    # About 20 ms on the machine that the README's figures are from; the bound is for any.
    assert min(cpu_ms() for _ in range(5)) < 100


def test_the_functions_are_an_attribute_of_the_package():
    assert sc.functions is F
    with pytest.raises(AttributeError, match="nothing"):
        _ = sc.nothing
