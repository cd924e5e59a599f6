"""`guard.once`: the same exchange around any function, for queue consumers, scripts and jobs."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from semel.core import keys
from semel.core.admission import Call, Ticket, named_tenant
from semel.core.answers import Answer, Outcome
from semel.core.exchange import exchange
from semel.core.flow import Flow, Step, run
from semel.core.frozen import frozen, replace
from semel.core.keys import Malformed
from semel.core.model import Headers, HeaderView, Request, Response
from semel.core.policy import Policy
from semel.core.runner import Abandoned, Drained, HandlerOutcome, Raised, Returned
from semel.core.settling import ONCE
from semel.core.terms import EVERY_ROUTE
from semel.errors import ConfigurationError, OutcomeUnknown, Refused
from semel.process.current import Run
from semel.process.fences import new_fence
from semel.web.accounts import Account
from semel.web.known_routes import ONCE_ROUTE
from semel.web.protection import at_once

if TYPE_CHECKING:
    from semel.guard import Guard
    from semel.web.handler import Promise

_HEADERS: Final = ((b"content-type", b"application/json"),)


@frozen
class Once:
    """What a function returned, now or the first time."""

    value: Any
    replayed: bool


class Job:
    """One call of `once`: who asks, with which key, for what."""

    def __init__(
        self,
        guard: Guard,
        key: str,
        name: str,
        payload: Any,
        tenant: str | int | None,
        policy: Policy | None,
    ) -> None:
        route = EVERY_ROUTE if policy is None else ONCE_ROUTE.format(name)
        policy = guard.policy if policy is None else guard.bind(policy)
        self.guard = guard
        self._terms = guard.terms(route, policy)
        self.ticket = _ticket(guard, key, name, payload, tenant, policy)
        call: Call = self.ticket.call(
            (_json(payload),), new_fence(), guard.familiar.meet, self._terms.id
        )
        # A worker finds the probe of a function by its name; that of a policy only if it is the
        # guard's own.
        can_ask = name in guard.registry.probes or (
            policy is guard.policy and policy.probe is not None
        )
        self.call = replace(call, can_ask=can_ask)
        self._label = f"once {name}"
        self._account = Account(guard.events, self.ticket, self._label)

    def run(self, function: Callable[[], Any]) -> Once:
        from semel.web.blocking import BlockingExchange

        known = at_once(self.guard, self.call)
        if isinstance(known, Answer):
            return self._told(self._account.at_once(known, self.call))
        performer = BlockingExchange(self.guard, self.ticket, known, _Function(function))
        try:
            answer = run(self._flow(known), performer.perform)
        finally:
            performer.end()
        return self._told(answer)

    async def arun(self, function: Callable[[], Awaitable[Any]]) -> Once:
        from semel.web.awaited import AwaitedExchange

        known = at_once(self.guard, self.call)
        if isinstance(known, Answer):
            return self._told(self._account.at_once(known, self.call))
        performer = AwaitedExchange(self.guard, self.ticket, known, _AsyncFunction(function))
        answer: Answer = await performer.drive(Step(self._flow(known)))
        performer.end()
        return self._told(answer)

    def _flow(self, call: Call) -> Flow[Answer]:
        enrolled = self.guard.enrol(self._label, self.ticket.policy, self._terms)
        return self._account.follow(call, exchange(call, enrolled))

    def _told(self, answer: Answer) -> Once:
        """The function's result, its exception, or why it may not run."""
        if answer.reraise and answer.error is not None and not answer.zombie:
            raise answer.error
        response = answer.response
        if response is None:
            raise Refused("interrupted", "The call was interrupted; nothing was executed.", True)
        if answer.outcome in (Outcome.EXECUTED, Outcome.REPLAYED) and response.status == 200:
            return Once(json.loads(response.body), answer.outcome is Outcome.REPLAYED)
        raise _refusal(response)


def _ticket(
    guard: Guard, key: str, name: str, payload: Any, tenant: str | int | None, policy: Policy
) -> Ticket:
    if not name or not name.isprintable():
        raise ConfigurationError("name= says what is done once, such as 'send-invoice'")
    checked = keys.check_format(key, policy.key)
    if isinstance(checked, Malformed):
        raise Refused("malformed-key", checked.reason, False)
    if policy.stores_request:
        raise ConfigurationError(
            "once() is run by its caller: mode='deferred' and on_lapse='resume' are for routes"
        )
    request = Request(ONCE, f"/{name}", b"", HeaderView(_HEADERS), payload)
    who = named_tenant(tenant, guard.tenant)
    return Ticket(request, policy, key, checked, who, None, False, guard.name)


def _json(payload: Any) -> bytes:
    try:
        return json.dumps(payload, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"payload= must be JSON: {error}") from error


def _refusal(response: Response) -> Refused:
    wait = dict(response.headers).get(b"retry-after")
    retry_after = None if wait is None else int(wait)
    problem = json.loads(response.body)
    if response.status == 202:  # the accepted policy's way of saying so
        return Refused("in-flight", f"It is {problem['status']}.", True, retry_after)
    return Refused(problem["code"], problem["detail"], problem["retryable"], retry_after)


def _returned(value: Any) -> HandlerOutcome:
    try:
        body = json.dumps(value, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        # It ran, and its result cannot be kept: nobody may run it again.
        doubt = OutcomeUnknown(f"the function's result is not JSON: {error}")
        doubt.__cause__ = error
        return Raised(doubt)
    return Returned(Response(200, _HEADERS, body))


def _raised(error: BaseException) -> HandlerOutcome:
    return Raised(error) if isinstance(error, Exception) else Abandoned(error)


class _Function:
    """A function in the place of an application."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._outcome: HandlerOutcome | None = None

    def outcome(self, run: Run) -> HandlerOutcome:
        if self._outcome is None:
            leave = run.enter()
            try:
                self._outcome = _returned(self._function())
            except BaseException as error:
                self._outcome = _raised(error)
            finally:
                leave()
        return self._outcome

    def drain(self, headers: Headers) -> Drained:
        raise AssertionError("a function does not stream")

    def discard(self) -> None:
        raise AssertionError("a function does not stream")


class _AsyncFunction:
    """A coroutine function in the place of an application."""

    def __init__(self, function: Callable[[], Awaitable[Any]]) -> None:
        from semel.web.handler import Promise

        self._function = function
        self._outcome: Promise[HandlerOutcome] = Promise()
        self._started = False

    async def outcome(self, run: Run, running: set[Any]) -> HandlerOutcome:
        if not self._started:
            from semel.web.handler import start_task

            self._started = True
            start_task(self._run(run), running)
        return await self._outcome.wait()

    async def _run(self, run: Run) -> None:
        run.enter()
        try:
            self._outcome.keep(_returned(await self._function()))
        except BaseException as error:
            self._outcome.keep(_raised(error))

    async def drain(self, headers: Headers) -> Drained:
        raise AssertionError("a function does not stream")

    async def discard(self) -> None:
        raise AssertionError("a function does not stream")

    def release(self) -> None:
        """Nothing waits for the answer to leave."""

    def close(self) -> None:
        """Nothing to close."""

    async def returned(self) -> None:
        """Nothing runs after the outcome."""

    def raise_again(self) -> None:
        """What it raised is raised by `once` itself."""
