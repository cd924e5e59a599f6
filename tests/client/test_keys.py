"""Keys are UUIDs of version 7, each larger than the last; callers' own are checked before use."""

from __future__ import annotations

import subprocess
import sys
import threading
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.client import new_key
from semel.client.keys import KeyMaker, checked, header_value
from semel.core.request.keys import check_format, parse_key, uuid7_milliseconds
from semel.errors import ConfigurationError


@given(st.lists(st.integers(0, 5), min_size=2, max_size=50), st.binary(min_size=10, max_size=10))
def test_keys_grow_even_when_the_clock_stands_still_or_goes_back(
    steps: list[int], tail: bytes
) -> None:
    moments = iter([1_000_000 - step for step in steps])
    make = KeyMaker(lambda: next(moments), lambda size: tail[:size])
    made = [make() for _ in steps]
    assert made == sorted(set(made))
    assert all(check_format(key, "uuid") == key and UUID(key).version == 7 for key in made)


def test_a_tail_that_is_full_goes_over_into_the_next_millisecond() -> None:
    make = KeyMaker(lambda: 5, lambda size: b"\xff" * size)
    made = [make()]
    make._last = (5, (1 << 74) - 1)
    made.append(make())
    assert [uuid7_milliseconds(key) for key in made] == [5, 6]


def test_a_key_says_when_it_was_made() -> None:
    made = KeyMaker(lambda: 1_700_000_000_123)()
    assert uuid7_milliseconds(made) == 1_700_000_000_123


def test_threads_never_get_the_same_key() -> None:
    made: list[str] = []

    def make() -> None:
        made.extend([new_key() for _ in range(500)])

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 2000


def test_a_forked_child_makes_other_keys_than_its_parent() -> None:
    script = """
import os
from semel.client import new_key
new_key._milliseconds = lambda: 7
new_key()
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, new_key().encode()); os._exit(0)
os.wait()
print(new_key() != os.read(read, 36).decode())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr


@given(st.text(max_size=300), st.booleans())
def test_a_key_of_ones_own_arrives_as_it_was_given_or_is_refused(key: str, quoted: bool) -> None:
    try:
        value = header_value(checked(key, quoted=quoted), quoted=quoted)
    except ConfigurationError:
        return
    assert parse_key([value.encode("ascii")]) == key


@pytest.mark.parametrize("key", ["", "k" * 256, "two words", "ä" * 16, "a,b", "line\nbreak"])
def test_a_key_that_cannot_travel_bare_is_refused(key: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        checked(key, quoted=False)
    assert not key or key not in str(raised.value)
