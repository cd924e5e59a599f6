"""How an answer looks the first time and every time after."""

from __future__ import annotations

import email.utils
import gzip
import random
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.core.exchange import replay
from semel.core.exchange.replay import (
    accepts,
    first_headers,
    kept,
    kept_headers,
    measured,
    repeated,
    replayed,
    secured,
    unhurried,
)
from semel.core.flow import run
from semel.core.operations.handler import Apart
from semel.core.policy import Policy, ietf
from semel.core.records import Headers, Response
from semel.core.stored import snapshot
from semel.core.stored.snapshot import COMPRESS_OVER

POLICY = ietf()


def first(response: Response, policy: Policy, expires_at: int | None) -> Response:
    headers = first_headers(response.headers, policy, expires_at)
    return Response(response.status, headers, response.body)


names = st.sampled_from(
    (
        *(b"content-type", b"X-Thing", b"date", b"Set-Cookie", b"content-length", b"vary"),
        *(b"Cache-Control", b"access-control-allow-origin", b"idempotent-replayed"),
        b"content-encoding",
    )
)
answers = st.builds(
    Response,
    st.sampled_from([200, 201, 204, 304, 402]),
    st.lists(st.tuples(names, st.binary(max_size=8)), max_size=6).map(tuple),
    st.binary(max_size=40) | st.just(b"x" * (COMPRESS_OVER + 1)),
)


@given(answers, st.sampled_from([POLICY, ietf(schema_version="2"), ietf(max_response_body=10)]))
def test_an_answer_is_kept_the_same_in_few_steps_and_in_many(
    response: Response, policy: Policy
) -> None:
    assert secured(response, policy) == snapshot.encode(kept(response, policy))


@given(answers, st.booleans())
def test_an_answer_is_repeated_the_same_in_few_steps_and_in_many(
    response: Response, crossed: bool
) -> None:
    blob = secured(response, POLICY)
    whole, slow = snapshot.decode_whole(blob), snapshot.decode(blob).response()
    assert slow is not None
    if whole is None:
        assert len(response.body) > COMPRESS_OVER
        return
    assert (slow.status, slow.headers, slow.body) == whole
    quick = repeated(whole, POLICY, 1, crossed)
    if quick is None:
        assert any(name == b"content-encoding" for name, _ in response.headers)
        return
    assert quick == replayed(slow, POLICY, 1, None, cross_origin=crossed)


@given(answers, st.data())
def test_a_damaged_answer_is_not_read_in_few_steps(response: Response, data: st.DataObject) -> None:
    blob = secured(response, POLICY)
    at = data.draw(st.integers(0, len(blob) - 1))
    damaged = blob[:at] + bytes((blob[at] ^ data.draw(st.integers(1, 255)),)) + blob[at + 1 :]
    assert snapshot.decode_whole(damaged) is None
    assert snapshot.decode_whole(blob[:at]) is None


def test_connection_cookie_and_date_headers_are_not_kept() -> None:
    headers: Headers = (
        (b"Set-Cookie", b"a=1"),
        (b"Date", b"now"),
        (b"Connection", b"close"),
        (b"Transfer-Encoding", b"chunked"),
        (b"X-Thing", b"1"),
        (b"X-Thing", b"2"),
    )
    assert kept_headers(headers) == ((b"X-Thing", b"1"), (b"X-Thing", b"2"))


def test_the_first_answer_keeps_its_cookie() -> None:
    answer = first(Response(200, ((b"set-cookie", b"a=1"),), b""), POLICY, None)
    assert (b"set-cookie", b"a=1") in answer.headers


def test_first_and_replay_carry_the_same_kept_headers_and_bytes() -> None:
    response = Response(201, ((b"location", b"/1"), (b"x", b"1"), (b"x", b"2")), b"body")
    one = first(response, POLICY, 1_700_000_000_000_000)
    two = replayed(response, POLICY, 1_700_000_000_000_000, None)
    own = {b"idempotent-replayed", b"content-length"}
    assert [h for h in one.headers if h[0] not in own] == [
        h for h in two.headers if h[0] not in own
    ]
    assert (one.status, one.body) == (two.status, two.body)
    assert dict(one.headers)[b"idempotent-replayed"] == b"false"
    assert dict(two.headers)[b"idempotent-replayed"] == b"true"


