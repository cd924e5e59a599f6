"""The progress of one run: which recovery points it has passed, and what it says of itself."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from semel.core.records import Micros
from semel.core.recovery.journal import Journal, Point, PointKind
from semel.core.recovery.was_sent import leaves_doubt
from semel.errors import ConfigurationError, OperationChanged

T = TypeVar("T")

_NO_POINTS: Final = Journal()


class Progress:
    """Written by the run's own handler, read by the exchange when the handler has answered."""

    __slots__ = (
        *("_passed", "_seen", "_turn", "journal", "repeating", "resource", "retention"),
        *("entered", "inside", "made", "raised", "returned"),
    )

    def __init__(self, journal: Journal | None = None) -> None:
        self.journal = _NO_POINTS if journal is None else journal
        self._passed = self._seen = 0
        self._turn = [None]
        self.repeating = False
        """The call whose intent is on record may simply be made again."""
        self.resource: str | None = None
        self.retention: Micros = 0
        self.made: list[tuple[str, Coroutine[Any, Any, Any]]] = []
        """What the handler is to await, by its name."""
        self.entered = False
        """The endpoint was called, where it tells that."""
        self.inside = 0
        """How many calls of the endpoint have not come back, where that is seen."""
        self.returned = False
        """The endpoint has returned: whatever is raised from here on, it has acted."""
        self.raised: list[BaseException] = []
        """What was raised on the way of the run, whatever answer was made of it."""

    @property
    def doubt(self) -> BaseException | None:
        """What was raised on the way and leaves a doubt, whatever came behind it."""
        return next((error for error in self.raised if leaves_doubt(error)), None)

    @contextmanager
    def alone(self, name: str, kind: PointKind) -> Generator[None]:
        """One point at a time: of two, the journal of one would lack what the other has sent."""
        try:
            self._turn.pop()  # of several threads one succeeds
        except IndexError:
            raise ConfigurationError(
                f"the {kind} {name!r} was begun inside of another point, or beside it: points come "
                "one after the other"
            ) from None
        try:
            yield
        finally:
            self._turn.append(None)

    def making(self, name: str, made: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Something that the handler is to await; until then nothing of it has happened."""
        self.made.append((name, made))
        return made

    def unfinished(self) -> str | None:
        """The name of what was made and never awaited, or not to its end.

        An answer that leaves it out would be kept, and it would never happen.
        """
        left: list[str] = []
        for name, made in self.made:
            it: Any = made
            if it.cr_frame is not None:
                left.append(name)
                if not (it.cr_running or it.cr_suspended):
                    made.close()  # Python need not warn of it, too
        return left[0] if left else None

    def meet(self, name: str, kind: PointKind) -> Point | None:
        """What is on record at this point; None where the run is the first to come so far."""
        points = self.journal.points
        self._seen = max(self._seen, self._passed + 1)
        if self._passed == len(points):
            return None
        point = points[self._passed]
        if (point.name, point.kind) != (name, kind):
            raise OperationChanged(
                f"the operation's journal has the {point.kind} {point.name!r} where the code now "
                f"has the {kind} {name!r}: points must keep their names and order while "
                "operations are under way"
            )
        return point

    def passing(self, journal: Journal) -> None:
        """Past the point that ``journal`` ends with, or the one met."""
        self.journal = journal
        self._passed += 1

    def finish(self) -> None:
        """The handler has answered: it must have come to every point on record."""
        points = self.journal.points
        if self._seen < len(points):
            missed = points[self._seen]
            raise OperationChanged(
                f"the operation's journal has the {missed.kind} {missed.name!r}, which the code "
                "did not come to: points must not be removed while operations are under way"
            )

    @property
    def in_doubt(self) -> bool:
        """A call may have happened, and may not simply be made again."""
        return self.journal.intent is not None and not self.repeating
