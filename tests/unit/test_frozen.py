"""`@frozen` classes behave as the frozen dataclasses a type checker takes them for."""

from __future__ import annotations

import pickle
from typing import ClassVar

import pytest

from semel.core.contract import Claimed, Pause
from semel.core.frozen import frozen, replace


@frozen
class Point:
    """A point."""

    kind: ClassVar[str] = "point"

    x: int
    y: int = 0


@frozen
class Other:
    x: int
    y: int = 0


def test_fields_defaults_and_class_variables() -> None:
    assert (Point(1).x, Point(1).y, Point(1, 2).y, Point(y=3, x=1).y) == (1, 0, 2, 3)
    assert Point.kind == "point"
    assert Point.__doc__ == "A point."
    with pytest.raises(TypeError):
        Point()  # type: ignore[call-arg]


def test_values_are_frozen_and_have_no_dict() -> None:
    point = Point(1)
    with pytest.raises(AttributeError, match="frozen"):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(AttributeError, match="frozen"):
        del point.x
    assert not hasattr(point, "__dict__")


def test_equality_is_by_type_and_fields() -> None:
    assert Point(1) == Point(1, 0)
    assert Point(1) != Point(2)
    assert Point(1) != object.__new__(object)
    assert len({Point(1), Point(1), Other(1)}) == 2, "another type is another value"


def test_they_print_match_copy_and_pickle() -> None:
    assert repr(Point(1)) == "Point(x=1, y=0)"
    match Point(1, 2):
        case Point(x, y):
            assert (x, y) == (1, 2)
    assert replace(Point(1), y=5) == Point(1, 5)
    with pytest.raises(TypeError):
        replace(Point(1), z=5)
    assert pickle.loads(pickle.dumps(Claimed(1, 2))) == Claimed(1, 2)


def test_fields_are_not_inherited_and_nobody_may_believe_they_are() -> None:
    with pytest.raises(TypeError, match="inherits no fields"):

        @frozen
        class Derived(Point):
            z: int = 0


def test_operations_keep_what_their_base_says() -> None:
    assert Pause.finishing
