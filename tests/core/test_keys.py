"""Keys: two spellings, one key; and an identity that nothing can merge."""

import base64
import hashlib
import json
import random
import string
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import http_sf
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from semel.core.request.keys import (
    MAX_HEADER_BYTES,
    Malformed,
    Scope,
    canonical_path,
    check_format,
    downstream_key,
    identity,
    looks_like_personal_data,
    mask,
    parse_key,
    usual_key,
    uuid7_milliseconds,
)

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parent / "vectors" / "identity.json").read_text(encoding="ascii")
)
KEY = "8e03978e-40d5-43e8-bc93-6894a57f9324"
V7 = "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"  # the example of RFC 9562 A.6

printable = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=255)


def named(vector: dict[str, Any]) -> str:
    return str(vector["name"])


# --- the header


@pytest.mark.parametrize("vector", VECTORS["headers"], ids=named)
def test_header_vectors(vector: dict[str, Any]) -> None:
    parsed = parse_key([value.encode("latin-1") for value in vector["values"]])
    assert (None if isinstance(parsed, Malformed) else parsed) == vector["key"]


@given(printable)
def test_any_printable_key_survives_quoting(key: str) -> None:
    assert parse_key([http_sf.ser((key, {})).encode()]) == key


@given(printable)
def test_the_bare_form_is_the_same_key_or_refused(key: str) -> None:
    parsed = parse_key([key.encode()])
    plain = not set(key) & set('",;\\ ')
    if plain:
        assert parsed == key == parse_key([f'"{key}"'.encode()])
    elif '"' not in key[:1] and key == key.strip(" "):
        assert isinstance(parsed, Malformed)


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=3), st.booleans())
def test_no_bytes_make_the_parser_raise_and_no_refusal_echoes_them(
    values: list[bytes], strict: bool
) -> None:
    parsed = parse_key(values, strict=strict)
    if isinstance(parsed, Malformed):
        for value in values:
            text = value.decode("latin-1")
            assert len(text) < 24 or text not in parsed.reason
    else:
        assert 1 <= len(parsed) <= 255
        assert parsed.isascii()
        assert parsed.isprintable()


@pytest.mark.parametrize("secret", ["s3cretkey,s3cretkey", '"s3cretkey', "s3cret key", "s3cret\\"])
def test_a_refusal_does_not_contain_the_key(secret: str) -> None:
    parsed = parse_key([secret.encode()])
    assert isinstance(parsed, Malformed)
    assert "s3cret" not in repr(parsed)


@given(printable.map(str.encode) | st.binary(max_size=300))
def test_a_usual_key_is_what_the_long_way_takes_it_for(line: bytes) -> None:
    parsed = parse_key([line]) if line else Malformed("")
    opaque = parsed if isinstance(parsed, Malformed) else check_format(parsed, "opaque")
    if usual_key(line):
        assert opaque == line.decode()
    elif isinstance(opaque, str):
        assert line.strip(b" \t")[:1] == b'"' or line != line.strip(b" \t")


def test_strict_takes_only_the_quoted_form() -> None:
    assert parse_key([f'"{KEY}"'.encode()], strict=True) == KEY
    assert isinstance(parse_key([KEY.encode()], strict=True), Malformed)


def test_a_header_over_the_cap_is_refused_before_it_is_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_sf, "parse", None)  # would raise if it were called
    for size in (MAX_HEADER_BYTES + 1, 65_536):
        assert isinstance(parse_key([b'"' + b"a" * (size - 1)]), Malformed)


def test_parameters_do_not_change_the_key() -> None:
    assert parse_key([f'"{KEY}";v=1;w="x"'.encode()]) == KEY
    assert isinstance(parse_key([f'"{KEY}";'.encode()]), Malformed)


@pytest.mark.parametrize("value", [b":YWJj:x", b"?1", b"42", b"token/x*"])
def test_other_structured_types_are_just_bare_keys(value: bytes) -> None:
    assert parse_key([value]) == value.decode()


