"""uvicorn on a socket that was bound by somebody else: `serve_asgi APP FD WORKERS`.

Not `uvicorn --fd`, which takes every descriptor for a Unix socket: the application would see
other client addresses than in production, and TCP_NODELAY would stay off.
"""

import socket
import sys

import uvicorn
from uvicorn.supervisors import Multiprocess


def main(app: str, fd: int, workers: int) -> None:
    config = uvicorn.Config(app, workers=workers, access_log=False)
    listener = socket.socket(fileno=fd)
    listener.setblocking(False)
    if workers > 1:
        Multiprocess(config, sockets=[listener]).run()
    else:
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
