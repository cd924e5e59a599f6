"""`guard.once`: the same exchange around any function, for queue consumers, scripts and jobs."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from semel.core.exchange.admit import add_body, demand_payload, name_record, named_tenant
from semel.core.exchange.answers import Answer, Outcome
from semel.core.exchange.settle import Flowing
from semel.core.frozen import frozen, is_async
from semel.core.policy import Policy, RoutePlan
from semel.core.records import HeaderView, Request, Response
from semel.core.request import keys
from semel.core.request.comparison import LARGE
from semel.core.request.keys import Malformed
from semel.core.terms import EVERY_ROUTE
from semel.core.unknown.settle_unknown import ONCE
from semel.errors import ConfigurationError, Refused
from semel.runtime.leases import new_fence
from semel.web.inventory import ONCE_ROUTE
from semel.web.request_events import Account

if TYPE_CHECKING:
    from semel.guard import Guard
    from semel.runtime.runtime import Runtime
    from semel.web.exchange import WebExchange

T = TypeVar("T")

_HEADERS: Final = ((b"content-type", b"application/json"),)


@frozen
class Once(Generic[T]):
    """What a function returned, now or the first time: ``value``, as JSON keeps it."""

    value: T
    replayed: bool


class OnceCall:
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
        self._guard = guard
        self._route = EVERY_ROUTE if policy is None else ONCE_ROUTE.format(name)
        self._policy = guard.policy if policy is None else guard.bind(policy)
        self._name = name
        if not isinstance(key, str):
            raise ConfigurationError(f"the key is a text, not {key!r}")
        self._sent = key
        try:
            self._body = json.dumps(payload, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigurationError(f"payload= must be JSON: {error}") from error
        if not name or not name.isprintable():
            raise ConfigurationError("name= says what is done once, such as 'send-invoice'")
        checked = keys.check_format(key, self._policy.key)
        if isinstance(checked, Malformed):
            raise Refused("malformed-key", checked.reason, False)
        if self._policy.stores_request:
            raise ConfigurationError(
                "once() is run by its caller: mode='deferred' and mode='resumable' are for routes"
            )
        self._key = checked
        self._tenant = named_tenant(tenant, guard.tenant)
        self._request = Request(ONCE, f"/{name}", b"", HeaderView(_HEADERS), payload)

    def run(self, function: Callable[[], T]) -> Once[T]:
        from semel.web.exchange import FunctionExchange

        _demand_function(function)
        if is_async(function):
            raise ConfigurationError("a coroutine function is run by `await guard.aonce(…)`")
        ex = FunctionExchange(*self._given())
        ex.function = function
        answer = self._open(ex)
        if answer is not None:
            return _result_of(answer)
        try:
            return _result_of(ex.serve())
        finally:
            ex.end()

    async def arun(self, function: Callable[[], Awaitable[T]]) -> Once[T]:
        from semel.web.exchange_async import AsyncFunctionExchange

        _demand_function(function)
        ex = AsyncFunctionExchange(*self._given())
        ex.function = function
        return _result_of(self._open(ex) or await ex.serve())

    def _given(self) -> tuple[Runtime, RoutePlan, Request]:
        runtime = self._guard.runtime
        label, registered = ONCE_ROUTE.format(self._name), self._name in runtime.probes
        plan = runtime.plan(label, self._policy, self._route, probe=registered)
        return runtime, plan, self._request

    def _open(self, ex: WebExchange) -> Answer | None:
        """As `Pipeline` does it; an answer where it is known without the store."""
        guard, policy = self._guard, self._policy
        if guard.events.heard:
            ex.account = Account(guard.events)
        ex.sent, ex.key, ex.tenant = self._sent, self._key, self._tenant
        body = self._body if len(self._body) < LARGE else (self._body,)
        name_record(ex)
        add_body(ex, body, new_fence())
        if policy.payload and (refused := demand_payload(ex)) is not None:
            return Answer(refused, Outcome.INTERRUPTED)
        ex.seen_before = ex.runtime.seen_keys.meet(ex.identity)
        # A worker finds the probe of a function by its name; that of a policy only if it is the
        # guard's own.
        own = policy is guard.policy and policy.probe is not None
        ex.can_ask = self._name in guard.registry.probes or own
        return ex.opened()


def _demand_function(given: Any) -> None:
    if not callable(given):
        raise ConfigurationError(
            "what is done once is given as a function, not as its result: "
            f"lambda: …, not {type(given).__name__}"
        )


def _result_of(answer: Answer | Flowing) -> Once[Any]:
    """The function's result, its exception, or why it may not run."""
    if isinstance(answer, Flowing):
        raise AssertionError("a function does not stream")
    if answer.reraise and answer.error is not None and not answer.zombie:
        raise answer.error
    response = answer.response
    if response is None:
        raise Refused("interrupted", "The call was interrupted; nothing was executed.", True)
    if answer.outcome in (Outcome.EXECUTED, Outcome.REPLAYED) and response.status == 200:
        return Once(json.loads(response.body), answer.outcome is Outcome.REPLAYED)
    raise _refusal(response)


def _refusal(response: Response) -> Refused:
    wait = dict(response.headers).get(b"retry-after")
    retry_after = None if wait is None else int(wait)
    problem = json.loads(response.body)
    if response.status == 202:  # the accepted policy's way of saying so
        return Refused("in-flight", f"It is {problem['status']}.", True, retry_after)
    return Refused(problem["code"], problem["detail"], problem["retryable"], retry_after)