@pytest.mark.parametrize("status", [204, 304])
def test_a_status_without_a_body_gets_no_content_length(status: int) -> None:
    answer = replayed(Response(status, (), b""), POLICY, None, None)
    assert b"content-length" not in dict(answer.headers)


def test_an_answer_that_was_rendered_anew_says_its_own_length() -> None:
    stale = Response(200, ((b"Content-Length", b"99"), (b"x", b"1")), b"now")
    assert measured(stale).headers == ((b"x", b"1"), (b"content-length", b"3"))


def test_an_empty_200_says_its_length() -> None:
    answer = replayed(Response(200, (), b""), POLICY, None, None)
    assert dict(answer.headers)[b"content-length"] == b"0"


def test_browsers_may_read_our_headers_where_cors_is_in_use() -> None:
    plain = replayed(Response(200, (), b""), POLICY, None, None)
    assert b"access-control-expose-headers" not in dict(plain.headers)
    inside = Response(200, ((b"access-control-allow-origin", b"*"),), b"")
    for cross in (
        replayed(inside, POLICY, 1, None),
        replayed(Response(200, (), b""), POLICY, 1, None, cross_origin=True),
    ):
        exposed = dict(cross.headers)[b"access-control-expose-headers"]
        for name in (b"idempotent-replayed", b"idempotency-expires", b"retry-after"):
            assert name in exposed


def test_a_handler_cannot_say_for_semel_whether_it_is_a_replay() -> None:
    lying = Response(200, ((b"Idempotent-Replayed", b"maybe"),), b"")
    for answer, said in (
        (first(lying, POLICY, 1), b"false"),
        (replayed(lying, POLICY, 1, None), b"true"),
    ):
        values = [v for k, v in answer.headers if k.lower() == b"idempotent-replayed"]
        assert values == [said]


def test_the_replay_header_has_a_configurable_name() -> None:
    policy = ietf(replay_header="X-Idempotent")
    assert (b"x-idempotent", b"true") in replayed(
        Response(200, (), b""), policy, None, None
    ).headers


@pytest.mark.parametrize("at", [0, 1_700_000_000_999_999, 4_102_444_800_000_000])
def test_dates_are_http_dates(at: int) -> None:
    date = dict(first_headers((), ietf(), at))[b"idempotency-expires"]
    assert date.decode() == email.utils.formatdate(at // 1_000_000, usegmt=True)


@pytest.mark.parametrize(
    ("coding", "pack"), [(b"gzip", gzip.compress), (b"deflate", zlib.compress)]
)
def test_a_coding_the_caller_does_not_take_is_undone(coding: bytes, pack: object) -> None:
    assert callable(pack)
    response = Response(200, ((b"Content-Encoding", coding),), pack(b"plain"))
    undone = replayed(response, POLICY, None, None)
    assert undone.body == b"plain"
    assert b"content-encoding" not in {name.lower() for name, _ in undone.headers}
    assert dict(undone.headers)[b"content-length"] == b"5"
    kept = replayed(response, POLICY, None, "br, GZIP, deflate")
    assert kept.body == response.body


def test_all_members_of_a_coded_body_are_undone() -> None:
    body = gzip.compress(b"one ") + gzip.compress(b"two")
    response = Response(200, ((b"content-encoding", b"gzip"),), body)
    assert replayed(response, POLICY, None, None).body == b"one two"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(gzip.compress(b"plain")[:-1], id="cut short"),
        pytest.param(gzip.compress(b"plain") + b"x", id="followed by something"),
        pytest.param(gzip.compress(b"plain") + gzip.compress(b"more")[:-9], id="second cut short"),
        pytest.param(b"", id="empty"),
    ],
)
def test_a_coded_body_that_is_not_whole_is_left_alone(body: bytes) -> None:
    response = Response(200, ((b"content-encoding", b"gzip"),), body)
    left = replayed(response, POLICY, None, None)
    assert (left.body, dict(left.headers)[b"content-encoding"]) == (body, b"gzip")


