"""The stub of the native core, the module itself and the Python on top of it agree."""

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from solstice import _native

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "python" / "solstice"

# Nothing but tests may call these.
FOR_TESTS = {"provoke_panic", "write_log"}


def public(names: Any) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def stub_nodes() -> dict[str, ast.FunctionDef | ast.ClassDef]:
    tree = ast.parse((PACKAGE / "_native.pyi").read_text())
    return {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    }


def stub_members(node: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    return {member.name: member for member in node.body if isinstance(member, ast.FunctionDef)}


def is_property(node: ast.FunctionDef) -> bool:
    return any(isinstance(decorator, ast.Name) and decorator.id == "property" for decorator in node.decorator_list)


def stub_parameters(node: ast.FunctionDef) -> list[str]:
    arguments = node.args
    return [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def returned_type(node: ast.FunctionDef | ast.ClassDef) -> str:
    return ast.unparse(node.returns) if isinstance(node, ast.FunctionDef) and node.returns else node.name


def real_parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


CLASSES = sorted(name for name, node in stub_nodes().items() if isinstance(node, ast.ClassDef))


def test_the_stub_has_exactly_the_names_of_the_module() -> None:
    assert set(stub_nodes()) == public(vars(_native))


@pytest.mark.parametrize("name", sorted(set(stub_nodes()) - set(CLASSES)))
def test_a_function_has_the_parameters_of_its_stub(name: str) -> None:
    node = stub_nodes()[name]
    assert isinstance(node, ast.FunctionDef)
    assert real_parameters(getattr(_native, name)) == stub_parameters(node)


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_has_the_members_and_parameters_of_its_stub(name: str) -> None:
    node = stub_nodes()[name]
    assert isinstance(node, ast.ClassDef)
    cls, stub = getattr(_native, name), stub_members(node)
    assert public(stub) == public(vars(cls))
    for member, definition in stub.items():
        if member in ("__new__", "__init__"):
            assert real_parameters(cls) == stub_parameters(definition)[1:], member
        elif not member.startswith("_") and not is_property(definition):
            assert real_parameters(getattr(cls, member)) == stub_parameters(definition), member


def test_everything_that_rust_exports_is_used_by_the_python_on_top() -> None:
    wrappers = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    used = {name for name in stub_nodes() if re.search(rf"\b{name}\b", wrappers)}
    # What a used function or method returns is used without being named.
    nodes = [node for name, node in stub_nodes().items() if name in used]
    methods = [member for node in nodes if isinstance(node, ast.ClassDef) for member in stub_members(node).values()]
    returned = {returned_type(node) for node in (*nodes, *methods)}
    assert public(vars(_native)) - used - returned - FOR_TESTS == set()


def test_what_is_only_for_tests_is_not_used_by_the_package() -> None:
    wrappers = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    assert {name for name in FOR_TESTS if re.search(rf"\b{name}\b", wrappers)} == set()
