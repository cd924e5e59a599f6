"""The two clients: `SyncClient` blocks, `AsyncClient` is for an asyncio event loop.

A class for an HTTP library gives three methods: `_prepare`, `_exchange` and `_own_headers`. Both
clients drive the same flow (`call.complete`). The asyncio client writes the journal in threads, so
that no other task waits for a disk.
"""

from __future__ import annotations

import asyncio
import time
from inspect import isawaitable
from typing import Any, Self, TypeVar

from semel.backoff import between
from semel.client.base import BaseClient, Headers, PreparedRequest, Resumed, try_result
from semel.client.call import complete
from semel.client.errors import BudgetSpent
from semel.client.journal_rows import JournaledCall
from semel.client.model import (
    AskStatus,
    CallAnswer,
    LogicalCall,
    ReleaseCall,
    SendRequest,
    Sleep,
    TryResult,
)
from semel.core.flow import arun, run
from semel.core.operations.requests import FlowOperation
from semel.errors import SemelError

R = TypeVar("R")


class SyncClient(BaseClient[R]):
    """Sends requests that change something, each with one key; resumes them after a crash.

    All methods take what the HTTP library's own take for headers, parameters and bodies. ``key``:
    your own key; ``name``: your name for the call, to find it in the journal.
    """

    def _prepare(self, method: str, url: str, **arguments: Any) -> PreparedRequest:
        """The request with its body made bytes, once."""
        raise NotImplementedError

    def _exchange(
        self, call: LogicalCall, method: str, url: str, headers: Headers, body: bytes
    ) -> CallAnswer:
        """One request and its whole answer; redirects are answers too."""
        raise NotImplementedError

    def request(
        self, method: str, url: str, *, key: str | None = None, name: str = "", **arguments: Any
    ) -> R:
        """Make one logical call, and return its answer."""
        prepared = self._prepare(method.upper(), url, **arguments)
        return self._complete(self._begin(self._call(prepared, key, name)))

    def post(self, url: str, *, key: str | None = None, name: str = "", **arguments: Any) -> R:
        return self.request("POST", url, key=key, name=name, **arguments)

    def patch(self, url: str, *, key: str | None = None, name: str = "", **arguments: Any) -> R:
        return self.request("PATCH", url, key=key, name=name, **arguments)

    def put(self, url: str, *, key: str | None = None, name: str = "", **arguments: Any) -> R:
        return self.request("PUT", url, key=key, name=name, **arguments)

    def delete(self, url: str, *, key: str | None = None, name: str = "", **arguments: Any) -> R:
        return self.request("DELETE", url, key=key, name=name, **arguments)

    def _complete(self, call: LogicalCall) -> R:
        native: R = run(complete(call, self._budget, time.monotonic()), self._perform).native
        return native

    def _perform(self, op: FlowOperation[Any]) -> Any:
        match op:
            case SendRequest(call):
                return self._try(call, None)
            case AskStatus(call, url):
                return self._try(call, url)
            case Sleep(least, most):
                return time.sleep(between(least, most))
            case _:
                return self._write_journal(op)

    def _try(self, call: LogicalCall, status_url: str | None) -> TryResult:
        request = self._request(call, status_url, self._fresh_credentials(call))
        try:
            answer = self._exchange(call, *request)
        except Exception as error:
            return try_result(error)
        return try_result(answer)

    def _fresh_credentials(self, call: LogicalCall) -> Headers:
        return {} if self._credentials is None else self._credentials(call)

    def pending(self) -> list[JournaledCall]:
        """The calls without an answer, oldest first; ``held``: a process works on it now."""
        return self.journal.pending()

    def resume(self) -> list[Resumed[R]]:
        """Send the pending calls that no process holds again, with their keys, one by one.

        When the budget of one is spent, others to the same server are left for another time.
        """
        done: list[Resumed[R]] = []
        exhausted: set[str] = set()
        for entry in self.journal.pending():
            if entry.held or entry.call.origin in exhausted:
                continue
            call = self.journal.take(entry)
            if call is not None:
                done.append(self._resume(call))
                if isinstance(done[-1].error, BudgetSpent):
                    exhausted.add(call.origin)
        return done

    def _resume(self, call: LogicalCall) -> Resumed[R]:
        try:
            self._check_age(call)
            self._check_headers(call, [*self._fresh_credentials(call), *self._own_headers()])
            return Resumed(call, self._complete(call), None)
        except SemelError as error:
            return Resumed(call, None, error)
        finally:
            self.journal.release(call)

    def close(self) -> None:
        """Close the journal, if this client opened it; your own HTTP client stays open."""
        self._close_journal()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(BaseClient[R]):
    """Sends requests that change something, each with one key; resumes them after a crash.

    All methods take what the HTTP library's own take for headers, parameters and bodies. ``key``:
    your own key; ``name``: your name for the call, to find it in the journal.
    """

    async def _prepare(self, method: str, url: str, **arguments: Any) -> PreparedRequest:
        """The request with its body made bytes, once."""
        raise NotImplementedError

    async def _exchange(
        self, call: LogicalCall, method: str, url: str, headers: Headers, body: bytes
    ) -> CallAnswer:
        """One request and its whole answer; redirects are answers too."""
        raise NotImplementedError

    async def request(
        self, method: str, url: str, *, key: str | None = None, name: str = "", **arguments: Any
    ) -> R:
        """Make one logical call, and return its answer."""
        prepared = await self._prepare(method.upper(), url, **arguments)
        return await self._complete(await self._abegin(self._call(prepared, key, name)))

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

    async def _abegin(self, call: LogicalCall) -> LogicalCall:
        """Journal the call in a thread.

        The thread goes on when its task is cancelled, and holds what it wrote: then release it.
        """
        writing = asyncio.ensure_future(asyncio.to_thread(self._begin, call))

        def release(written: asyncio.Future[LogicalCall]) -> None:
            if not written.cancelled() and written.exception() is None:
                self._write_journal(ReleaseCall(written.result()))

        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            writing.add_done_callback(release)
            raise

    async def _complete(self, call: LogicalCall) -> R:
        flow = complete(call, self._budget, time.monotonic())
        try:
            native: R = (await arun(flow, self._perform)).native
        except asyncio.CancelledError:
            # It may have been sent: it stays pending. Not in a thread: nobody may wait for one now.
            self._write_journal(ReleaseCall(call))
            raise
        return native

    async def _perform(self, op: FlowOperation[Any]) -> Any:
        match op:
            case SendRequest(call):
                return await self._try(call, None)
            case AskStatus(call, url):
                return await self._try(call, url)
            case Sleep(least, most):
                return await asyncio.sleep(between(least, most))
            case _:
                return await asyncio.to_thread(self._write_journal, op)

    async def _try(self, call: LogicalCall, status_url: str | None) -> TryResult:
        request = self._request(call, status_url, await self._fresh_credentials(call))
        try:
            answer = await self._exchange(call, *request)
        except Exception as error:
            return try_result(error)
        return try_result(answer)

    async def _fresh_credentials(self, call: LogicalCall) -> Headers:
        if self._credentials is None:
            return {}
        given = self._credentials(call)
        headers: Headers = (await given) if isawaitable(given) else given
        return headers

    async def pending(self) -> list[JournaledCall]:
        """The calls without an answer, oldest first; ``held``: a process works on it now."""
        return await asyncio.to_thread(self.journal.pending)

    async def resume(self) -> list[Resumed[R]]:
        """Send the pending calls that no process holds again, with their keys, one by one.

        When the budget of one is spent, others to the same server are left for another time.
        """
        done: list[Resumed[R]] = []
        exhausted: set[str] = set()
        for entry in await self.pending():
            if entry.held or entry.call.origin in exhausted:
                continue
            call = await asyncio.to_thread(self.journal.take, entry)
            if call is not None:
                done.append(await self._resume(call))
                if isinstance(done[-1].error, BudgetSpent):
                    exhausted.add(call.origin)
        return done

    async def _resume(self, call: LogicalCall) -> Resumed[R]:
        try:
            self._check_age(call)
            given = [*await self._fresh_credentials(call), *self._own_headers()]
            self._check_headers(call, given)
            return Resumed(call, await self._complete(call), None)
        except SemelError as error:
            return Resumed(call, None, error)
        finally:
            self.journal.release(call)

    async def aclose(self) -> None:
        """Close the journal, if this client opened it; your own HTTP client stays open."""
        await asyncio.to_thread(self._close_journal)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