@pytest.mark.parametrize("members", [1, 3])
def test_a_few_coded_bytes_do_not_become_more_than_an_answer_may_have(members: int) -> None:
    policy = ietf(max_response_body=3_000)
    for size, undone in ((1_000 * (3 // members), True), (1_000 * (3 // members) + 1, False)):
        body = gzip.compress(b"x" * size) * members
        response = Response(200, ((b"content-encoding", b"gzip"),), body)
        assert (replayed(response, policy, None, None).body != body) is undone


class Counting:
    """zlib, with a count of the bytes that it copies at the ends of members."""

    error = zlib.error

    def __init__(self) -> None:
        self.copied = 0

    def decompressobj(self, window: int) -> Any:
        counting, coder = self, zlib.decompressobj(window)

        class Coder:
            eof = property(lambda _: coder.eof)

            def decompress(self, data: bytes, limit: int) -> bytes:
                return coder.decompress(data, limit)

            @property
            def unused_data(self) -> bytes:
                counting.copied += len(coder.unused_data)
                return coder.unused_data

        return Coder()


def test_at_the_end_of_a_member_not_all_that_follows_is_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a body of many members takes time that grows with its square."""
    monkeypatch.setattr(replay, "zlib", counting := Counting())
    members = [gzip.compress(b"", mtime=0)] * 5_000 + [gzip.compress(b"x" * 9_999)]
    response = Response(200, ((b"content-encoding", b"gzip"),), b"".join(members))
    assert replayed(response, POLICY, None, None).body == b"x" * 9_999
    assert 0 < counting.copied < 5_000 * 2_048


@pytest.mark.parametrize(
    ("size", "coding", "accepted", "apart"),
    [
        (100_000, b"gzip", None, True),
        (100_000, b"gzip", "gzip", False),
        (100_000, b"br", None, False),
        (100, b"gzip", None, False),
    ],
)
def test_what_takes_long_to_decode_is_not_done_in_an_event_loop(
    size: int, coding: bytes, accepted: str | None, apart: bool
) -> None:
    body = gzip.compress(random.Random(1).randbytes(size))
    response = Response(200, ((b"content-encoding", coding),), body)
    flow, asked = unhurried(response, accepted, lambda: "made"), list[object]()

    def perform(op: Any) -> Any:
        asked.append(type(op))
        return op.work()

    assert run(flow, perform) == "made"
    assert asked == [Apart] * apart


def test_a_body_coded_twice_is_left_alone() -> None:
    body = gzip.compress(gzip.compress(b"plain"))
    response = Response(200, ((b"content-encoding", b"gzip"),) * 2, body)
    assert replayed(response, POLICY, None, None).body == body


def test_a_digest_of_the_coded_bytes_does_not_stay_with_the_plain_ones() -> None:
    said = ((b"content-encoding", b"gzip"), (b"Content-Digest", b"sha-256=:AA==:"))
    response = Response(200, said, gzip.compress(b"plain"))
    undone = {name.lower() for name, _ in replayed(response, POLICY, None, None).headers}
    kept = {name.lower() for name, _ in replayed(response, POLICY, None, "gzip").headers}
    assert (b"content-digest" in undone, b"content-digest" in kept) == (False, True)


def test_a_wrongly_labelled_body_is_left_alone() -> None:
    response = Response(200, ((b"content-encoding", b"gzip"),), b"not gzip")
    assert replayed(response, POLICY, None, None).body == b"not gzip"


@pytest.mark.parametrize(
    ("header", "taken"),
    [
        (None, False),
        ("gzip", True),
        ("gzip;q=0", False),
        ("gzip; q=0.0", False),
        ("*", True),
        ("*;q=0", False),
        ("br", False),
        ("", False),
        ("identity, gzip;q=0.5", True),
    ],
)
def test_accept_encoding_is_read_as_rfc_9110_says(header: str | None, taken: bool) -> None:
    assert accepts(header, "gzip") is taken
