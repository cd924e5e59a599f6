"""One way into and out of every server: closed on exit, also when starting fails."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Scoped(ABC):
    @abstractmethod
    def start(self) -> Self: ...

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()
