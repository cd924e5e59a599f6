"""A client that blocks, whatever HTTP library it sends with."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Self, TypeVar

from semel.client.base import Caller, Headers, Prepared, Resumed, failed, somewhere_between, tried
from semel.client.call import complete
from semel.client.errors import BudgetSpent
from semel.client.journal_rows import Entry
from semel.client.model import Answer, Ask, Call, Failed, Rest, Send
from semel.core.flow import run
from semel.core.operations.requests import FlowOperation
from semel.errors import SemelError

R = TypeVar("R")


class BlockingCaller(Caller[R]):
    """Requests that change something, each with one key; resumed after a crash.

    All methods take what the HTTP library's own take for headers, parameters and bodies. ``key``:
    your own key; ``name``: what you call the call, to find it in the journal.
    """

    def _prepare(self, method: str, url: str, **arguments: Any) -> Prepared:
        """The request with its body made bytes, once."""
        raise NotImplementedError

    def _exchange(self, call: Call, method: str, url: str, headers: Headers, body: bytes) -> Answer:
        """One request and its whole answer; redirects are answers too."""
        raise NotImplementedError

    def _own_headers(self) -> Iterable[str]:
        """Names of the headers that the HTTP client adds to every request."""
        raise NotImplementedError

    def request(
        self, method: str, url: str, *, key: str | None = None, name: str = "", **arguments: Any
    ) -> R:
        """Make one logical call, and return its answer."""
        prepared = self._prepare(method.upper(), url, **arguments)
        return self._fulfil(self._begun(self._call(prepared, key, name)))

    def post(self, url: str, *, key: str | None = None, name: str = "", **arguments: Any) -> R:
        return self.request("POST", url, key=key, name=name, **arguments)

    def patch(self, url: str, *, key: str | None = None, name: str = "", **arguments: Any) -> R:
        return self.request("PATCH", url, key=key, name=name, **arguments)

    def put(self, url: str, *, key: str | None = None, name: str = "", **arguments: Any) -> R:
        return self.request("PUT", url, key=key, name=name, **arguments)

    def delete(self, url: str, *, key: str | None = None, name: str = "", **arguments: Any) -> R:
        return self.request("DELETE", url, key=key, name=name, **arguments)

    # ── driving ───────────────────────────────────────────────────────────────────────────────────

    def _fulfil(self, call: Call) -> R:
        native: R = run(complete(call, self._budget, time.monotonic()), self._perform).native
        return native

    def _perform(self, op: FlowOperation[Any]) -> Any:
        match op:
            case Send(call):
                return tried(self._send(call))
            case Ask(call, url):
                return tried(self._look(call, url))
            case Rest():
                return time.sleep(somewhere_between(op))
            case _:
                return self._journaled(op)

    def _send(self, call: Call) -> Answer | Failed:
        headers = self._headers(call, self._fresh(call))
        try:
            return self._exchange(call, call.method, call.url, headers, call.body)
        except Exception as error:
            return failed(error)

    def _look(self, call: Call, url: str) -> Answer | Failed:
        headers = self._fresh(call)
        try:
            return self._exchange(call, "GET", url, headers, b"")
        except Exception as error:
            return failed(error)

    def _fresh(self, call: Call) -> Headers:
        return {} if self._credentials is None else self._credentials(call)

    # ── after a crash ─────────────────────────────────────────────────────────────────────────────

    def pending(self) -> list[Entry]:
        """The calls without an answer, oldest first; ``held`` are those that a process is at."""
        return self.journal.pending()

    def resume(self) -> list[Resumed[R]]:
        """Take up the pending calls that nobody is at, with their keys, one after the other.

        Where the budget of one is spent, others to the same server are left for another time.
        """
        done: list[Resumed[R]] = []
        exhausted: set[str] = set()
        for entry in self.journal.pending():
            if entry.held or entry.call.origin in exhausted:
                continue
            call = self.journal.take(entry)
            if call is not None:
                done.append(self._resumed(call))
                if isinstance(done[-1].error, BudgetSpent):
                    exhausted.add(call.origin)
        return done

    def _resumed(self, call: Call) -> Resumed[R]:
        try:
            self._check_age(call)
            self._check_headers(call, [*self._fresh(call), *self._own_headers()])
            return Resumed(call, self._fulfil(call), None)
        except SemelError as error:
            return Resumed(call, None, error)
        finally:
            self.journal.let_go(call)

    def close(self) -> None:
        """Close the journal, if this client opened it; your own HTTP client stays open."""
        self._close_journal()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
