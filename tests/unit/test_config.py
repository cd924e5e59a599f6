"""Settings: the environment wins over the file, and what is not known is an error."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

import semel
from semel.config import Settings, load

FILE = """
store = "memory://"
max_waiters = 3
drain = "1.5m"
name = "shop"
migrate = false

[policy]
kind = "stripe"
retention = "7d"
required = true
methods = ["POST", "PUT"]
fingerprint = { exclude = ["sent_at"] }

[[routes]]
path = "/payments"
policy = { kind = "payments", in_flight = "wait", wait = "250ms", key = "uuid" }

[[routes]]
method = "put"
path = "/orders/{id}"
policy = { kind = "ietf", methods = ["PUT"] }

[secrets]
2026-01 = "sixteen random bytes or more"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shop.toml"
    path.write_text(FILE)
    return path


def test_without_any_settings_the_defaults_are_those_of_the_guard(tmp_path: Path) -> None:
    empty = tmp_path / "empty.toml"
    empty.touch()
    assert load(empty, {}) == Settings()


def test_a_file_says_everything_that_needs_no_code(file: Path) -> None:
    settings = load(file, {})
    assert (settings.store, settings.max_waiters, settings.name) == ("memory://", 3, "shop")
    assert settings.drain == timedelta(seconds=90)
    assert settings.policy == semel.stripe(
        retention=timedelta(days=7),
        required=True,
        methods=("POST", "PUT"),
        fingerprint=semel.FingerprintRule(exclude=("sent_at",)),
    )
    pay, order = settings.routes
    assert (pay.method, pay.path, pay.policy.name) == ("POST", "/payments", "payments")
    assert pay.policy.wait == timedelta(milliseconds=250)
    assert (order.method, order.policy.name) == ("PUT", "ietf")
    assert list(settings.secrets or ()) == ["2026-01"]
    assert "sixteen" not in repr(settings)


def test_the_environment_wins_and_may_name_the_file(file: Path) -> None:
    environ = {"SEMEL_CONFIG": str(file), "SEMEL_NAME": "other", "SEMEL_DRAIN": "2s"}
    settings = load(None, environ)
    assert (settings.name, settings.drain) == ("other", timedelta(seconds=2))
    assert settings.store == "memory://"


def test_a_guard_is_made_of_them_and_code_wins(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMEL_MAX_WAITERS", "5")
    guard = semel.Guard.from_settings(tenant=None, path=file, name="mine")
    assert (guard.runtime.max_waiters, guard.name, guard.policy.name) == (5, "mine", "stripe")
    assert guard.policy.fingerprint.secrets == (("2026-01", b"sixteen random bytes or more"),)
    assert len(guard.routes) == 2


@pytest.mark.parametrize(("said", "micros"), [("5s", 5_000_000), ("off", None)])
def test_a_replay_window_can_be_set_without_code(
    file: Path, monkeypatch: pytest.MonkeyPatch, said: str, micros: int | None
) -> None:
    monkeypatch.setenv("SEMEL_REPLAY_CACHE", said)
    replays = semel.Guard.from_settings(tenant=None, path=file).runtime.replays
    assert (None if replays is None else replays.window) == micros


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stor = 'x'", "did you mean 'store'"),
        ("store = 5", "must be text"),
        ("migrate = 'maybe'", "on or off"),
        ("max_waiters = -1", "whole number"),
        ("drain = 30", "such as '30s'"),
        ("drain = '30 parsecs'", "such as '30s'"),
        ("policy = 'strict'", "is not one of ietf, stripe, acp, accepted, payments"),
        ("policy = 5", "must be a table"),
        ("policy = { retension = '1d' }", "did you mean 'retention'"),
        ("policy = { on_replay = 'x' }", "takes a function"),
        ("policy = { retention = 60 }", "such as '30s'"),
        ("policy = { after_lapse = 'release' }", "effects="),
        ("policy = { fingerprint = { by = 'x' } }", "is not a setting"),
        ("routes = 5", "must be a list"),
        ("[[routes]]\npath = '/a'", "needs a path and a policy"),
        ("[[routes]]\npath = 'a'\npolicy = 'ietf'", "start with '/'"),
        ("[[routes]]\npath = '/a'\npolicy = 'ietf'\nverb = 'POST'", "is not a setting"),
        ("secrets = 'x'", "must be a table"),
        ("store = ", "is not TOML"),
    ],
)
def test_a_wrong_setting_is_told_in_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(semel.ConfigurationError) as refused:
        load(path, {})
    assert said in str(refused.value)


