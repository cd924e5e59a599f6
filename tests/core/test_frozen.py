"""`@frozen` classes behave as the frozen dataclasses a type checker takes them for."""

from __future__ import annotations

import pickle
from typing import ClassVar

import pytest

from semel.core.frozen import derived, frozen, replace, value
from semel.core.operations.handler import Pause
from semel.core.operations.requests import Claimed
from semel.core.records import Origin, Response
from semel.core.request.fingerprint import FingerprintRule


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


@value
class Often:
    x: int
    y: int = 0


def test_a_value_is_the_same_but_for_being_sealed() -> None:
    assert (Often(1).x, Often(1).y, Often(1) == Often(1, 0)) == (1, 0, True)
    assert repr(Often(1)) == "Often(x=1, y=0)"
    assert replace(Often(1), y=5) == Often(1, 5)
    assert len({Often(1), Often(1)}) == 1
    assert not hasattr(Often(1), "__dict__")


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
    assert pickle.loads(pickle.dumps(Claimed(1, 2, 3))) == Claimed(1, 2, 3)


def test_fields_are_not_inherited_and_nobody_may_believe_they_are() -> None:
    with pytest.raises(TypeError, match="inherits no fields"):

        @frozen
        class Derived(Point):
            z: int = 0


@frozen
class Circle:
    radius: int
    area: int = derived()

    def __post_init__(self) -> None:
        object.__setattr__(self, "area", 3 * self.radius**2)


def test_derived_fields_are_set_after_the_others_and_are_no_part_of_the_value() -> None:
    assert Circle(2).area == 12
    assert replace(Circle(2), radius=3).area == 27
    assert repr(Circle(2)) == "Circle(radius=2)"
    assert Circle(2) == Circle(2)
    with pytest.raises(TypeError):
        Circle(2, 12)  # type: ignore[call-arg]


def test_what_is_printed_shows_no_key_no_body_and_no_secret() -> None:
    ticket = Origin("tenant-a", "POST", "/pay", "the-secret-key")
    response = Response(200, ((b"set-cookie", b"sid=1"),), b"the body")
    recipe = FingerprintRule(secrets=(("2026", b"sixteen bytes or more"),))
    for shown in (repr(ticket), repr(response), repr(recipe)):
        for hidden in ("tenant-a", "the-secret-key", "sid=1", "the body", "sixteen"):
            assert hidden not in shown


def test_operations_keep_what_their_base_says() -> None:
    assert Pause.finishing