def test_no_header_at_all_is_the_callers_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        parse_key([])


# --- formats


@pytest.mark.parametrize(("length", "fine"), [(0, False), (1, True), (255, True), (256, False)])
def test_opaque_keys_have_1_to_255_characters(length: int, fine: bool) -> None:
    key = "k" * length
    assert (check_format(key, "opaque") == key) is fine


@pytest.mark.parametrize(("length", "fine"), [(15, False), (16, True), (255, True), (256, False)])
def test_strong_keys_have_16_to_255_characters(length: int, fine: bool) -> None:
    key = "k" * length
    assert (check_format(key, "strong") == key) is fine


@given(st.uuids(version=4))
def test_uuid_version_4_is_taken_in_lower_case(value: uuid.UUID) -> None:
    assert (
        check_format(str(value).upper(), "uuid") == str(value) == check_format(str(value), "uuid")
    )


@given(st.uuids())
def test_only_versions_4_and_7_with_the_right_variant_are_taken(value: uuid.UUID) -> None:
    fine = value.variant == uuid.RFC_4122 and value.version in (4, 7)
    assert isinstance(check_format(str(value), "uuid"), str) is fine


@pytest.mark.parametrize(
    "key",
    [
        "8e03978e40d543e8bc936894a57f9324",
        "{8e03978e-40d5-43e8-bc93-6894a57f9324}",
        "urn:uuid:8e03978e-40d5-43e8-bc93-6894a57f9324",
        KEY + "\n",
        KEY[:-1],
        "8e03978e-40d5-43e8-cc93-6894a57f9324",  # another variant
        "٨e03978e-40d5-43e8-bc93-6894a57f9324",  # a digit, but not ASCII
        "00000000-0000-0000-0000-000000000000",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
    ],
)
def test_other_spellings_of_a_uuid_are_refused(key: str) -> None:
    assert isinstance(check_format(key, "uuid"), Malformed)


