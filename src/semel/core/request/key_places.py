"""Where a key is looked for: headers, fields of the body, functions of the request.

All places of a route are looked at, and those that have a key must agree. A key in a body is taken
only where every reader of that body finds the same one: the application reads it again, with a
parser of its own. What could be read in two ways is refused, and so is a body of which nobody here
can tell whether it has a key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, cast

from semel.core.frozen import derived, frozen, is_async
from semel.core.records import Request
from semel.core.request.canonical_json import parse
from semel.core.request.content_type import Media, form_values, media_type, multipart_values
from semel.core.request.fingerprint import Pointer, is_index, parse_pointer, resolve, write_pointer
from semel.core.request.keys import MAX_KEY_LENGTH, Malformed, parse_key
from semel.errors import ConfigurationError

DEFAULT_HEADER: Final = "Idempotency-Key"

_USUAL: Final = '"header idempotency-key"'
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TEXT: Final = re.compile(r"[ -~]+")
"""What the header can carry, in its quoted form."""


@frozen
class BodyField:
    """A place in the body of a request; `body` makes one."""

    name: str
    steps: Pointer = derived()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ConfigurationError("semel.body() takes a field's name, or a JSON Pointer")
        object.__setattr__(self, "steps", parse_pointer(self.name))

    @property
    def pointer(self) -> str:
        """As a JSON Pointer, in its one spelling."""
        return write_pointer(self.steps)


def body(name: str) -> BodyField:
    """A place in the body, for ``key_from=`` and ``payload_from=``.

    ``name`` is a JSON Pointer (``/meta/idempotency_key``), or the name of a top-level member. In a
    form, urlencoded or multipart, it is the field of that name.
    """
    return BodyField(name)


KeyPlace: TypeAlias = str | BodyField | Callable[[Request], str | None]
"""A header by its name, a place in the body, or a function that returns the key or None."""
KeyFrom: TypeAlias = KeyPlace | Sequence[KeyPlace]


@frozen
class Unreadable:
    """A body that must be read for its key, and cannot; `reason` may be shown to the client."""

    reason: str


@frozen
class KeyPlaces:
    """The places of a route. ``listed`` are its own, in the order of preference.

    ``before`` are those of its previous settings: keys that were sent there are still found.
    """

    listed: tuple[KeyPlace, ...]
    before: tuple[KeyPlace, ...] = ()
    headers: tuple[str, ...] = derived()
    fields: tuple[BodyField, ...] = derived()
    functions: tuple[Callable[[Request], str | None], ...] = derived()
    only_header: bytes = derived()
    """The name of the header, where that is the one place; else empty."""

    def __post_init__(self) -> None:
        every = tuple(dict.fromkeys((*self.listed, *self.before)))
        texts = tuple(dict.fromkeys(place.lower() for place in every if isinstance(place, str)))
        fields = tuple(place for place in every if isinstance(place, BodyField))
        others: Any = [p for p in every if not isinstance(p, str | BodyField)]
        only = texts[0].encode() if len(texts) == 1 and not fields and not others else b""
        for name, found in (
            ("headers", texts),
            ("fields", fields),
            ("functions", tuple(others)),
            ("only_header", only),
        ):
            object.__setattr__(self, name, found)

    @property
    def described(self) -> tuple[str, ...]:
        """Each own place in a few words, for people."""
        return tuple(map(_described, self.listed))

    def spelled(self, name: str) -> str:
        """A header as it is written in the settings."""
        listed = (*self.listed, *self.before)
        return next(place for place in listed if isinstance(place, str) and place.lower() == name)

    def recipe(self) -> str:
        """The own places as stable text; empty for the usual one."""
        names = sorted(f'"{name}"' for name in self.described)
        return "" if names == [_USUAL] else f" from=[{','.join(names)}]"


def key_places(given: KeyFrom | None, before: tuple[KeyPlace, ...] = ()) -> KeyPlaces:
    """The places that ``key_from=`` names; None is the header of the draft."""
    if given is None:
        given = DEFAULT_HEADER
    listed = _several(given)
    if not listed:
        raise ConfigurationError("key_from=() names no place where a key could be")
    for place in listed:
        if isinstance(place, str):
            if not _HEADER_NAME.fullmatch(place):
                raise ConfigurationError(
                    f"key_from={place!r} is not the name of a header; a place in the body is "
                    "semel.body('/meta/idempotency_key')"
                )
        elif not isinstance(place, BodyField) and (not callable(place) or is_async(place)):
            raise ConfigurationError(
                "key_from= takes header names, semel.body(...) or plain functions of the request"
            )
    names = [place.lower() if isinstance(place, str) else place for place in listed]
    if len(set(names)) != len(names):
        raise ConfigurationError("key_from= names a place twice")
    return KeyPlaces(listed, before)


def _several(given: Any) -> tuple[Any, ...]:
    return tuple(given) if type(given) in (list, tuple) else (given,)  # pyright: ignore[reportUnknownArgumentType]


def payload_fields(given: BodyField | Sequence[BodyField] | None) -> tuple[BodyField, ...]:
    """The places that ``payload_from=`` names."""
    listed = () if given is None else _several(given)
    if given is not None and (not listed or not all(isinstance(it, BodyField) for it in listed)):
        raise ConfigurationError(
            "payload_from= takes semel.body('/params/arguments'), or several of them"
        )
    return tuple({field.steps: field for field in listed}.values())


def _described(place: KeyPlace) -> str:
    if isinstance(place, str):
        return f"header {place.lower()}"
    if isinstance(place, BodyField):
        return f"body {place.pointer}"
    name = getattr(place, "__qualname__", type(place).__qualname__)
    return f"function {getattr(place, '__module__', '?')}.{name}"


def in_words(place: KeyPlace) -> str:
    """A place for a sentence to a client, which need not know of functions."""
    if isinstance(place, str):
        return f"the {place} header"
    return f"the body at {place.pointer}" if isinstance(place, BodyField) else "the request"


# --- finding it


def find_key(
    places: KeyPlaces, request: Request, sent: bytes, *, strict: bool
) -> str | Malformed | Unreadable | None:
    """The key of a request, None where it has none, or why that cannot be told.

    What a function raises is the operator's error and is not caught. ``sent``: the body, where a
    place is in it.
    """
    found: dict[KeyPlace, str] = {}
    for name in places.headers:
        lines = request.headers.all(name)
        if lines:
            spelled = places.spelled(name)
            key = parse_key(lines, strict=strict, name=spelled)
            if isinstance(key, Malformed):
                return key
            found[spelled] = key
    in_body = _keys_in_body(places.fields, request, sent) if places.fields else {}
    if not isinstance(in_body, dict):
        return in_body
    found |= in_body
    for function in places.functions:
        told: object = function(request)
        if told is not None:
            if not isinstance(told, str):
                raise TypeError(f"key_from= must return a text or None, not {type(told).__name__}")
            key = _checked(told, function)
            if isinstance(key, Malformed):
                return key
            found[function] = key
    if len(set(found.values())) > 1:
        where = " and in ".join(in_words(place) for place in found)
        return Malformed(f"The request has keys that differ, in {where}. Send one.")
    return next(iter(found.values()), None)


def _checked(value: object, place: KeyPlace) -> str | Malformed:
    """A key that is text already: as it is, or why not."""
    where = in_words(place)
    if not isinstance(value, str):
        return Malformed(f"The key in {where} is not a text.")
    if not 1 <= len(value) <= MAX_KEY_LENGTH:
        return Malformed(f"The key in {where} must have 1 to {MAX_KEY_LENGTH} characters.")
    if not _TEXT.fullmatch(value):
        return Malformed(f"The key in {where} contains a character that it may not contain.")
    return value


def _keys_in_body(
    fields: tuple[BodyField, ...], request: Request, sent: bytes
) -> dict[KeyPlace, str] | Malformed | Unreadable:
    """The keys in these fields. No body has no key; an unreadable one may have any."""
    if not sent:
        return {}
    headers = request.headers
    if (headers.joined(b"content-encoding") or "identity").strip().lower() != "identity":
        return Unreadable("The key may be in the body, which must be sent without an encoding.")
    media = media_type(headers.joined(b"content-type"))
    values = _in_json(fields, sent) if media.reader == "json" else _in_form(fields, media, sent)
    if isinstance(values, Unreadable):
        return values
    keys: dict[KeyPlace, str] = {}
    for field, found in values.items():
        if len(found) > 1:
            return Malformed(f"The key in {in_words(field)} appears more than once.")
        for value in found:
            key = _checked(value, field)
            if isinstance(key, Malformed):
                return key
            keys[field] = key
    return keys


def _in_json(
    fields: tuple[BodyField, ...], sent: bytes
) -> dict[BodyField, tuple[object, ...]] | Unreadable:
    try:
        document = parse(sent)
    except ValueError:
        return Unreadable(
            "The key may be in the body, which is not JSON in UTF-8 that can be read in one way "
            "only: with each name once, not too deep and not too long."
        )
    if isinstance(document, list) and not all(is_index(field.steps[0]) for field in fields):
        return Unreadable(
            "The body is a batch of several requests, and a key is for one: send each by itself."
        )
    return {field: cast("tuple[object, ...]", resolve(document, field.steps)) for field in fields}


def _in_form(
    fields: tuple[BodyField, ...], media: Media, sent: bytes
) -> dict[BodyField, tuple[object, ...]] | Unreadable:
    """In a form, which is flat, and holds octets."""
    deep = any(len(field.steps) > 1 for field in fields)
    # Some applications read JSON whatever its type says.
    if media.reader == "raw" or deep or sent.lstrip()[:1] in (b"{", b"["):
        kinds = "JSON in UTF-8" if deep else "JSON or a form in UTF-8"
        return Unreadable(f"The key may be in the body, which must be {kinds}, and say so.")
    found: dict[BodyField, tuple[object, ...]] = {}
    for field in fields:
        name = field.steps[0].encode()
        if media.reader == "form":
            values = form_values(sent, name)
        else:
            values = multipart_values(sent, media.boundary, name)
        if values is None:
            return Unreadable("The key may be in the body, which is no well-formed form.")
        found[field] = tuple(value.decode("latin-1") for value in values)
    return found
