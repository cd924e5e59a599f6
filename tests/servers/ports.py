"""TCP ports on 127.0.0.1 for servers that come and go."""

import os
import random
import socket

# Below the range the kernel hands to outgoing connections (32768 up), so that a port stays
# free for its server while that is down between a kill and a restart.
PORTS = range(20_000, 32_000)
_PARTS = 4
_PART = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _PARTS
"""Processes that test side by side do not take from each other what is free for a moment."""


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
    """The same on a free port. Random, since several test sessions may be at it at once; and not
    by the generator that Hypothesis sets to the same start in each."""
    ports = PORTS[_PART::_PARTS]
    for port in random.SystemRandom().sample(ports, len(ports)):
        try:
            return bound(port)
        except OSError:
            continue
    raise OSError(f"no free port in {PORTS}")


def free_port() -> int:
    with bound_somewhere() as sock:
        return int(sock.getsockname()[1])