def test_a_callable_decides_and_its_own_errors_surface() -> None:
    assert check_format("ord_1", lambda key: key.startswith("ord_")) == "ord_1"
    assert isinstance(check_format("x", lambda key: False), Malformed)
    with pytest.raises(ZeroDivisionError):
        check_format("x", lambda key: 1 // 0 == 1)


def test_only_version_7_tells_its_age() -> None:
    assert uuid7_milliseconds(V7) == 0x017F22E279B0 == uuid7_milliseconds(V7.upper())
    for key in (KEY, V7.replace("-", ""), V7.replace("7cc3", "1cc3"), V7[:-1] + "g", "", "7" * 36):
        assert uuid7_milliseconds(key) is None


@pytest.mark.parametrize(
    "key",
    [
        "someone@example.org",
        "order-17-someone@mail.example.co.uk",
        "signup:some.one+tag%40example.org:1",
        "+491701234567",
        "order-+49 170 1234567",
        "sms:+1 (555) 123-4567",
        "555-123-4567",
        "(555) 123-4567",
    ],
)
def test_addresses_and_telephone_numbers_are_noticed(key: str) -> None:
    assert looks_like_personal_data(key)


@pytest.mark.parametrize(
    "key",
    [KEY, V7, "2024-01-15-000017", "ord_20240115_00017", "1234567890123456", "a+12345678901=", "@"],
)
def test_ordinary_keys_are_not_taken_for_personal_data(key: str) -> None:
    assert not looks_like_personal_data(key)


@pytest.mark.parametrize(
    "key",
    [
        "4111111111111111",
        "order-4242 4242 4242 4242",
        "pay:5555-5555-5555-4444",
        "2223003122003222",
        "card=378282246310005",
        "card 3782 822463 10005",
        "30569309025904xx"[:14] + ":refund",
        "6011111111111117",
        "DE89370400440532013000",
        "iban:GB29 NWBK 6016 1331 9268 19",
        "payout/FR14-2004-1010-0505-0001-3M02-606",
        "nl91abna0417164300",
        "NO9386011117947",
        "transfer BE68 5390 0754 7034.",
    ],
)
def test_numbers_of_cards_and_accounts_are_seen(key: str) -> None:
    assert looks_like_personal_data(key)


@pytest.mark.parametrize(
    "key",
    [
        "4111111111111112",  # the check digit is wrong
        "DE89370400440532013001",
        "1731715200123456",  # microseconds since 1970
        "41111111111111114111111111111111",
        "x4111111111111111",
        "DE8937040044053201300",  # too short
        "9205590164917312751089",  # a parcel
    ],
)
def test_numbers_that_only_resemble_them_are_not(key: str) -> None:
    assert not looks_like_personal_data(key)


def random_keys(count: int, seed: int) -> Iterator[tuple[str, str]]:
    """Keys as clients make them, by kind."""
    chance = random.Random(seed)
    crockford = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    made = 1_731_715_200_000
    for number in range(count):
        bits = chance.getrandbits(256)
        octets = bits.to_bytes(32, "big")
        yield "uuid4", str(uuid.UUID(bytes=octets[:16], version=4))
        yield "hex uuid", uuid.UUID(bytes=octets[:16], version=4).hex
        yield "ulid", "01" + "".join(chance.choices(crockford, k=24))
        yield "sha256", octets.hex()
        yield "objectid", f"{made // 1000:08x}{octets[:8].hex()}"
        yield "base64", base64.urlsafe_b64encode(octets[:24]).decode()
        yield "nanoid", "".join(chance.choices(string.ascii_letters + string.digits + "_-", k=21))
        yield "snowflake", str((made - 1_288_834_974_657 + number) << 22 | bits & 0x3FFFFF)
        yield "stamped", f"ord_{made + number}_{bits & 0xFFFF}"
        yield "base36", "".join(chance.choices(string.ascii_uppercase + string.digits, k=22))


@pytest.mark.parametrize("count", [3_000, pytest.param(100_000, marks=pytest.mark.proof)])
def test_of_random_keys_hardly_one_is_taken_for_personal_data(count: int) -> None:
    wrong = Counter(kind for kind, key in random_keys(count, 7) if looks_like_personal_data(key))
    assert max(wrong.values(), default=0) <= 2 + count // 20_000, wrong


@given(st.uuids())
def test_no_uuid_looks_like_personal_data(value: uuid.UUID) -> None:
    assert not looks_like_personal_data(str(value))


@given(printable)
def test_a_masked_key_shows_four_characters_at_most(key: str) -> None:
    shown = mask(key)
    assert shown == (f"{key[:4]}...({len(key)})" if len(key) >= 16 else "...")


# --- identity

EPOCH = 1_700_000_000_000_000


@pytest.mark.parametrize("vector", VECTORS["paths"], ids=named)
def test_path_vectors(vector: dict[str, str]) -> None:
    assert canonical_path(bytes.fromhex(vector["decoded_hex"])) == vector["canonical"]


@given(st.binary(), st.binary())
def test_only_equal_paths_have_equal_canonical_forms(one: bytes, other: bytes) -> None:
    assume((one or b"/") != (other or b"/"))
    assert canonical_path(one) != canonical_path(other)
    assert canonical_path(one).isascii()


@pytest.mark.parametrize("vector", VECTORS["identities"], ids=named)
def test_identity_vectors(vector: dict[str, Any]) -> None:
    scope = Scope(
        *(vector["tenant"], vector["method"], vector["path"], vector["kind"], vector["session"]),
        vector["application"],
    )
    made = identity(scope, vector["key"])
    assert made.hex() == vector["identity"] == by_the_recipe(scope, vector["key"]).hex()
    assert downstream_key(made, EPOCH, "call", "charge") == vector["downstream_key"]


def by_the_recipe(scope: Scope, key: str) -> bytes:
    """`i1` again, written from its description."""
    hashed = hashlib.sha256(b"semel i1\n")
    route = scope.kind == "route"
    session = "" if scope.session is None else "=" + scope.session
    parts = [
        scope.kind.encode(),
        scope.application.encode(),
        scope.tenant.encode(),
        session.encode(),
        scope.method.encode() if route else b"",
        scope.path.encode() if route else b"",
        key.encode(),
    ]
    for part in parts:
        hashed.update(len(part).to_bytes(8, "big"))
    for part in parts:
        hashed.update(part)
    return hashed.digest()


@pytest.mark.parametrize("length", [1, 255, 256, 257, 4096])
def test_what_is_remembered_of_a_scope_changes_no_identity(length: int) -> None:
    path = "/" + "a" * (length - 1)
    for kind in ("route", "tenant"):
        scope = Scope("t", "POST", path, kind)
        for key in ("k" * 16, "k" * 17, "k" * 16):
            assert identity(scope, key) == by_the_recipe(scope, key)


def test_no_two_identity_vectors_share_an_identity() -> None:
    made = [vector["identity"] for vector in VECTORS["identities"]]
    assert len(set(made)) == len(made)


anything = st.text(max_size=8)
scopes = st.builds(
    Scope,
    *(anything, anything, anything, st.sampled_from(["route", "tenant"]), st.none() | anything),
    anything,
)


@given(scopes, scopes, anything, anything)
def test_identities_are_equal_only_for_equal_scope_and_key(
    one: Scope, other: Scope, key: str, another: str
) -> None:
    def counted(scope: Scope) -> tuple[object, ...]:
        where = (scope.method, scope.path) if scope.kind == "route" else ()
        return (scope.kind, scope.application, scope.tenant, scope.session, where)

    same = counted(one) == counted(other) and key == another
    assert (identity(one, key) == identity(other, another)) is same


@given(st.text("ab", max_size=4), st.text("ab", max_size=4), st.text("ab", max_size=4))
def test_moving_a_border_between_parts_changes_the_identity(a: str, b: str, c: str) -> None:
    assume(b)
    assert identity(Scope(a + b, c, "/"), "k") != identity(Scope(a, b + c, "/"), "k")
    assert identity(Scope(a, b, c), "k") != identity(Scope(a, "", b + c), "k")


def test_tenant_scope_leaves_method_and_path_out() -> None:
    one = identity(Scope("t", "POST", "/a", "tenant"), KEY)
    assert one == identity(Scope("t", "PATCH", "/b", "tenant"), KEY)
    assert one != identity(Scope("t", "", "", "route"), KEY)


def test_a_stray_surrogate_in_a_tenant_is_not_an_error() -> None:
    assert len(identity(Scope("\ud800", "POST", "/"), KEY)) == 32


def test_a_downstream_key_is_stable_named_and_says_nothing() -> None:
    made = identity(Scope("t", "POST", "/"), KEY)
    charge = downstream_key(made, EPOCH, "call", "charge")
    assert charge == downstream_key(made, EPOCH, "call", "charge")
    assert charge != downstream_key(made, EPOCH, "call", "refund")
    assert len(charge) == 46
    assert made.hex()[:16] not in charge


def test_a_keys_second_life_and_an_effect_of_the_same_name_have_keys_of_their_own() -> None:
    made = identity(Scope("t", "POST", "/"), KEY)
    first = downstream_key(made, EPOCH, "call", "charge")
    assert first != downstream_key(made, EPOCH + 1, "call", "charge")
    assert first != downstream_key(made, EPOCH, "effect", "charge")


@pytest.mark.parametrize(("octets", "name"), [(b"x" * 32, ""), (b"x" * 31, "charge"), (b"", "a")])
def test_a_downstream_key_needs_an_identity_and_a_name(octets: bytes, name: str) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        downstream_key(octets, EPOCH, "call", name)
