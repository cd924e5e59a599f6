"""Policies: what a route promises, by name. Frozen, validated when made, provable from outside."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeAlias, TypedDict, Unpack

from semel.core.exchange import refusal_shapes
from semel.core.exchange.problems import Problem
from semel.core.frozen import derived, frozen, is_async, replace
from semel.core.records import Headers, Micros, OnLapse, Request, Response
from semel.core.request.fingerprint import FingerprintRule
from semel.core.request.key_places import (
    BodyField,
    KeyFrom,
    KeyPlaces,
    key_places,
    payload_fields,
)
from semel.core.request.keys import KeyFormat
from semel.core.terms import Terms
from semel.core.unknown.evidence import Happened, ProbeFunction
from semel.errors import ConfigurationError

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "QUERY"})

_NO_STORE: Final = (b"cache-control", b"no-store")

Fate = Literal["release", "keep", "unknown"]

RefusalShape: TypeAlias = Callable[[Problem, Request], Response]
"""Puts a refusal into the shape of an API."""

OnReplay: TypeAlias = Callable[[Request, Response], Response | Awaitable[Response]]
"""Turns the kept answer into one with the current state. Under ASGI it may be awaited."""

Enforce = Literal["full", "shadow"]
"""Whether keys are kept to, or only watched: in shadow every request runs, and none is refused."""

Mode = Literal["leased", "atomic", "resumable", "deferred"]
"""How a handler runs: under a lease; in one transaction with its record; from recovery point to
recovery point, so that a worker can go on after a crash; or by a worker from the start."""


@frozen
class Policy:
    """What a route does with keys. Make one with `ietf`, `stripe`, `accepted` or `payments`.

    The everyday options come first; most routes need no others. docs/reference/policies.md says
    what each one does.
    """

    name: str
    # Everyday
    required: bool = False
    enforce: Enforce | None = None
    mode: Mode = "leased"
    in_flight: Literal["refuse", "accept", "wait"] = "refuse"
    wait: timedelta = timedelta(seconds=10)
    retention: timedelta = timedelta(hours=24)
    fingerprint: FingerprintRule = FingerprintRule()
    keep: Collection[int] | Callable[[Response], bool] | None = None
    after_error: Fate = "release"
    probe: ProbeFunction | None = None
    # Keys, and what they are counted by
    key_from: KeyFrom | None = None
    payload_from: BodyField | Sequence[BodyField] | None = None
    key: KeyFormat = "opaque"
    strict: bool = False
    personal_data: Literal["warn", "refuse", "allow"] = "warn"
    methods: Collection[str] = frozenset({"POST", "PATCH"})
    safe_methods: Literal["ignore", "refuse"] = "ignore"
    scope: Literal["route", "tenant"] = "route"
    session: Callable[[Request], str | None] | None = None
    # Times
    lease: timedelta = timedelta(seconds=60)
    max_run: timedelta = timedelta(minutes=15)
    tombstone: timedelta | None = None
    retry_after: timedelta = timedelta(seconds=1)
    max_request_age: timedelta | None = None
    made_at: Callable[[Request], datetime | None] | None = None
    # Outcomes nobody knows
    after_doubt: Literal["unknown", "keep"] = "unknown"
    after_lapse: Literal["unknown", "release", "resume"] = "unknown"
    effects: Literal["none", "transactional"] | None = None
    render: Callable[[Happened], Response] | None = None
    reconcile_after: timedelta = timedelta(minutes=1)
    give_up_after: timedelta = timedelta(days=3)
    # Requests that a worker runs
    abandon_after: timedelta = timedelta(hours=1)
    carry: Collection[str] = ()
    principal: Callable[[Request], Any] | None = None
    # Answers and their replay
    mismatch_status: int = 422
    max_request_body: int = 16 * 1024 * 1024
    max_response_body: int = 16 * 1024 * 1024
    response: Literal["buffer", "stream"] = "buffer"
    schema_version: str | None = None
    on_replay: OnReplay | None = None
    after_retire: Literal["refuse", "replay"] = "refuse"
    replay_header: str = "Idempotent-Replayed"
    refusal: RefusalShape | None = None
    # While settings change
    previous: Policy | None = None

    lease_micros: Micros = derived()
    retention_micros: Micros = derived()
    tombstone_micros: Micros = derived()
    age_micros: Micros | None = derived()
    patience_micros: Micros = derived()
    retry_micros: Micros = derived()
    reconcile_micros: Micros = derived()
    give_up_micros: Micros = derived()
    abandon_micros: Micros = derived()
    lapse: OnLapse = derived()
    stores_request: bool = derived()
    """The request is kept until it is settled, so that a worker can run it."""
    key_places: KeyPlaces = derived()
    key_header: bytes = derived()
    """The header that has the key; empty where it may be elsewhere, or in one of several."""
    key_in_body: bool = derived()
    """The body is read before the key is known."""
    payload: tuple[BodyField, ...] = derived()
    """What of the body is the request, where not all of it is."""
    rule: FingerprintRule = derived()
    """``fingerprint=``, of the payload and without the key."""
    prepares: bool = derived()
    """Fingerprints are made before the store is asked: they may fail, or be refused."""
    takes_usual_keys: bool = derived()
    """An opaque key in the bare form is taken as it is."""
    replay_name: bytes = derived()
    first_mark: Headers = derived()
    replay_mark: Headers = derived()
    """What semel says of every first answer, and of every one after it."""
    said_by_us: frozenset[bytes] = derived()
    """Headers that semel says itself, whatever a handler says."""
    leased: bool = derived()
    """The handler runs with its request, under a lease."""
    resumable: bool = derived()
    """The handler has recovery points."""
    lease_seconds: float = derived()
    max_run_seconds: float = derived()
    shadow: bool = derived()
    """Keys are only watched: ``enforce="shadow"``."""
    settles_apart: bool = derived()
    """Both halves of its exchanges are another module's: `atomic` or `shadow`."""
    looks_at_all: bool = derived()
    """Requests without a key are looked at, too: they are refused, or counted."""
    body_limit: int = derived()
    """How much of a request's body is read: in shadow all of it, since none is refused."""

    def __post_init__(self) -> None:
        _validate(self)
        tombstone = self.retention if self.tombstone is None else self.tombstone
        # How old a key may be that tells its age; any, where an expired key starts anew.
        age = self.max_request_age
        if age is None and tombstone:
            age = self.retention
        shadow = self.enforce == "shadow"
        patience = self.wait if self.in_flight == "wait" and not shadow else timedelta(0)
        resumable = self.mode == "resumable" or self.after_lapse == "resume"
        replay_name = self.replay_header.lower().encode()
        before = () if self.previous is None else self.previous.key_places.listed
        places, payload = key_places(self.key_from, before), payload_fields(self.payload_from)
        derived: dict[str, object] = {
            "methods": frozenset(method.upper() for method in self.methods),
            "keep": self.keep if callable(self.keep) or self.keep is None else frozenset(self.keep),
            "lease_micros": _micros(self.lease),
            "retention_micros": _micros(self.retention),
            "tombstone_micros": _micros(tombstone),
            "age_micros": None if age is None else _micros(age),
            "patience_micros": _micros(patience),
            "retry_micros": _micros(self.retry_after),
            "reconcile_micros": _micros(self.reconcile_after),
            "give_up_micros": _micros(self.give_up_after),
            "abandon_micros": _micros(self.abandon_after),
            "lapse": OnLapse.RESUME if resumable else OnLapse(self.after_lapse),
            "stores_request": self.mode == "deferred" or resumable,
            "carry": tuple(name.lower() for name in self.carry),
            "key_places": places,
            "key_header": places.only_header,
            "key_in_body": bool(places.fields),
            "payload": payload,
            "rule": _rule(self.fingerprint, places, payload),
            "prepares": self.fingerprint.by is not None or bool(payload),
            "takes_usual_keys": (self.key, self.strict) == ("opaque", False)
            and self.personal_data != "refuse",
            "replay_name": replay_name,
            "first_mark": ((replay_name, b"false"), _NO_STORE),
            "replay_mark": ((replay_name, b"true"), _NO_STORE),
            "said_by_us": frozenset((replay_name, b"cache-control", b"idempotency-expires")),
            "leased": self.mode in ("leased", "resumable"),
            "resumable": resumable,
            "lease_seconds": self.lease.total_seconds(),
            "max_run_seconds": self.max_run.total_seconds(),
            "shadow": shadow,
            "settles_apart": shadow or self.mode == "atomic",
            "looks_at_all": shadow
            or self.required
            or (bool(self.methods) and not places.only_header),
            "body_limit": sys.maxsize if shadow else self.max_request_body,
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def terms(self, application: str, route: str, *, probe: bool) -> Terms:
        """What is promised to a key that is used on this route now."""
        return Terms(
            application=application,
            route=route,
            mode=self.mode,
            retention=self.retention_micros,
            tombstone=self.tombstone_micros,
            reconcile_after=self.reconcile_micros,
            give_up_after=self.give_up_micros,
            probe=probe,
            max_response_body=self.max_response_body,
            schema_version=self.schema_version,
        )

    def recipe(self) -> str:
        """How identities and fingerprints are made here; changing it orphans live keys."""
        session = " session" if self.session is not None else ""
        key = " key=uuid" if self.key == "uuid" else ""  # whose letters lose their case
        places = self.key_places.recipe()
        return f"i1 scope={self.scope}{session}{key}{places}; {self.rule.describe()}"


def _rule(
    given: FingerprintRule, places: KeyPlaces, payload: tuple[BodyField, ...]
) -> FingerprintRule:
    """What counts of a request. Its key does not: it may be sent in one place or in two."""
    keys = [place.pointer for place in places.listed if isinstance(place, BodyField)]
    if payload and (given.by is not None or given.include is not None):
        raise ConfigurationError(
            "payload_from= says what of the body counts: leave by= and include= of fingerprint= out"
        )
    if given.by is not None or not (keys or payload):
        return given
    include = tuple(field.pointer for field in payload) or given.include
    return replace(given, include=include, exclude=(*given.exclude, *keys))


class PolicyOptions(TypedDict, total=False):
    """The options every policy factory takes; `Policy` has their defaults."""

    # Everyday
    required: bool
    enforce: Enforce | None
    mode: Mode
    in_flight: Literal["refuse", "accept", "wait"]
    wait: timedelta
    retention: timedelta
    fingerprint: FingerprintRule
    keep: Collection[int] | Callable[[Response], bool] | None
    after_error: Fate
    probe: ProbeFunction | None
    # Keys, and what they are counted by
    key_from: KeyFrom | None
    payload_from: BodyField | Sequence[BodyField] | None
    key: KeyFormat
    strict: bool
    personal_data: Literal["warn", "refuse", "allow"]
    methods: Collection[str]
    safe_methods: Literal["ignore", "refuse"]
    scope: Literal["route", "tenant"]
    session: Callable[[Request], str | None] | None
    # Times
    lease: timedelta
    max_run: timedelta
    tombstone: timedelta | None
    retry_after: timedelta
    max_request_age: timedelta | None
    made_at: Callable[[Request], datetime | None] | None
    # Outcomes nobody knows
    after_doubt: Literal["unknown", "keep"]
    after_lapse: Literal["unknown", "release", "resume"]
    effects: Literal["none", "transactional"] | None
    render: Callable[[Happened], Response] | None
    reconcile_after: timedelta
    give_up_after: timedelta
    # Requests that a worker runs
    abandon_after: timedelta
    carry: Collection[str]
    principal: Callable[[Request], Any] | None
    # Answers and their replay
    mismatch_status: int
    max_request_body: int
    max_response_body: int
    response: Literal["buffer", "stream"]
    schema_version: str | None
    on_replay: OnReplay | None
    after_retire: Literal["refuse", "replay"]
    replay_header: str
    refusal: RefusalShape | None
    # While settings change
    previous: Policy | None


OPTION_NAMES: Final = tuple(PolicyOptions.__annotations__)


def ietf(**options: Unpack[PolicyOptions]) -> Policy:
    """The IETF draft's behaviour: 422 for a reused key, 409 in flight, a 5xx may be tried again."""
    return _build("ietf", {}, options)


def stripe(**options: Unpack[PolicyOptions]) -> Policy:
    """Stripe v1's behaviour: 400 for a reused key, a 500 is kept, an expired key starts anew."""
    defaults: PolicyOptions = {
        "scope": "tenant",
        "mismatch_status": 400,
        "after_error": "keep",
        "after_doubt": "keep",
        "tombstone": timedelta(0),
        "after_retire": "replay",
        "refusal": refusal_shapes.stripe,
    }
    return _build("stripe", defaults, options)


def acp(**options: Unpack[PolicyOptions]) -> Policy:
    """The Agentic Commerce Protocol's behaviour: every POST has a key, an expired key starts anew.

    A 5xx is never kept, and refusals are its flat error objects.
    """
    defaults: PolicyOptions = {
        "required": True,
        "methods": ("POST",),
        "tombstone": timedelta(0),
        "after_retire": "replay",
        "refusal": refusal_shapes.acp,
    }
    return _build("acp", defaults, options)


def accepted(**options: Unpack[PolicyOptions]) -> Policy:
    """Says 202 while a request is under way, with the address to ask for its answer.

    With ``mode="deferred"`` the request is stored and a worker runs it.
    """
    return _build("accepted", {"in_flight": "accept"}, options)


def payments(**options: Unpack[PolicyOptions]) -> Policy:
    """For money: waits for the first answer, and an error leaves the outcome to be settled.

    Say who can be asked what happened: ``probe=ask_provider``, or ``probe=None`` for nobody.
    """
    if "probe" not in options:
        raise ConfigurationError(
            "payments() must name probe=, the function that asks the provider what happened, "
            "or say probe=None: then an unknown outcome waits for an operator"
        )
    defaults: PolicyOptions = {"in_flight": "wait", "after_error": "unknown"}
    return _build("payments", defaults, options)


def exempt() -> Policy:
    """For a route that needs no keys: its requests pass untouched, with one or without."""
    return Policy(name="exempt", methods=())


def _build(name: str, defaults: PolicyOptions, options: PolicyOptions) -> Policy:
    known = PolicyOptions.__annotations__
    for option in options:
        if option not in known:
            import difflib  # only for a start that fails anyway

            near = difflib.get_close_matches(option, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigurationError(f"{name}() has no option {option!r}{hint}")
    given: dict[str, Any] = {**defaults, **options}
    return Policy(name=name, **given)


# ── validation ────────────────────────────────────────────────────────────────────────────────────

_CHOICES: Final[dict[str, set[str | None]]] = {
    "personal_data": {"warn", "refuse", "allow"},
    "safe_methods": {"ignore", "refuse"},
    "scope": {"route", "tenant"},
    "after_error": {"release", "keep", "unknown"},
    "after_doubt": {"unknown", "keep"},
    "after_lapse": {"unknown", "release", "resume"},
    "in_flight": {"refuse", "accept", "wait"},
    "mode": {"leased", "atomic", "resumable", "deferred"},
    "enforce": {None, "full", "shadow"},
    "after_retire": {"refuse", "replay"},
    "effects": {None, "none", "transactional"},
    "response": {"buffer", "stream"},
}
_POSITIVE: Final = (
    *("lease", "max_run", "retention", "retry_after", "wait"),
    *("reconcile_after", "give_up_after", "abandon_after"),
)
_SIZES: Final = ("max_request_body", "max_response_body")

LONGEST: Final = timedelta(days=36_525)
"""A century, for every duration: what ends later has no date (year 9999), or is no number that a
store can keep, and an answer would fail after its handler has run."""


def _micros(duration: timedelta) -> Micros:
    return duration // timedelta(microseconds=1)


def _demand(ok: bool, sentence: str) -> None:
    if not ok:
        raise ConfigurationError(sentence)


def _validate(policy: Policy) -> None:
    for option, allowed in _CHOICES.items():
        value = getattr(policy, option)
        listed = ", ".join(sorted(map(repr, allowed)))
        _demand(value in allowed, f"{option}={value!r} is not one of {listed}")
    for option in _POSITIVE:
        value = getattr(policy, option)
        ok = isinstance(value, timedelta) and timedelta(0) < value <= LONGEST
        _demand(ok, f"{option}={value!r} must be a timedelta above zero, of a century at most")
    for option in ("required", "strict"):
        value = getattr(policy, option)
        _demand(isinstance(value, bool), f"{option}={value!r} is neither True nor False")
    for option in _SIZES:
        value = getattr(policy, option)
        _demand(
            isinstance(value, int) and value >= 0, f"{option}={value!r} must be a size in bytes"
        )
    for option in ("tombstone", "max_request_age"):
        value = getattr(policy, option)
        ok = value is None or (isinstance(value, timedelta) and timedelta(0) <= value <= LONGEST)
        _demand(ok, f"{option}={value!r} must be a timedelta of a century at most, or None")
    _demand(policy.max_run >= policy.lease, "max_run must not be shorter than lease")
    _validate_key(policy)
    _validate_outcomes(policy)
    _validate_mode(policy)


def _validate_key(policy: Policy) -> None:
    known = policy.key in ("opaque", "strong", "uuid") or callable(policy.key)
    _demand(known, f"key={policy.key!r} must be 'opaque', 'strong', 'uuid' or a callable")
    _demand(
        not isinstance(policy.methods, str) and all(isinstance(m, str) for m in policy.methods),
        "methods= takes a collection of method names",
    )
    unsafe = SAFE_METHODS.isdisjoint(method.upper() for method in policy.methods)
    _demand(unsafe, "methods= must not name safe methods: they change nothing")
    header = policy.replay_header
    _demand(
        isinstance(header, str) and header.isascii() and header.replace("-", "").isalnum(),
        f"replay_header={header!r} is not a header name",
    )
    checked_refusal(policy.refusal)
    _demand(
        isinstance(policy.fingerprint, FingerprintRule),
        "fingerprint= takes a semel.FingerprintRule(...)",
    )


def _validate_outcomes(policy: Policy) -> None:
    _demand(
        policy.after_lapse != "release" or policy.effects is not None,
        "after_lapse='release' runs a handler again whose first run may still be going: it needs "
        "effects='none' or effects='transactional'",
    )
    _demand(400 <= policy.mismatch_status <= 499, "mismatch_status must be a 4xx status")
    _demand(
        policy.made_at is None or policy.max_request_age is not None,
        "made_at= says when a request was made; how old it may be says max_request_age=",
    )
    for option in ("probe", "on_replay", "session", "render", "principal", "made_at"):
        value = getattr(policy, option)
        _demand(value is None or callable(value), f"{option}= must be callable or None")
    for option in ("keep", "key", "session", "render", "principal", "made_at"):
        plain = not is_async(getattr(policy, option))
        _demand(plain, f"{option}= must be a plain function: nothing awaits it")
    keeps = policy.keep is None or callable(policy.keep) or _are_statuses(policy.keep)
    _demand(keeps, "keep= takes statuses or a function of the response")


def _validate_mode(policy: Policy) -> None:
    mode = policy.mode
    _demand(
        mode == "leased" or policy.enforce != "shadow",
        f"mode={mode!r} decides how a handler runs, so it cannot be watched in shadow: roll the "
        "route out with mode='leased' first, or say enforce='full' on it",
    )
    buffered = mode == "leased" or policy.response == "buffer"
    _demand(
        buffered, f"mode={mode!r} keeps the whole answer: response='stream' does not go with it"
    )
    _demand(
        mode != "deferred" or policy.in_flight == "accept",
        "mode='deferred' answers 202 at once: it needs in_flight='accept', as accepted() has it",
    )
    _demand(
        mode != "deferred" or policy.required,
        "mode='deferred' needs required=True: a request without a key would be run at once",
    )
    _demand(
        mode != "atomic" or policy.after_lapse == "unknown",
        "mode='atomic' leaves nothing behind that could lapse: leave after_lapse= out",
    )
    _demand(
        mode != "resumable" or policy.after_lapse == "unknown",
        "mode='resumable' goes on where it was when its lease lapses: leave after_lapse= out",
    )
    _demand(
        mode == "deferred" or policy.after_lapse != "resume",
        "after_lapse='resume' goes with mode='deferred'; with the request it is mode='resumable'",
    )
    _demand(
        not isinstance(policy.carry, str) and all(isinstance(name, str) for name in policy.carry),
        "carry= takes a collection of header names",
    )


def checked_refusal(refusal: RefusalShape | None) -> RefusalShape | None:
    """``refusal``, if it can be called."""
    _demand(
        refusal is None or (callable(refusal) and not is_async(refusal)),
        "refusal= takes a plain function of (problem, request) that returns a semel.Response",
    )
    return refusal


def _are_statuses(given: Any) -> bool:
    try:
        return all(isinstance(status, int) for status in given)
    except TypeError:
        return False


# --- what is the same for every request of one route, worked out when its first one comes


class RoutePlan:
    """A route by its name, its policy, and the terms under which it makes records now."""

    __slots__ = (
        *("application", "enrolled", "label", "met_short_key"),
        *("method", "path", "policy", "terms"),
    )

    def __init__(self, label: str, policy: Policy, terms: Terms) -> None:
        self.label = label
        self.policy = policy
        self.terms = terms
        self.application = terms.application
        self.method, _, self.path = terms.route.partition(" ")
        """Of every request, where the route has no parameters."""
        self.enrolled = False
        """This process has compared the route's settings with what the store remembers, and its
        claims need nothing else; those in shadow do."""
        self.met_short_key = False
        """A short key was used, and warned of."""
