"""Signatures: the published vector, and everything that must not pass."""

from __future__ import annotations

import base64
from datetime import timedelta

import pytest

from semel.errors import ConfigurationError
from semel.outbox.signatures import secret, secrets, sign, verify

# Published with the specification: https://www.standardwebhooks.com
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
MESSAGE = "msg_p5jXN8AQM9LWM0D4loKWxJek"
SENT_AT = 1_614_265_330
BODY = b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="

OTHER = "whsec_" + base64.b64encode(b"another secret of enough bytes").decode()


def checked(
    *,
    given: str | tuple[str, ...] = SECRET,
    message: str = MESSAGE,
    timestamp: str = str(SENT_AT),
    signature: str = SIGNATURE,
    body: bytes = BODY,
    now: float = SENT_AT,
) -> str | None:
    return verify(secrets(given), message, timestamp, signature, body, now=now)


def test_the_published_vector_is_signed_and_verified() -> None:
    assert sign(secrets(SECRET), MESSAGE, SENT_AT, BODY) == SIGNATURE
    assert checked() is None


def test_while_secrets_are_exchanged_each_signs_and_each_verifies() -> None:
    both = sign(secrets((OTHER, SECRET)), MESSAGE, SENT_AT, BODY)
    assert both.split(" ")[1] == SIGNATURE
    assert checked(signature=both) is None
    assert checked(signature=both, given=OTHER) is None
    assert checked(given=(OTHER, SECRET)) is None


@pytest.mark.parametrize(
    "change",
    [
        {"message": "msg_other"},
        {"body": BODY + b" "},
        {"timestamp": str(SENT_AT + 1)},
        {"given": OTHER},
        {"signature": SIGNATURE.replace("g0h", "g0i")},
        {"signature": SIGNATURE.replace("v1,", "v2,")},
        {"signature": SIGNATURE.removeprefix("v1,")},
        {"signature": "v1,"},
        {"signature": "v1,\udcff"},
        {"signature": " ".join(["v1,AAAA"] * 16 + [SIGNATURE])},
    ],
)
def test_what_was_changed_does_not_pass(change: dict[str, str]) -> None:
    assert checked(**change) == "no signature fits"  # type: ignore[arg-type]


@pytest.mark.parametrize("missing", ["message", "timestamp", "signature"])
def test_every_header_is_needed(missing: str) -> None:
    assert checked(**{missing: ""}) == "a header of the signature is missing"  # type: ignore[arg-type]


@pytest.mark.parametrize("timestamp", ["yesterday", "1e9", "-1", "١", "9" * 13, "1 "])
def test_a_timestamp_is_a_plain_number(timestamp: str) -> None:
    assert checked(timestamp=timestamp) == "the timestamp is no number"


@pytest.mark.parametrize(
    ("off", "passes"), [(-300, True), (300, True), (-301, False), (301, False)]
)
def test_a_message_is_from_about_now(off: int, passes: bool) -> None:
    verdict = checked(now=SENT_AT + off)
    assert verdict == (None if passes else "the timestamp is too far from now")


def test_the_tolerance_can_be_chosen() -> None:
    late = {"now": SENT_AT + 600.0, "tolerance": timedelta(minutes=10)}
    given = (secrets(SECRET), MESSAGE, str(SENT_AT), SIGNATURE, BODY)
    assert verify(*given, **late) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["", "hunter2", "whsec_", "whsec_?", "whsec_AAAA", b"too short"])
def test_a_secret_that_is_none_is_refused(wrong: str | bytes) -> None:
    with pytest.raises(ConfigurationError):
        secret(wrong)


def test_a_refused_secret_is_not_repeated_in_the_message() -> None:
    with pytest.raises(ConfigurationError) as caught:
        secret("hunter2-hunter2-hunter2-hunter2")
    assert "hunter2" not in str(caught.value)


def test_no_secret_at_all_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        secrets(())


def test_a_secret_may_be_given_as_bytes() -> None:
    assert secret(base64.b64decode(SECRET.removeprefix("whsec_"))) == secret(SECRET)