def test_where_traces_are_found_can_be_set_without_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "traces.toml"
    path.write_text("store = 'memory://'\ntrace_url = 'https://file.example/{identity}'")
    made = semel.Guard.from_settings(tenant=None, path=path)
    assert made.trace_link is not None
    assert made.trace_link.template == "https://file.example/{identity}"
    monkeypatch.setenv("SEMEL_TRACE_URL", "javascript:alert({identity})")
    with pytest.raises(semel.ConfigurationError, match="https://"):
        semel.Guard.from_settings(tenant=None, path=path)


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"SEMEL_STROE": "x"}, "did you mean 'store'"),
        ({"SEMEL_MAX_WAITERS": "many"}, "whole number"),
        ({"SEMEL_MIGRATE": "maybe"}, "on or off"),
        ({"SEMEL_CONFIG": "/nowhere/semel.toml"}, "cannot be read"),
    ],
)
def test_a_wrong_variable_is_told_in_one_sentence(environ: dict[str, str], said: str) -> None:
    with pytest.raises(semel.ConfigurationError) as refused:
        load(None, environ)
    assert said in str(refused.value)


KEY = "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE="


def test_keys_for_encryption_come_from_the_file_or_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "shop.toml"
    path.write_text(
        '[encryption]\ncurrent = "b"\naccept_plain = true\n\n'
        f'[encryption.keys]\na = "{KEY}"\nb = "{KEY}"\n'
    )
    said = load(path, {}).encryption
    assert said is not None
    assert (said.key_ids, said.current, said.accept_plain) == (("a", "b"), "b", True)
    said = load(path, {"SEMEL_ENCRYPTION": f"c:{KEY}, a:{KEY}"}).encryption
    assert said is not None
    assert (said.key_ids, said.current, said.accept_plain) == (("c", "a"), "c", False)
    said = load(path, {"SEMEL_ENCRYPTION": f"c:{KEY},accept_plain"}).encryption
    assert said is not None
    assert said.accept_plain
    assert KEY not in repr(load(path, {}))


@pytest.mark.parametrize(
    "table",
    [
        'keys = { a = "KEY" }',
        'current = "a"',
        'current = "a"\nkeys = { a = 7 }',
        'current = "a"\nkeys = { a = "short" }',
        'current = "a"\nkeys = { a = "KEY" }\nplain = true',
    ],
)
def test_keys_for_encryption_that_cannot_be_used_are_refused(table: str, tmp_path: Path) -> None:
    path = tmp_path / "shop.toml"
    path.write_text("[encryption]\n" + table.replace("KEY", KEY))
    with pytest.raises(semel.ConfigurationError) as refused:
        load(path, {})
    assert KEY not in str(refused.value)
    assert "short" not in str(refused.value)


def test_limits_and_breaker_are_read(tmp_path: Path) -> None:
    file = tmp_path / "semel.toml"
    file.write_text(
        'breaker = "off"\n[limits]\nnew_keys = "50/s"\nlookups = "10/5m"\nactive_keys = 9\n'
    )
    settings = load(file, {})
    minutes = semel.Rate(10, timedelta(minutes=5))
    assert settings.limits == semel.Limits(semel.Rate(50), minutes, 9)
    assert settings.breaker is None
    assert load(None, {"SEMEL_BREAKER": "3s"}).breaker == timedelta(seconds=3)


@pytest.mark.parametrize(
    "text", ['new_keys = "fast"', "new_keys = 5", 'new_key = "5/s"', 'lookups = "0/s"']
)
def test_limits_that_cannot_be_read_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "semel.toml"
    file.write_text(f"[limits]\n{text}\n")
    with pytest.raises(semel.ConfigurationError):
        load(file, {})


def test_where_keys_come_from_can_be_written_down(tmp_path: Path) -> None:
    file = tmp_path / "semel.toml"
    file.write_text(
        '[policy]\nkey_from = ["X-Key", { body = "/meta/key" }]\npayload_from = "/params"\n'
    )
    policy = load(file).policy
    assert policy == semel.ietf(
        key_from=("X-Key", semel.body("/meta/key")), payload_from=(semel.body("/params"),)
    )
    for wrong in ("5", "{ place = 'x' }", "{ body = 5 }", '"/meta/key"'):
        file.write_text(f"[policy]\nkey_from = {wrong}\n")
        with pytest.raises(semel.ConfigurationError):
            load(file)
