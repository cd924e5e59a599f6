"""The view that callables of the operator get of a request's headers."""

from semel.core.records import HeaderView

HEADERS = HeaderView(((b"X-User", b"ann"), (b"x-user", b"bob"), (b"Accept", b"*/*")))


def test_headers_are_found_in_any_case_and_the_first_line_counts() -> None:
    assert HEADERS["x-USER"] == HEADERS.get("X-User") == HEADERS.get("x-user", "eve") == "ann"
    assert HEADERS.all("X-USER") == (b"ann", b"bob")
    assert "ACCEPT" in HEADERS


def test_a_missing_header_is_none_or_the_default() -> None:
    assert HEADERS.get("origin") is None
    assert HEADERS.get("origin", "nowhere") == "nowhere"
    assert "origin" not in HEADERS
    assert dict(HEADERS) == {"x-user": "ann", "accept": "*/*"}
