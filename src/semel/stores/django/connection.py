"""One operation at a time over Django's own connection: for databases that are Django's alone."""

from __future__ import annotations

from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.db import transaction

from semel.core.operations.requests import StoreOperation
from semel.stores.django.engines import DjangoEngine

R = TypeVar("R")


class DjangoConnectionStore:
    """Blocking, on the calling thread's connection."""

    def __init__(self, wrapper: Any, engine: DjangoEngine) -> None:
        self._wrapper = wrapper
        self._engine = engine

    def perform(self, op: StoreOperation[R], /) -> R:
        wrapper = self._wrapper
        opened = wrapper.connection is None
        try:
            with transaction.atomic(using=wrapper.alias):
                return self._engine.joined(wrapper).perform(op)
        except Exception as error:
            if type(error).__module__.startswith("semel."):
                raise
            raise self._engine.judged(error, applied=False) from error
        finally:
            if opened and not wrapper.in_atomic_block:
                wrapper.close()  # a thread of semel's own must not keep a test database open


class AsyncDjangoConnectionStore:
    """The same from an event loop."""

    def __init__(self, blocking: Any) -> None:
        self._blocking = blocking

    async def perform(self, op: StoreOperation[R], /) -> R:
        def work() -> R:
            reply: R = self._blocking().perform(op)
            return reply

        return await sync_to_async(work, thread_sensitive=True)()
