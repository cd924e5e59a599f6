"""What the demo's two servers do alike: take their port, report that they are up, end in time."""

from __future__ import annotations

import os
import signal
import socket
import threading

HOST = "127.0.0.1"


def bound(port: int) -> socket.socket:
    """A socket on a port that the demo itself holds reserved; see `servers.Port`."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((HOST, port))
    except OSError:
        sock.close()
        raise
    return sock


def end_with_parent() -> None:
    """Standard input is a pipe from the demo: when that ends, however it ends, so does this."""
    threading.Thread(target=_watch_parent, name="parent-watch", daemon=True).start()


def _watch_parent() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def announce() -> None:
    """Tell the demo that requests are served; what is printed later goes to the log."""
    os.write(1, b"ready\n")
    os.dup2(2, 1)
