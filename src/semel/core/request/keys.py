"""Keys: from the header to a checked key, and from key and scope to the identity.

Nothing here echoes a key: a refusal says what is wrong with it, never what it was.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import sha256
from struct import Struct
from typing import Final, Literal, NamedTuple, TypeAlias
from urllib.parse import quote_from_bytes, unquote_to_bytes

from semel.core.frozen import frozen

MAX_HEADER_BYTES = 1024
"""A header longer than this is not parsed: 255 characters, all escaped, fit twice over."""

MAX_KEY_LENGTH = 255
STRONG_KEY_LENGTH = 16
"""Shorter keys are guessed or counted up, and meet each other sooner or later."""


@frozen
class Malformed:
    """A key that was refused; `reason` is one sentence that may be shown to the client."""

    reason: str


KeyFormat: TypeAlias = Literal["opaque", "strong", "uuid"] | Callable[[str], bool]


# --- the header


def parse_key(
    values: Sequence[bytes], *, strict: bool = False, name: str = "Idempotency-Key"
) -> str | Malformed:
    """The key in the values of all lines of one header, which is called ``name``.

    Taken are the structured-field String of the draft, `"k"`, and, unless strict, the bare `k`
    that most clients send; both are the same key.
    """
    if not values:
        raise ValueError("parse_key needs the value of at least one header line.")
    if len(values) > 1:
        return Malformed(f"The {name} header appears more than once.")
    if len(values[0]) > MAX_HEADER_BYTES:
        return Malformed(f"The {name} header is longer than {MAX_HEADER_BYTES} bytes.")
    value = values[0].strip(b" \t")  # RFC 9110 5.5; gunicorn does it, uvicorn only in part
    key = _quoted(value, name) if value.startswith(b'"') else _bare(value, strict, name)
    if key == "":
        return Malformed(f"The {name} is empty.")
    if isinstance(key, str) and len(key) > MAX_KEY_LENGTH:
        return Malformed(f"The {name} is longer than {MAX_KEY_LENGTH} characters.")
    return key


def _quoted(value: bytes, name: str) -> str | Malformed:
    # Parameters are dropped: every Item may carry some (RFC 9651 3.3), the draft defines none, and
    # refusing them would turn away clients of the first revision that does. The key alone names
    # the operation.
    try:
        import http_sf  # here, because bare keys, as most are, do without

        item = http_sf.parse(value, tltype="item")
    except ValueError:
        return Malformed(f"The {name} header is not a well-formed quoted string.")
    key = item[0] if isinstance(item, tuple) else None
    return key if isinstance(key, str) else Malformed(f"The {name} is not a string.")


# Visible ASCII, without what is syntax in the quoted form.
_BARE = re.compile(rb"[!#-+\--:<-\[\]-~]*")

usual_key: Final = re.compile(rb"[!#-+\--:<-\[\]-~]{1,%d}" % MAX_KEY_LENGTH).fullmatch
"""Matches what `parse_key` and `check_format` take for an opaque key as it is, in one look."""


def _bare(value: bytes, strict: bool, name: str) -> str | Malformed:
    if not value:
        return Malformed(f"The {name} header is empty.")
    if strict:
        return Malformed(f'The {name} must be a quoted string, such as "8e03978e".')
    if _BARE.fullmatch(value):
        return value.decode("ascii")
    if b"," in value:
        # WSGI servers join repeated headers with a comma; ASGI servers do not. Same answer.
        return Malformed(f"The {name} header appears more than once, or needs quotes.")
    return Malformed(f"The {name} contains a character that it may not contain.")


# --- the format a route asks for


def check_format(key: str, format: KeyFormat) -> str | Malformed:  # noqa: A002
    """The key as it counts from here on (a UUID in lower case), or why the route refuses it.

    What a callable raises is the operator's error and is not caught.
    """
    if format == "opaque" or format == "strong":
        shortest = 1 if format == "opaque" else STRONG_KEY_LENGTH
        if shortest <= len(key) <= MAX_KEY_LENGTH:
            return key
        return Malformed(
            f"The Idempotency-Key must have {shortest} to {MAX_KEY_LENGTH} characters."
        )
    if format == "uuid":
        return key.lower() if _UUID.fullmatch(key) else _NO_UUID
    return key if format(key) else Malformed("The Idempotency-Key is not in the expected format.")


_NO_UUID = Malformed("The Idempotency-Key must be a UUID of version 4 or 7.")

# RFC 9562: version 4 (5.4) and 7 (5.7) in the third group, variant 10xx (4.1) in the fourth. The
# other versions are not random, or not unique across machines.
_UUID = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[47][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}",
    re.IGNORECASE | re.ASCII,
)


def uuid7_milliseconds(key: str) -> int | None:
    """When a UUIDv7 key says it was made (RFC 9562 5.7), in milliseconds since 1970."""
    if len(key) != 36 or key[14] != "7" or not _UUID.fullmatch(key):
        return None
    return int(key[:8] + key[9:13], 16)


_EMAIL = re.compile(r"[\w.+-](?:@|%40)[\w-]+\.[\w.-]*[a-z]{2}", re.IGNORECASE | re.ASCII)
_PHONE = re.compile(
    r"(?<![\w/+])"  # not inside a word, nor in base64
    r"(?:\+[1-9](?:[ ().-]{0,2}\d){7,14}"  # international: E.164 has up to 15 digits
    r"|\(?\d{3}\)?[ .-]\d{3}[ .-]\d{4})"  # North American
    r"(?![\w-])",
    re.ASCII,
)


# The lengths and first digits of the large card networks, alone or in their usual groups.
_CARD = re.compile(
    r"(?<![\w+])(?:"
    r"(?:4\d{3}|5[1-5]\d\d|2[2-7]\d\d|35\d\d|6(?:011|4[4-9]\d|5\d\d))(?:([ -]?)\d{4}\1\d{4}\1\d{4})"
    r"|3[47]\d\d([ -]?)\d{6}\2\d{5}"
    r"|3(?:0[0-5]|[68]\d)\d([ -]?)\d{6}\3\d{4}"
    r")(?![\w+/-])",
    re.ASCII,
)
_IBAN = re.compile(
    r"(?<![A-Za-z0-9+_])([A-Za-z]{2}\d\d(?:[ -]?[A-Za-z0-9]{4}){2,7}(?:[ -]?[A-Za-z0-9]{1,3})?)"
    r"(?![A-Za-z0-9+/_])"
)
_IBAN_LENGTHS = {  # ISO 13616: the countries by how long theirs are
    15: "NO",
    16: "BE",
    18: "DK FI FO GL NL",
    19: "MK SI",
    20: "AT BA EE KZ LT LU",
    21: "CH HR LI LV",
    22: "BG BH CR DE GB GE IE ME RS",
    23: "AE GI IL",
    24: "AD CZ ES MD PK RO SA SE SK TN",
    25: "PT",
    26: "IS TR",
    27: "FR GR IT MC SM",
    28: "AL CY DO HU LB PL",
    29: "BR EG QA UA",
    30: "JO KW MU",
    31: "MT",
}
_IBAN_LETTERS = (
    "AD AL BG BH BR CH CR DO FR GB GE GI GR IE IT JO KW KZ LB LI LV MC MD MT MU NL PK QA RO SA SM "
    "TR UA"
)
"""Where account numbers have letters; elsewhere letters say that it is something else."""


def looks_like_personal_data(key: str) -> bool:
    """Whether a key contains what looks like an e-mail address, a telephone number, the number of
    a payment card or of a bank account. Check digits tell the last two from random ones."""
    if len(key) == 36 and _UUID.fullmatch(key) is not None:
        return False  # as most are
    if key.isalnum() and not (key.isdigit() or (key[:2].isalpha() and key[2:4].isdigit())):
        return False  # one word: a card has digits only, an account two letters and digits first
    if ("@" in key or "%40" in key) and _EMAIL.search(key) is not None:
        return True
    # The expressions are tried only where the shape of the key, told by characters, allows a match.
    shape = key.encode("ascii", "replace").translate(_SHAPE)
    if (b"+0" in shape or b"-000-0000" in shape) and _PHONE.search(key) is not None:
        return True
    grouped = b"0000-0000-0000" in shape or b"0000-000000-0000" in shape
    may_be_a_card = grouped or b"00000000000000" in shape
    if may_be_a_card and any(_luhn(found[0]) for found in _CARD.finditer(key)):
        return True
    may_be_an_account = shape[:4] == b"aa00" or b"-aa00" in shape
    return may_be_an_account and any(_is_iban(found) for found in _IBAN.findall(key))


def _kind(octet: int) -> int:
    """Letters look like "a", digits like "0", and all else but "+" and "_" like "-"."""
    character = chr(octet) if octet < 128 else "-"
    kind = "a" if character.isalpha() else "0" if character.isdigit() else "-"
    return ord(character if character in "+_" else kind)


_SHAPE = bytes(map(_kind, range(256)))


def _luhn(number: str) -> bool:
    """ISO/IEC 7812-1, annex B."""
    digits = [int(digit) for digit in reversed(number) if digit.isdecimal()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[1::2]]
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0


def _is_iban(text: str) -> bool:
    number = text.replace(" ", "").replace("-", "").upper()
    if number[:2] not in _IBAN_LENGTHS.get(len(number), ""):
        return False
    if number[:2] not in _IBAN_LETTERS and not number[2:].isdecimal():
        return False
    return int("".join(str(int(char, 36)) for char in number[4:] + number[:4])) % 97 == 1


def mask(key: str) -> str:
    """What a log line may show of a key: too little to use it, enough to tell a client's own."""
    return f"{key[:4]}...({len(key)})" if len(key) >= STRONG_KEY_LENGTH else "..."


