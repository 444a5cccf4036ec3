"""The error tree: the drawing, the classes, their fields and their remedies."""

import copy
import inspect
import pickle
import re

import pytest

from solstice import errors
from solstice.errors import ConfigError, MissingExtraError, RemoteError, SolsticeError, UnsupportedTypeError

CLASSES = {
    name: value for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, SolsticeError)
}
NODE = re.compile(r"^    (?P<lead>[│ ]*(?:[├└]── )?)(?P<name>\w+(?:Error))  +(?P<meaning>\S.*)$")


def drawn_tree():
    """Name -> the name of the node above it, read off the drawing."""
    parents, open_nodes = {}, []
    for line in errors.__doc__.splitlines():
        if match := NODE.match(line):
            depth = len(match["lead"]) // 4
            del open_nodes[depth:]
            parents[match["name"]] = open_nodes[-1] if open_nodes else None
            open_nodes.append(match["name"])
    return parents


def build(cls):
    """An error of the class with every field set to something of its own."""
    parameters = inspect.signature(cls).parameters
    special = {"parameters": {"a": "b"}}
    arguments = {name: special.get(name, f"the {name}") for name in parameters}
    positional = [arguments.pop(n) for n, p in parameters.items() if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    return cls(*positional, **arguments)


def test_the_drawing_holds_every_class_at_its_place_and_nothing_else():
    actual = {
        name: next((base.__name__ for base in cls.__bases__ if base in CLASSES.values()), None)
        for name, cls in CLASSES.items()
    }
    assert drawn_tree() == actual


def test_the_drawing_uses_the_right_branches():
    lines = [line for line in errors.__doc__.splitlines() if NODE.match(line)]
    marks = [max(line.find("├"), line.find("└")) for line in lines]
    for index, line in enumerate(lines[1:], start=1):
        column = marks[index]
        next_outside = next((mark for mark in marks[index + 1 :] if mark <= column), -1)
        expected = "├" if next_outside == column else "└"
        assert line[column] == expected, line


def test_the_classes_stand_in_the_order_of_the_drawing_per_family():
    drawn = drawn_tree()
    for family in ("PubSubError", "PipelineError", "ConnectError"):
        in_file = [name for name in CLASSES if drawn[name] == family]
        assert in_file == [name for name, parent in drawn.items() if parent == family]


@pytest.mark.parametrize("cls", CLASSES.values(), ids=list(CLASSES))
def test_every_error_has_a_docstring_and_is_a_solstice_error(cls):
    assert issubclass(cls, SolsticeError)
    assert cls.__doc__


@pytest.mark.parametrize("cls", CLASSES.values(), ids=list(CLASSES))
@pytest.mark.parametrize("send", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy], ids=["pickle", "copy"])
def test_an_error_keeps_its_type_message_and_fields_when_it_crosses_a_process(cls, send):
    error = build(cls)
    received = send(error)
    assert type(received) is cls
    assert str(received) == str(error)
    assert received.args == error.args
    assert received.__dict__ == error.__dict__
    assert received.remedy
    assert isinstance(received, ImportError) == (cls is MissingExtraError)


@pytest.mark.parametrize("cls", [cls for cls in CLASSES.values() if cls is not MissingExtraError])
def test_the_remedy_is_part_of_the_message_and_a_field(cls):
    error = cls("It broke.", remedy="Mend it.")
    assert str(error) == "It broke. Mend it."
    assert (error.message, error.remedy) == ("It broke.", "Mend it.")
    assert str(cls("It broke.")) == "It broke."
    assert cls("It broke.").remedy is None


def test_config_errors_are_value_errors_and_missing_extras_are_import_errors():
    assert issubclass(ConfigError, ValueError)
    assert issubclass(MissingExtraError, ImportError)
    assert str(MissingExtraError("ray", "ray")) == (
        "the package 'ray' is not installed. Run: pip install 'solstice-spark[ray]'"
    )


def test_fields_of_the_errors_that_have_more_than_a_message():
    config = ConfigError("x", option="o", value=3)
    assert (config.option, config.value) == ("o", 3)
    assert UnsupportedTypeError("x", column="a.b").column == "a.b"
    remote = RemoteError("x", error_class="C", sql_state="42000", parameters={"a": "b"})
    assert (remote.error_class, remote.sql_state, remote.parameters) == ("C", "42000", {"a": "b"})
    assert RemoteError("x").parameters == {}
