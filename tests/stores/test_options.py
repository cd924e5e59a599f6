"""Options are read alike wherever they are written: in URLs, keywords, variables and the file."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from semel.config import load
from semel.errors import ConfigurationError
from semel.stores.mysql.settings import parse as mysql
from semel.stores.options import duration, seconds
from semel.stores.postgres.settings import parse as postgres
from semel.stores.redis.settings import parse as redis
from semel.stores.sqlite import SqliteBackend

ON, OFF = ("on", "ON", "yes", "true", "True", "1"), ("off", "no", "NO", "false", "0")


def sqlite(word: object) -> bool:
    return SqliteBackend(f"sqlite:///x.db?foreign_keys={word}")._transactions._foreign_keys


def in_a_file(word: object) -> bool:
    path = Path("semel.toml")
    path.write_text(f'migrate = "{word}"\n')
    return load(path, {}).migrate


PLACES: dict[str, Callable[[object], Any]] = {
    "sqlite": sqlite,
    "postgresql": lambda word: postgres(f"postgresql://u@h/d?migrate={word}", {}).migrate,
    "mysql": lambda word: mysql(f"mysql://u@h/d?migrate={word}", {}).migrate,
    "redis": lambda word: redis(f"redis://h?allow_eviction={word}", {}).allow_eviction,
    "a keyword": lambda word: redis("redis://h", {"tls": word}).tls,
    "the environment": lambda word: load(Path("none.toml"), {"SEMEL_MIGRATE": str(word)}).migrate,
    "the file": in_a_file,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("none.toml").write_text("")


@pytest.mark.parametrize("place", PLACES)
def test_a_word_for_on_or_off_means_the_same_everywhere(place: str) -> None:
    assert [PLACES[place](word) for word in (*ON, *OFF)] == [True] * len(ON) + [False] * len(OFF)
    for word in ("maybe", "", "2", "onn"):
        with pytest.raises(ConfigurationError, match="must be on or off"):
            PLACES[place](word)


@pytest.mark.parametrize("place", ["sqlite", "postgresql", "mysql", "redis"])
@pytest.mark.parametrize(
    ("text", "value"), [("7", 7.0), ("0.5", 0.5), ("500ms", 0.5), ("2m", 120.0), ("7s", 7.0)]
)
def test_a_timeout_is_seconds_or_has_its_unit(place: str, text: str, value: float) -> None:
    query = f"?timeout={text}"
    read: dict[str, Callable[[], float]] = {
        "sqlite": lambda: SqliteBackend(f"sqlite:///x.db{query}").timeout,
        "postgresql": lambda: postgres(f"postgresql://u@h/d{query}", {}).timeout,
        "mysql": lambda: mysql(f"mysql://u@h/d{query}", {}).timeout,
        "redis": lambda: redis(f"redis://h{query}", {}).timeout,
    }
    assert read[place]() == value


def test_a_keyword_wins_over_the_url_in_every_store() -> None:
    assert SqliteBackend("sqlite:///x.db?timeout=7", timeout=9).timeout == 9
    assert postgres("postgresql://u@h/d?timeout=7", {"timeout": 9}).timeout == 9
    assert mysql("mysql://u@h/d?timeout=7", {"timeout": 9}).timeout == 9
    assert redis("redis://h?timeout=7", {"timeout": 9}).timeout == 9


@pytest.mark.parametrize("off", ["off", "no", "false", "0"])
def test_what_can_be_switched_off_takes_every_word_for_it(off: str) -> None:
    assert load(Path("none.toml"), {"SEMEL_MAINTENANCE": off}).maintenance is None
    Path("semel.toml").write_text("breaker = false\n")
    assert load(Path("semel.toml"), {}).breaker is None


@pytest.mark.parametrize("text", ["9" * 400 + "d", "nan", "inf", "-1s", "1 week", "", "1e400"])
def test_a_duration_that_is_none_is_refused_in_a_sentence(text: str) -> None:
    for read in (duration, seconds):
        with pytest.raises(ConfigurationError, match="timeout must be a duration"):
            read("timeout", text)
    assert duration("timeout", "1.5h") == timedelta(minutes=90)
