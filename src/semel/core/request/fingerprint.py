"""What a request means, as a digest: two requests with one key must mean the same.

A fingerprint is made in two steps: SHA-256 over the framed meaning, then, where there is a
secret, HMAC-SHA-256 over that digest. So a record sealed under an older secret is checked without
reading the body again. Stored as the first letter of its kind, the version, `-` and the key id
where there is a secret, a dot and half of the digest: `j1.<digest>`, `r1-2024.<digest>`. Half is
128 bits: who could find two bodies with one digest would deceive nobody but itself. Kind and
meaning are hashed together, so that raw bytes never equal a canonical form.
"""

import json
import re
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from hashlib import sha256
from hmac import compare_digest
from hmac import digest as hmac_digest
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeAlias

from semel.core.frozen import derived, frozen, is_async, value
from semel.core.records import Request
from semel.core.request.canonical_json import Value, canonicalise, usual_form
from semel.core.request.content_type import Media, media_type, read_multipart, read_urlencoded
from semel.errors import ConfigurationError

Kind: TypeAlias = Literal["json", "form", "multipart", "raw", "by"]

MAX_FIELDS = 64
"""How many fields, the first by name, are remembered to tell which ones differ."""
_LONG_FIELD = 4096
"""A longer field is replaced by its digest while the request is served."""


# --- settings

Pointer: TypeAlias = tuple[str, ...]


@frozen
class FingerprintRule:
    """How the requests of a route are fingerprinted.

    `include` and `exclude` name JSON members or form fields, or point into JSON (`/card/number`);
    both apply only to bodies that are read: a raw one counts whole. `by` replaces it all: a
    function of the request and its body that returns the bytes that matter, beside method and
    path. `secrets` are pairs of key id and secret: the first seals, the others are still accepted.
    """

    include: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    by: Callable[[Request, bytes], bytes] | None = None
    secrets: tuple[tuple[str, bytes], ...] = ()
    _included: tuple[Pointer, ...] | None = derived()
    _excluded: tuple[Pointer, ...] = derived()
    _prune: Callable[[Value], Value] | None = derived()
    plain: bool = derived()
    """Everything counts, and no secret seals it."""

    def __post_init__(self) -> None:
        _check_names(self)
        for option in ("include", "exclude"):
            names: Any = getattr(self, option)
            object.__setattr__(self, option, names if names is None else tuple(names))
        _check_secrets(self.secrets)
        included = None if self.include is None else _pointers(self.include)
        excluded = _pointers(self.exclude)
        everything = included is None and not excluded
        object.__setattr__(self, "_included", included)
        object.__setattr__(self, "_excluded", excluded)
        object.__setattr__(
            self, "_prune", None if everything else partial(_prune, included, excluded)
        )
        object.__setattr__(self, "plain", everything and self.by is None and not self.secrets)

    def describe(self) -> str:
        """The settings that shape a digest, as stable text; not the secrets, which rotate."""
        parts = ["v1"]
        if self._included is not None:
            parts.append(f"include={_listed(self._included)}")
        if self._excluded:
            parts.append(f"exclude={_listed(self._excluded)}")
        if self.by is not None:
            name = getattr(self.by, "__qualname__", type(self.by).__qualname__)
            parts.append(f"by={getattr(self.by, '__module__', '?')}.{name}")
        return " ".join(parts)


def _check_names(recipe: FingerprintRule) -> None:
    for option in ("include", "exclude"):
        if isinstance(getattr(recipe, option), str):
            raise ConfigurationError(f"{option}= takes a tuple of field names, not one text.")
    if recipe.include is not None and not recipe.include:
        raise ConfigurationError(
            "include=() makes all requests equal; name a field or leave it out."
        )
    if recipe.by is not None and (recipe.include is not None or recipe.exclude):
        raise ConfigurationError("by= decides alone what matters; leave include= and exclude= out.")
    if is_async(recipe.by):
        raise ConfigurationError("by= must be a plain function: nothing awaits it.")


