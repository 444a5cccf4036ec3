"""Optional packages: there, missing, or broken inside."""

import sys

import pytest

from solstice._core.extras import require
from solstice.errors import ConfigError, MissingExtraError


def test_a_package_that_is_there_is_imported():
    import json.decoder

    assert require("json.decoder", "spark") is json.decoder


def test_a_missing_package_names_the_command_that_installs_it():
    with pytest.raises(MissingExtraError, match=r"Run: pip install 'solstice-spark\[ray\]'") as caught:
        require("no_such_package_at_all", "ray")
    assert (caught.value.package, caught.value.extra) == ("no_such_package_at_all", "ray")
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value, ConfigError)


def test_a_module_of_a_missing_package_names_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.delitem(sys.modules, "pyspark.sql", raising=False)
    monkeypatch.delitem(sys.modules, "pyspark.sql.types", raising=False)
    with pytest.raises(MissingExtraError) as caught:
        require("pyspark.sql.types", "spark")
    assert caught.value.package == "pyspark"


def test_a_package_that_is_broken_inside_is_not_called_missing(tmp_path, monkeypatch):
    (tmp_path / "broken_package_of_this_test.py").write_text("import no_such_package_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError) as caught:
        require("broken_package_of_this_test", "ray")
    assert not isinstance(caught.value, MissingExtraError)
    assert caught.value.name == "no_such_package_at_all"
