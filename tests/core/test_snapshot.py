"""What is stored comes out byte for byte, or not at all."""

from __future__ import annotations

import os
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.core.records import Headers
from semel.core.recovery import journal
from semel.core.stored import requests
from semel.core.stored.snapshot import (
    _LINES,
    COMPRESS_OVER,
    Snapshot,
    decode,
    decode_whole,
    encode,
    encode_whole,
)
from semel.errors import SchemaTooNew, StoreCorrupt

SNAPSHOTS = st.builds(
    Snapshot,
    status=st.integers(100, 999),
    headers=st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=200))).map(tuple),
    body=st.none() | st.binary(max_size=2000),
    size=st.integers(0, 2**63),
    digest=st.sampled_from([b"", b"d" * 32]),
    whole=st.booleans(),
    open=st.booleans(),
    schema_version=st.none() | st.text(max_size=20),
    shadow=st.booleans(),
)


@given(SNAPSHOTS)
def test_a_snapshot_comes_out_as_it_went_in(snapshot: Snapshot) -> None:
    assert decode(encode(snapshot)) == snapshot


@pytest.mark.parametrize(
    "headers",
    [
        (*_LINES, (b"content-type", b"image/png"), (b"location", b"/payments/1")),
        (
            (b"n" * 252, b"v" * 252),
            (b"n" * 253, b"v" * 253),
            (b"n" * 254, b"v" * 254),
            (b"n" * 255, b"v" * 256),
        ),
        ((b"", b""), (b"x", b"v" * 70_000), (b"date", b"")),
        ((b"Content-Type", b"text/html"),),
        tuple((b"set-cookie", b"%d" % n) for n in range(5000)),
    ],
    ids=["usual", "around one byte", "longer than two bytes", "another case", "many"],
)
def test_headers_of_any_length_come_out_as_they_went_in(headers: Headers) -> None:
    assert decode(encode(Snapshot(201, headers, b"body", 4))).headers == headers
    blob = encode_whole(201, headers, b"body")
    assert decode(blob) == Snapshot(201, headers, b"body", 4)
    assert decode_whole(blob) in ((201, headers, b"body"), None)


def test_a_usual_answer_has_a_short_head() -> None:
    blob = encode_whole(201, ((b"content-type", b"application/json"),), b"body")
    assert len(blob) == 19 + 2 + len(b"body")
    assert decode_whole(blob) == (201, ((b"content-type", b"application/json"),), b"body")


@pytest.mark.parametrize("body", [b"a" * (COMPRESS_OVER + 1), os.urandom(COMPRESS_OVER + 1)])
def test_a_large_body_is_packed_and_comes_out_byte_for_byte(body: bytes) -> None:
    blob = encode(Snapshot(200, (), body))
    assert decode(blob).body == body
    assert len(blob) <= len(body) + 100


@given(SNAPSHOTS, st.data())
def test_a_flipped_bit_is_a_refusal_never_another_answer(
    snapshot: Snapshot, data: st.DataObject
) -> None:
    blob = bytearray(encode(snapshot))
    at = data.draw(st.integers(0, len(blob) - 1))
    blob[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises((StoreCorrupt, SchemaTooNew)):
        decode(bytes(blob))


def test_what_a_newer_semel_wrote_is_called_so_and_never_guessed_at() -> None:
    """A flag that is not known here may say how the body is packed."""
    blob = encode(Snapshot(200, (), b"paid"))
    with pytest.raises(SchemaTooNew, match="upgrade"):
        decode(b"S2" + blob[2:])
    flags, rest = blob[2] | 128, blob[15:]
    checksum = sha256(bytes((flags,)) + rest).digest()[:12]
    with pytest.raises(SchemaTooNew, match="upgrade"):
        decode(b"S1" + bytes((flags,)) + checksum + rest)
    for decoder, kind in ((requests.decode, b"Q2"), (journal.decode, b"J2"), (decode, b"E2")):
        with pytest.raises(SchemaTooNew, match="upgrade"):
            decoder(kind + bytes(40))


@given(st.binary(max_size=300))
def test_garbage_is_a_refusal(blob: bytes) -> None:
    with pytest.raises((StoreCorrupt, SchemaTooNew)):
        decode(blob)


@given(SNAPSHOTS, st.data())
def test_a_truncated_snapshot_is_a_refusal(snapshot: Snapshot, data: st.DataObject) -> None:
    blob = encode(snapshot)
    with pytest.raises(StoreCorrupt):
        decode(blob[: data.draw(st.integers(0, len(blob) - 1))])
