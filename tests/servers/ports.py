"""TCP ports on 127.0.0.1 for servers that come and go."""

import fcntl
import os
import random
import socket
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

# Below the range the kernel hands to outgoing connections (32768 up), so that a port stays
# free for its server while that is down between a kill and a restart.
PORTS = range(20_000, 32_000)
_PARTS = 4
_PART = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _PARTS
"""Processes that test side by side do not take from each other what is free for a moment."""


_ours: set[int] = set()
"""Taken by this process, whose locks do not keep it out itself."""


def bound(port: int) -> socket.socket:
    """A socket bound to a port but not listening: connecting to it is still refused."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(("127.0.0.1", port))
    except OSError:
        sock.close()
        raise
    return sock


def bound_somewhere() -> socket.socket:
    """The same on a free port, which stays this process's: no other test session takes it while
    its server is being started, or is down. Random, and not by the generator that Hypothesis sets
    to the same start in each."""
    ports = PORTS[_PART::_PARTS]
    for port in random.SystemRandom().sample(ports, len(ports)):
        if port in _ours:
            continue
        with suppress(OSError):
            fcntl.lockf(_reservations(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            _ours.add(port)
            return bound(port)
    raise OSError(f"no free port in {PORTS}")


@cache
def _reservations() -> int:
    """A file that all sessions of this machine have: each port is the byte of its number, locked
    until the process ends."""
    path = Path(tempfile.gettempdir(), "semel-test-ports")
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    with suppress(OSError):  # another user's: it is open to all already
        path.chmod(0o666)
    return file


def free_port() -> int:
    with bound_somewhere() as sock:
        return int(sock.getsockname()[1])