# --- the identity


def canonical_path(path: bytes) -> str:
    """The full path, mount prefix included, from its *decoded* octets.

    ASGI and WSGI agree only on the decoded path, and most frameworks route on it: what decodes
    alike reaches the same handler, however it was escaped, so it must be one path here. Of the few
    that look closer see `escaped_path`.
    Encoded again, so that it is ASCII and unambiguous: RFC 3986 2.3 and 3.3 say what stays, 2.1
    asks for upper-case digits. Trailing and double slashes and dots stay: routers tell them apart,
    except that Werkzeug serves `//a` as `/a`: slashes in front count as one.
    """
    if path.startswith(b"//"):
        path = b"/" + path.lstrip(b"/")
    return quote_from_bytes(path or b"/", safe=_KEPT)  # an empty path is "/": 6.2.3


_KEPT: Final = "/!$&'()*+,;=:@"
_SLASH: Final = re.compile(b"%2F", re.IGNORECASE)


def escaped_path(sent: bytes) -> str:
    """The path as it was sent, where a router could take it for another; empty where none could.

    `canonical_path` makes one of `/a%2Fb` and `/a/b`, of `//a` and `/a`. Some routers tell them
    apart: so neither is ever answered with what the other has done.
    """
    path = sent.partition(b"?")[0]  # some servers leave the query there
    parts = _SLASH.split(path)
    if len(parts) == 1 and not path.startswith(b"//"):
        return ""
    return "%2F".join(quote_from_bytes(unquote_to_bytes(part), safe=_KEPT) for part in parts)


