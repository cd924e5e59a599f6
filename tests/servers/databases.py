"""Servers that have databases: new ones for a test, or one that is emptied and used again."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count

from tests.servers.privileges import Way
from tests.servers.server import Server


class Databases(Server):
    def __init__(self, way: Way, *, on_disk: bool) -> None:
        super().__init__(way, on_disk=on_disk)
        self._numbers = count(1)
        self._spare: dict[Callable[[str], None], list[str]] = {}

    @abstractmethod
    def url_of(self, database: str) -> str: ...

    @abstractmethod
    def _create(self, name: str) -> None: ...

    @abstractmethod
    def _drop(self, name: str) -> None:
        """With all connections to it."""

    @abstractmethod
    def _empty(self, name: str, tables: Iterable[str]) -> None:
        """When all connections to it are ended."""

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of an empty database, dropped afterwards with all connections to it."""
        name = self._new()
        try:
            yield self.url_of(name)
        finally:
            self._drop(name)

    @contextmanager
    def prepared(self, prepare: Callable[[str], None], tables: Iterable[str]) -> Iterator[str]:
        """The URL of a database that ``prepare`` was done to, and whose ``tables`` are empty.

        To empty one takes a twentieth of the time that it takes to make one.
        """
        spare = self._spare.setdefault(prepare, [])
        if spare:
            name = spare.pop()
            self._empty(name, tables)
        else:
            name = self._new()
            prepare(self.url_of(name))
        yield self.url_of(name)  # one that a test failed with is not used again
        spare.append(name)

    def _new(self) -> str:
        name = f"test_{next(self._numbers)}"
        self._create(name)
        return name
