"""Canonical JSON (RFC 8785) from bytes, or None where the bytes are not I-JSON (RFC 7493).

None is not an error: the caller then compares the raw bytes. What could be read in more than one
way (a name given twice, a number that a double cannot hold) is never read at all, because two
requests that mean different things to the application must not get the same fingerprint.

The usual document goes through the C scanner and encoder of the standard library, which agree
with RFC 8785 except for three things: how some numbers print, that names sort by code point
instead of UTF-16 code unit, and that almost anything is accepted. Hooks settle the first and the
last while scanning; documents that need the second take the exact path, `_exact`.
"""

import json.encoder
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from json import JSONDecoder, JSONEncoder
from json.encoder import encode_basestring
from typing import Any, NamedTuple, NoReturn

from semel.core.frozen import frozen

# Deep enough for people, and far from the interpreter's recursion limit wherever we are called:
# whether a body counts as JSON must not depend on the caller's stack.
MAX_DEPTH = 64

# The C scanner reads a document in one go, and no other thread of the process runs meanwhile: a
# million values would keep an event loop waiting, in whatever thread they are read.
MAX_VALUES = 100_000

_LARGEST = 2**53 - 1  # RFC 7493 2.2: beyond it integers collapse in a double


@frozen
class _Small:
    """A number in 0 < |x| < 1e-4: `repr` and ECMAScript disagree, so it carries its own text."""

    text: str


Value = None | bool | int | float | str | _Small | list["Value"] | dict[str, "Value"]


class Canonical(NamedTuple):
    """The canonical text and, for an object, each top-level member as `"name":value`, in order."""

    data: bytes
    members: Mapping[str, bytes]

    def __repr__(self) -> str:
        return f"Canonical(<{len(self.data)} bytes>)"  # never what somebody has sent


def canonicalise(body: bytes, prune: Callable[[Value], Value] | None = None) -> Canonical | None:
    """The canonical form of `body`, after `prune` has taken out what does not matter."""
    try:
        if _too_many(body) or _too_deep(body):
            return None
        text = body.decode().strip(_WHITESPACE)
        if prune is not None:
            return _write(prune(_read(_CAREFUL, text)))
        if b"\\" in body:
            return _write(_read(_CAREFUL, text))
        # Without escapes each string has two quotes, coming and going; a name that was given
        # twice would go but once. Counting them is a third cheaper than a hook for each object.
        decoder = _QUICK if _SIXTEEN in body.translate(_DIGITS) else _QUICKEST
        written = _write(_read(decoder, text))
        return written if written.data.count(b'"') == body.count(b'"') else None
    except ValueError:  # not UTF-8, not JSON, not I-JSON, or a lone surrogate on the way out
        return None


def usual_form(body: bytes) -> Canonical | None:
    """`canonicalise`, of one object in ASCII, without escapes and long numbers; None of all others.

    Most bodies are such, and are read on the way of every request: all in one go.
    """
    if body[:1] != b"{" or b"\\" in body or not body.isascii():
        return None
    deep = body.count(b"{") + body.count(b"[") > MAX_DEPTH
    if deep or _SIXTEEN in body.translate(_DIGITS) or len(body) > MAX_VALUES:
        return None
    text = body.decode("ascii").rstrip(_WHITESPACE)
    members: dict[str, bytes] = {}
    try:
        value, end = _read_quickest(text, 0)
        for name in sorted(value):
            member = value[name]
            if type(member) is str:
                # Without escapes there is nothing in a string that would have to be escaped.
                members[name] = f'"{name}":"{member}"'.encode()
            elif type(member) is int:
                members[name] = f'"{name}":{member}'.encode()
            else:
                members[name] = f'"{name}":{"".join(_scan(member, 0))}'.encode()
    except (StopIteration, ValueError, _NeedsExact):
        return None
    data = b"{%b}" % b",".join(members.values())
    whole = end == len(text) and data.count(b'"') == body.count(b'"')
    return Canonical(data, members) if whole else None


# --- reading


def parse(body: bytes) -> Value:
    """The value of ``body``, with None for every number; ValueError where readers may differ."""
    if _too_many(body) or _too_deep(body):
        raise ValueError("too deep, or too many values")
    return _read(_WITHOUT_NUMBERS, body.decode().strip(_WHITESPACE))


def _too_many(body: bytes) -> bool:
    return len(body) > MAX_VALUES and sum(map(body.count, (b",", b"[", b"{"))) > MAX_VALUES


def _too_deep(body: bytes) -> bool:
    """Told before parsing, so that neither the recursion limit nor the C stack is ever tested."""
    if body.count(b"{") + body.count(b"[") <= MAX_DEPTH:
        return False
    # Without its escapes every quote opens or closes a string: every other piece is outside.
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = b"".join(plain.split(b'"')[::2]).translate(None, _NO_BRACKET)
    return max(accumulate(map(_STEP.__getitem__, brackets)), default=0) > MAX_DEPTH


_STEP = {ord("{"): 1, ord("["): 1, ord("}"): -1, ord("]"): -1}
_NO_BRACKET = bytes(octet for octet in range(256) if octet not in _STEP)


