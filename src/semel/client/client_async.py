"""A client of an asyncio event loop, whatever HTTP library it sends with.

The journal is written in threads, so that no other task waits for a disk.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from inspect import isawaitable
from typing import Any, Self, TypeVar

from semel.client.base import Caller, Headers, Prepared, Resumed, failed, somewhere_between, tried
from semel.client.call import complete
from semel.client.errors import BudgetSpent
from semel.client.journal_rows import Entry
from semel.client.model import Answer, Ask, Call, Failed, LetGo, Rest, Send
from semel.core.flow import arun
from semel.core.operations.requests import FlowOperation
from semel.errors import SemelError

R = TypeVar("R")


class AwaitingCaller(Caller[R]):
    """Requests that change something, each with one key; resumed after a crash.

    All methods take what the HTTP library's own take for headers, parameters and bodies. ``key``:
    your own key; ``name``: what you call the call, to find it in the journal.
    """

    async def _prepare(self, method: str, url: str, **arguments: Any) -> Prepared:
        """The request with its body made bytes, once."""
        raise NotImplementedError

    async def _exchange(
        self, call: Call, method: str, url: str, headers: Headers, body: bytes
    ) -> Answer:
        """One request and its whole answer; redirects are answers too."""
        raise NotImplementedError

    def _own_headers(self) -> Iterable[str]:
        """Names of the headers that the HTTP client adds to every request."""
        raise NotImplementedError

    async def request(
        self, method: str, url: str, *, key: str | None = None, name: str = "", **arguments: Any
    ) -> R:
        """Make one logical call, and return its answer."""
        prepared = await self._prepare(method.upper(), url, **arguments)
        return await self._fulfil(await self._written(self._call(prepared, key, name)))

    async def post(
        self, url: str, *, key: str | None = None, name: str = "", **arguments: Any
    ) -> R:
        return await self.request("POST", url, key=key, name=name, **arguments)

    async def patch(
        self, url: str, *, key: str | None = None, name: str = "", **arguments: Any
    ) -> R:
        return await self.request("PATCH", url, key=key, name=name, **arguments)

    async def put(self, url: str, *, key: str | None = None, name: str = "", **arguments: Any) -> R:
        return await self.request("PUT", url, key=key, name=name, **arguments)

    async def delete(
        self, url: str, *, key: str | None = None, name: str = "", **arguments: Any
    ) -> R:
        return await self.request("DELETE", url, key=key, name=name, **arguments)

    # ── driving ───────────────────────────────────────────────────────────────────────────────────

    async def _written(self, call: Call) -> Call:
        """The call, begun. A thread goes on when its task is cancelled, and holds what it wrote."""
        writing = asyncio.ensure_future(asyncio.to_thread(self._begun, call))
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            writing.add_done_callback(self._left)
            raise

    def _left(self, writing: asyncio.Future[Call]) -> None:
        if not writing.cancelled() and writing.exception() is None:
            self._journaled(LetGo(writing.result()))

    async def _fulfil(self, call: Call) -> R:
        flow = complete(call, self._budget, time.monotonic())
        try:
            native: R = (await arun(flow, self._perform)).native
        except asyncio.CancelledError:
            # It may have been sent: it stays pending. Not in a thread: nobody may wait for one now.
            self._journaled(LetGo(call))
            raise
        return native

    async def _perform(self, op: FlowOperation[Any]) -> Any:
        match op:
            case Send(call):
                return tried(await self._send(call))
            case Ask(call, url):
                return tried(await self._look(call, url))
            case Rest():
                return await asyncio.sleep(somewhere_between(op))
            case _:
                return await asyncio.to_thread(self._journaled, op)

    async def _send(self, call: Call) -> Answer | Failed:
        headers = self._headers(call, await self._fresh(call))
        try:
            return await self._exchange(call, call.method, call.url, headers, call.body)
        except Exception as error:
            return failed(error)

    async def _look(self, call: Call, url: str) -> Answer | Failed:
        headers = await self._fresh(call)
        try:
            return await self._exchange(call, "GET", url, headers, b"")
        except Exception as error:
            return failed(error)

    async def _fresh(self, call: Call) -> Headers:
        if self._credentials is None:
            return {}
        given = self._credentials(call)
        headers: Headers = (await given) if isawaitable(given) else given
        return headers

    # ── after a crash ─────────────────────────────────────────────────────────────────────────────

    async def pending(self) -> list[Entry]:
        """The calls without an answer, oldest first; ``held`` are those that a process is at."""
        return await asyncio.to_thread(self.journal.pending)

    async def resume(self) -> list[Resumed[R]]:
        """Take up the pending calls that nobody is at, with their keys, one after the other.

        Where the budget of one is spent, others to the same server are left for another time.
        """
        done: list[Resumed[R]] = []
        exhausted: set[str] = set()
        for entry in await self.pending():
            if entry.held or entry.call.origin in exhausted:
                continue
            call = await asyncio.to_thread(self.journal.take, entry)
            if call is not None:
                done.append(await self._resumed(call))
                if isinstance(done[-1].error, BudgetSpent):
                    exhausted.add(call.origin)
        return done

    async def _resumed(self, call: Call) -> Resumed[R]:
        try:
            self._check_age(call)
            self._check_headers(call, [*await self._fresh(call), *self._own_headers()])
            return Resumed(call, await self._fulfil(call), None)
        except SemelError as error:
            return Resumed(call, None, error)
        finally:
            self.journal.let_go(call)

    async def aclose(self) -> None:
        """Close the journal, if this client opened it; your own HTTP client stays open."""
        await asyncio.to_thread(self._close_journal)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