_KEY_ID = re.compile(r"[A-Za-z0-9_-]{1,32}")  # no dot: it separates the parts of a fingerprint
_MIN_SECRET = 16


def _check_secrets(secrets: tuple[tuple[str, bytes], ...]) -> None:
    if len(dict(secrets)) != len(secrets):
        raise ConfigurationError("Two secrets have the same key id.")
    for key_id, secret in secrets:
        if not _KEY_ID.fullmatch(key_id):
            raise ConfigurationError(
                f"The key id {key_id!r} must be 1 to 32 letters, digits, hyphens or underscores."
            )
        if len(secret) < _MIN_SECRET:
            raise ConfigurationError(
                f"The secret {key_id!r} must have {_MIN_SECRET} bytes or more, made at random."
            )


def _pointers(names: Iterable[str]) -> tuple[Pointer, ...]:
    return tuple(sorted({parse_pointer(name) for name in names}))


def _listed(pointers: Iterable[Pointer]) -> str:
    return json.dumps([write_pointer(pointer) for pointer in pointers], separators=(",", ":"))


# --- the fields that are included or left out: names and JSON Pointers (RFC 6901)

_BAD_ESCAPE = re.compile(r"~(?![01])")
_INDEX = re.compile(r"0|[1-9][0-9]{0,9}")


def parse_pointer(text: str) -> Pointer:
    """The steps down to a field: `/a/b` is a pointer, a plain name a top-level member."""
    if not text:
        raise ConfigurationError("A field name must not be empty.")
    if text.startswith("$."):
        raise ConfigurationError(
            f"{text!r} is a JSONPath: write a JSON Pointer, such as /meta/idempotency_key"
        )
    if not text.startswith("/"):
        return (text,)
    if _BAD_ESCAPE.search(text):
        raise ConfigurationError(f"{text!r} is not a JSON Pointer: write ~ as ~0 and / as ~1.")
    # The order matters: ~01 is ~1, not / (RFC 6901 4).
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in text[1:].split("/"))


def write_pointer(pointer: Pointer) -> str:
    """The one spelling of a pointer; a plain name becomes one too."""
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in pointer)


def _prune(
    included: tuple[Pointer, ...] | None, excluded: tuple[Pointer, ...], value: Value
) -> Value:
    """What counts of a JSON value, which is changed in place.

    Of the included fields that are there, an object is made, each under its pointer.
    """
    for *steps, last in excluded:
        for parent in resolve(value, steps):
            if isinstance(parent, dict):
                parent.pop(last, None)
            elif isinstance(parent, list) and (index := _index(parent, last)) is not None:
                parent[index] = None  # deleting it would shift the elements that follow
    if included is None:
        return value
    picked: dict[str, Value] = {}
    for pointer in included:
        # A top-level member keeps its name, for people; one that looks like a pointer does not.
        plain = len(pointer) == 1 and not pointer[0].startswith("/")
        for found in resolve(value, pointer):
            picked[pointer[0] if plain else write_pointer(pointer)] = found
    return picked


def resolve(value: Value, steps: Iterable[str]) -> tuple[Value, ...]:
    """What the steps lead to, or nothing: null is a value."""
    for step in steps:
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and (index := _index(value, step)) is not None:
            value = value[index]
        else:
            return ()
    return (value,)


def is_index(step: str) -> bool:
    """Whether a step may lead into an array."""
    return _INDEX.fullmatch(step) is not None


def _index(items: list[Value], step: str) -> int | None:
    index = int(step) if is_index(step) else len(items)
    return index if index < len(items) else None


# --- the fingerprint


@value
class Fingerprint:
    """`text` is what a record keeps; `fields` tell the first named fields apart.

    There they are in the order of their names, each as its canonical octets, or the digest of many
    of them; one more than are kept shows that there were more.
    """

    text: str
    fields: Mapping[str, bytes]
    kind: Kind
    digest: bytes


class _Content(NamedTuple):
    kind: Kind
    media: str
    encoding: str
    body: bytes | Iterable[bytes]
    fields: Mapping[str, bytes]