class Scope(NamedTuple):
    """Where a key counts. `path` is canonical; `kind` says whether method and path take part."""

    tenant: str
    method: str
    path: str
    kind: Literal["route", "tenant"] = "route"
    session: str | None = None
    application: str = ""


def identity(scope: Scope, key: str) -> bytes:
    """`identify`, of a scope."""
    return identify(*scope, key)


_LENGTHS = Struct(">7Q")


def identify(
    tenant: str,
    method: str,
    path: str,
    kind: Literal["route", "tenant"],
    session: str | None,
    application: str,
    key: str,
) -> bytes:
    """Recipe `i1`: SHA-256 over the recipe, seven lengths, then the seven parts.

    The lengths keep parts apart whatever they contain. A session is marked, so that an empty one
    differs from none.
    """
    last = key.encode("utf-8", "surrogatepass")
    # The key comes last, and most requests differ in nothing else; long paths would fill the cache.
    head = _remembered_head if len(path) <= _LONG else _head
    before = head(tenant, method, path, kind, session, application, len(last))
    return sha256(before + last).digest()


def _head(
    tenant: str,
    method: str,
    path: str,
    kind: str,
    session: str | None,
    application: str,
    key_length: int,
) -> bytes:
    """All that is hashed before the key itself."""
    bound = b"" if session is None else b"=" + _utf8(session)
    place = (_utf8(method), _utf8(path)) if kind == "route" else (b"", b"")
    who = (_utf8(application), _utf8(tenant), bound)
    parts = (b"route" if kind == "route" else b"tenant", *who, *place)
    lengths = _LENGTHS.pack(*map(len, parts), key_length)
    return b"semel i1\n" + lengths + b"".join(parts)


_LONG = 256
_remembered_head = lru_cache(512)(_head)


def _utf8(text: str) -> bytes:
    # Tenants come from the application: a stray surrogate in one must not become an error.
    return text.encode("utf-8", "surrogatepass")


Kind: TypeAlias = Literal["call", "effect"]

ONE_LIFE: Final = 0
"""The epoch of runs that leave nothing behind when they fail: their next try cannot know of it."""


def downstream_key(identity: bytes, epoch: int, kind: Kind, name: str) -> str:
    """The key for a provider: the same on every try, and nothing can be read from it.

    ``epoch`` is when this life of the key began: once it is forgotten and used anew, a provider
    that remembers longer must not answer with what it did in the first. Of one name a call and an
    effect are two.
    """
    if len(identity) != 32 or not name:
        raise ValueError("A downstream key needs an identity of 32 bytes and a name for the call.")
    said = b"semel d1\n%s%d %s " % (identity, epoch, kind.encode())
    return "semel_" + sha256(said + _utf8(name)).hexdigest()[:40]