def _object(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name appears twice")  # RFC 7493 2.3
    return members


def _integer(token: str) -> int:
    if len(token) < 16:
        return int(token)
    # The length first: int() refuses 4,300 digits by itself, and would take its time below that.
    if len(token) > 17 or abs(number := int(token)) > _LARGEST:
        raise ValueError("an integer that a double cannot hold")
    return number


def _real(token: str) -> int | float | _Small:
    number = float(token)
    # A double tells all numbers of up to 15 digits apart, away from the ends of its range.
    if len(token) > 16 or not 1e-300 < abs(number) < 1e300:
        _faithful(token, number)
    if number.is_integer():
        return _whole(number)
    return number if abs(number) >= 1e-4 else _Small(_ecmascript(number))


def _faithful(token: str, number: float) -> None:
    """Refuse digits that the double loses (also 1e400 and 1e-400).

    Two spellings of a double are in use: the shortest, and seventeen digits.
    """
    from decimal import Decimal  # only odd numbers need it

    try:
        given = Decimal(token)
        faithful = given == Decimal(repr(number)) or given == Decimal(f"{number:.17g}")
    except ArithmeticError:  # an exponent beyond what Decimal takes
        faithful = False
    if not faithful:
        raise ValueError("a number that a double cannot hold")


def _whole(number: float) -> int | float:
    if abs(number) < 1e16:
        return int(number)  # -0.0 becomes 0, as RFC 8785 3.2.2.3 has it
    # ECMAScript pads the shortest digits with zeros up to 1e21; from there on it is like repr.
    if abs(number) >= 1e21:
        return number
    from decimal import Decimal

    return int(Decimal(repr(number)))


def _ecmascript(number: float) -> str:
    """ECMA-262 Number::toString for 0 < |number| < 1e-4, from the same shortest digits."""
    mantissa, exponent = repr(number).split("e-")
    if int(exponent) > 6:
        return f"{mantissa}e-{int(exponent)}"
    sign, digits = ("-", mantissa[1:]) if number < 0 else ("", mantissa)
    return f"{sign}0.{'0' * (int(exponent) - 1)}{digits.replace('.', '')}"


def _constant(token: str) -> NoReturn:
    raise ValueError("NaN and infinities are not JSON")


_QUICK = JSONDecoder(parse_int=_integer, parse_float=_real, parse_constant=_constant)
# Integers of up to fifteen digits need no look: the C scanner reads them by itself. Whether there
# are longer ones is told with every digit made the same: far quicker than a regular expression.
_DIGITS = bytes(ord("0") if octet in b"0123456789" else ord(" ") for octet in range(256))
_SIXTEEN = b"0" * 16
_QUICKEST = JSONDecoder(parse_float=_real, parse_constant=_constant)
_read_quickest: Callable[[str, int], tuple[Any, int]] = getattr(_QUICKEST, "scan_once")  # noqa: B009
"""`raw_decode` without a frame of its own."""
_CAREFUL = JSONDecoder(
    parse_int=_integer,
    parse_float=_real,
    parse_constant=_constant,
    object_pairs_hook=_object,
)


def _no_number(token: str) -> None:
    """Its value is not asked for: numbers that a double cannot hold do no harm."""


_WITHOUT_NUMBERS = JSONDecoder(
    parse_int=_no_number,
    parse_float=_no_number,
    parse_constant=_constant,
    object_pairs_hook=_object,
)

_WHITESPACE = " \t\n\r"  # RFC 8259 2, and no other


def _read(decoder: JSONDecoder, text: str) -> Value:
    value: Value
    value, end = decoder.raw_decode(text)
    if end != len(text):
        raise ValueError("something follows the value")
    return value


# --- writing


def _write(value: Value) -> Canonical:
    try:
        written = _assemble(value, sorted, _quick)
        data = written.data
        if data.isascii() or len(data.translate(None, _ASTRAL)) == len(data):
            return written
    except _NeedsExact:
        pass
    return _assemble(value, _by_utf16, _exact)


# Above U+FFFF code points and UTF-16 code units sort differently; these lead its UTF-8 octets.
_ASTRAL = b"\xf0\xf1\xf2\xf3\xf4"


def _assemble(
    value: Value,
    order: Callable[[dict[str, Value]], list[str]],
    encode: Callable[[Value], str],
) -> Canonical:
    if type(value) is not dict:
        return Canonical(encode(value).encode(), {})
    members = {
        name: f"{encode_basestring(name)}:{encode(value[name])}".encode() for name in order(value)
    }
    return Canonical(b"{%b}" % b",".join(members.values()), members)


class _NeedsExact(Exception):
    """The C encoder met a number that it cannot print."""


def _needs_exact(value: object) -> NoReturn:
    raise _NeedsExact


_ENCODER = JSONEncoder(
    ensure_ascii=False,
    check_circular=False,
    allow_nan=False,
    sort_keys=True,
    separators=(",", ":"),
    default=_needs_exact,
)


def _scanner() -> Callable[[Value, int], Iterable[str]]:
    """`_ENCODER.iterencode`, without building the C encoder, where there is one, for every value.

    Setting it up costs more than encoding most members; a test holds the two to the same text.
    """
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return lambda value, level: _ENCODER.iterencode(value)
    scan: Callable[[Value, int], Iterable[str]]
    scan = make(None, _needs_exact, encode_basestring, None, ":", ",", True, False, False)
    return scan


_scan = _scanner()


def _encode(value: Value) -> str:
    return "".join(_scan(value, 0))


def _quick(value: Value) -> str:
    if isinstance(value, str):
        return encode_basestring(value)
    if type(value) is int:
        return str(value)
    return _encode(value)


def _exact(value: Value) -> str:
    match value:
        case str():
            return encode_basestring(value)
        case dict():
            inner = [
                f"{encode_basestring(name)}:{_exact(value[name])}" for name in _by_utf16(value)
            ]
            return f"{{{','.join(inner)}}}"
        case list():
            return f"[{','.join([_exact(item) for item in value])}]"
        case _Small(text):
            return text
        case _:
            return _encode(value)


def _by_utf16(members: dict[str, Value]) -> list[str]:
    return sorted(members, key=lambda name: name.encode("utf-16-be"))  # RFC 8785 3.2.3