class Frame(NamedTuple):
    """What is hashed before a body: the same for all requests to one address in one media type."""

    before_json: bytes
    """Before its canonical form; empty where it is not read as JSON."""
    before_bytes: bytes
    """Before the body as it came."""


def fingerprint(
    request: Request,
    body: bytes | Iterable[bytes],
    recipe: FingerprintRule,
    frame: Frame | None = None,
) -> Fingerprint:
    """The fingerprint of a request under a recipe; the same wherever and with whatever it runs.

    The body is read once, and not joined where it is raw. ``frame``: `frame_of` the request.
    """
    if recipe.plain and type(body) is bytes and len(body) <= _LONG_FIELD:
        frame = frame or frame_of(request)
        # A small body in JSON, under no rule of its own: as most are, and in as few steps.
        usual = usual_form(body) if frame.before_json else None
        if usual is not None and len(usual.members) <= MAX_FIELDS:
            data, members = usual
            digest = sha256(b"%b%b\n%d" % (frame.before_json, data, len(data))).digest()
            return Fingerprint(_text("json", "", digest, None), members, "json", digest)
    if recipe.by is None:
        content, query = _content(request, body, recipe), request.query
    else:
        # Query and media type are left out too: the function sees them and decides.
        chosen: object = recipe.by(request, body if isinstance(body, bytes) else b"".join(body))
        if not isinstance(chosen, bytes):
            found = type(chosen).__name__
            raise TypeError(f"The function given as by= returned {found}, not bytes.")
        content, query = _Content("by", "", "", chosen, {}), b""
    digest = _digest(request.method, request.escaped or request.path, query, content)
    key_id, secret = recipe.secrets[0] if recipe.secrets else ("", None)
    text = _text(content.kind, key_id, digest, secret)
    return Fingerprint(text, _first(content.fields), content.kind, digest)


def frame_of(request: Request) -> Frame:
    headers, path, query = request.headers, request.escaped or request.path, request.query
    kind = headers.first.get(b"content-type", b"")
    usual = not headers.repeated and b"content-encoding" not in headers.first
    # Long or random ones would only fill the cache.
    if usual and b"boundary" not in kind and len(path) + len(query) + len(kind) <= 256:
        return _usual_frame(request.method, path, query, kind.decode("latin-1"))
    coding = headers.joined(b"content-encoding")
    return _frame(request.method, path, query, headers.joined(b"content-type"), coding)


def _frame(
    method: str, path: str, query: bytes, kind: str | None, coding: str | None = None
) -> Frame:
    media, said = media_type(kind), query.decode("latin-1")
    before_json = b""
    if media.reader == "json" and coding is None:
        before_json = _head("json", (method, path, media.text, ""), query)
    sent = (method, path, kind or "", coding or "", said)
    before_bytes = "".join([*(f"{len(part)}\n" for part in sent), *sent])
    return Frame(before_json, before_bytes.encode("utf-8", "surrogatepass"))


_usual_frame = lru_cache(512)(_frame)


