import pytest

from solstice.connect._camel import camel, camel_cased
from solstice.connect._record import Record


@camel_cased(to_df="toDF")
class Base:
    def plain(self, num_rows=1):
        return num_rows

    def to_df(self):
        return "base"

    @property
    def is_cached(self):
        return True

    @staticmethod
    def make_one(start_at):
        return start_at

    @classmethod
    def make_other(cls, start_at=0):
        return cls, start_at

    def _hidden_one(self):
        pass


class Derived(Base):
    def to_df(self):
        return "derived"


def test_names_in_camel_case():
    assert [camel(name) for name in ("a", "a_b", "with_columns_renamed", "is_nan")] == [
        "a",
        "aB",
        "withColumnsRenamed",
        "isNan",
    ]


def test_methods_properties_and_static_methods_have_both_names():
    base = Base()
    assert (base.toDF(), base.isCached) == ("base", True)
    assert (Base.makeOne(3), Base.makeOther()) == (3, (Base, 0))
    assert not hasattr(base, "_hiddenOne")


def test_a_subclass_is_asked_for_its_own_method():
    assert Derived().toDF() == "derived"


def test_keywords_have_both_names():
    assert Base().plain(numRows=2) == Base().plain(num_rows=2) == 2
    assert Base.makeOne(startAt=4) == 4
    assert Base.makeOther(startAt=5) == (Base, 5)
    with pytest.raises(TypeError, match="nope"):
        Base().plain(nope=2)


@camel_cased()
class Point(Record):
    x_value: int
    y_value: int = 0


class Point3(Point):
    z_value: int = 9


def test_the_fields_of_a_record_have_both_names():
    point = Point(xValue=1, y_value=2)
    assert (point.x_value, point.xValue, point.yValue) == (1, 1, 2)


def test_a_record_is_a_value():
    assert Point(1) == Point(1, 0) != Point(2)
    assert len({Point(1), Point(1, 0)}) == 1
    assert repr(Point(1)) == "Point(x_value=1, y_value=0)"
    for change in (lambda p: setattr(p, "x_value", 3), lambda p: delattr(p, "x_value")):
        with pytest.raises(AttributeError, match="cannot be changed"):
            change(Point(1))


def test_a_record_made_before_its_subclass_does_not_lend_it_its_fields():
    Point(1)
    assert Point3(1, 2, 3)._values() == (1, 2, 3)
    assert Point3(1) != Point(1)


@pytest.mark.parametrize("make", [Point, lambda: Point(1, 2, 3), lambda: Point(1, nope=2)])
def test_a_record_wants_its_fields(make):
    with pytest.raises(TypeError):
        make()


def test_a_record_made_after_its_subclass_does_not_lend_it_its_fields():
    class Base(Record):
        pass

    class Derived(Base):
        a: int

    class Further(Derived):
        b: int = 2

    Base()
    assert Derived(1) == Derived(a=1)
    assert (Further(1).a, Further(1).b) == (1, 2)