def _first(fields: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Few and short: a body may have a million fields, or one of megabytes."""
    if len(fields) <= MAX_FIELDS and max(map(len, fields.values()), default=0) <= _LONG_FIELD:
        return fields
    first = dict(islice(fields.items(), MAX_FIELDS + 1))
    for name, octets in first.items():
        if len(octets) > _LONG_FIELD:
            first[name] = sha256(octets).digest()
    return first


def _content(request: Request, body: bytes | Iterable[bytes], recipe: FingerprintRule) -> _Content:
    headers, encoding = request.headers, ""
    media = media_type(headers.joined(b"content-type"))
    if b"content-encoding" in headers.first:
        encoding = (headers.joined(b"content-encoding") or "").strip().lower()
    if encoding == "identity":
        encoding = ""
    if encoding or media.reader == "raw":
        # Not decoded: nobody here inflates a body before the application has agreed to its size.
        return _Content("raw", media.unread, encoding, body, {})
    body = body if isinstance(body, bytes) else b"".join(body)
    if media.reader != "json":
        read = _form(body, media, recipe)
    elif (canonical := canonicalise(body, recipe._prune)) is not None:
        read = _Content("json", media.text, "", *canonical)
    else:
        read = None
    return read or _Content("raw", media.unread, "", body, {})


def _form(body: bytes, media: Media, recipe: FingerprintRule) -> _Content | None:
    kind: Kind = "multipart" if media.reader == "multipart" else "form"
    read = read_urlencoded(body) if kind == "form" else read_multipart(body, media.boundary)
    if read is None:
        return None
    # Forms are flat: a pointer that leads deeper is meant for JSON and names nothing here.
    kept = read.fields.copy()
    if recipe._included is not None:
        included = {step.encode() for step, *deeper in recipe._included if not deeper}
        kept = {name: text for name, text in kept.items() if name in included}
    for step, *deeper in recipe._excluded:
        if not deeper:
            kept.pop(step.encode(), None)
    fields: dict[str, bytes] = {}
    for octets, text in kept.items():
        if octets not in read.nameless:
            name = octets.decode("utf-8", "backslashreplace")
            fields[name] = fields.get(name, b"") + text
    return _Content(kind, media.text, "", kept.values(), fields)


def _digest(method: str, path: str, query: bytes, content: _Content) -> bytes:
    """SHA-256 over a line of lengths, the parts, the body, and its length: it may be a stream.

    The lengths say where each part ends, so no two meanings give the same octets.
    """
    kind, media, encoding, body, _ = content
    hashed, length = sha256(_head(kind, (method, path, media, encoding), query)), 0
    for chunk in (body,) if isinstance(body, bytes) else body:
        hashed.update(chunk)
        length += len(chunk)
    hashed.update(b"\n%d" % length)
    return hashed.digest()


def _head(kind: Kind, parts: tuple[str, ...], query: bytes) -> bytes:
    lengths = " ".join([str(len(part)) for part in (*parts, query)])
    head = f"semel v1 {kind} {lengths}\n{''.join(parts)}"
    return head.encode("utf-8", "surrogatepass") + query  # headers may hold anything


def _text(kind: str, key_id: str, digest: bytes, secret: bytes | None) -> str:
    if secret is not None:
        digest = hmac_digest(secret, digest, "sha256")
        key_id = f"-{key_id}"
    half = b2a_base64(digest[:16], newline=False).translate(_URL_SAFE)[:22]
    return f"{kind[0]}1{key_id}.{half.decode()}"


_URL_SAFE = bytes.maketrans(b"+/", b"-_")


def matches(stored: str, recipe: FingerprintRule, mine: Fingerprint) -> bool:
    """Whether a stored fingerprint stands for the same meaning as `mine`.

    One sealed under another of the recipe's secrets is compared under that secret. One made before
    there was any secret is compared unsealed: it comes from our own store, and refusing it would
    turn every live key into a misuse on the day a secret is introduced.
    """
    if _same(stored, mine.text):
        return True
    made = stored.partition(".")[0]
    secrets: dict[str, tuple[str, bytes | None]] = {
        f"-{key_id}": (key_id, secret) for key_id, secret in recipe.secrets
    }
    secrets[""] = ("", None)
    if made[:2] != f"{mine.kind[0]}1" or made[2:] not in secrets:
        return False
    key_id, secret = secrets[made[2:]]
    return _same(stored, _text(mine.kind, key_id, mine.digest, secret))


_KINDS: dict[str, Kind] = {"j": "json", "f": "form", "m": "multipart", "r": "raw", "b": "by"}


def label(stored: str) -> str:
    """How a stored fingerprint was made, for people: version, kind and seal, without the digest."""
    made = stored.partition(".")[0]
    kind, version, key_id = _KINDS.get(made[:1], made[:1]), made[1:2], made[3:]
    return f"v{version}.{kind}.{f'hmac-{key_id}' if key_id else 'sha256'}" if made else ""


def _same(stored: str, mine: str) -> bool:
    return compare_digest(stored.encode("utf-8", "surrogatepass"), mine.encode())
