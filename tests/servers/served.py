"""Applications that say who they are, for `test_servers`; a server has nothing else to import."""

import os
from collections.abc import Callable


async def asgi_app(scope: dict[str, object], receive: object, send: object) -> None:
    """Answers with its process id and the client's address."""
    if scope["type"] != "http":
        return
    body = f"{os.getpid()} {os.environ.get('GREETING')} {scope['client']}".encode()
    assert callable(send)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def wsgi_app(environ: dict[str, str], start_response: Callable[..., object]) -> list[bytes]:
    start_response("200 OK", [])
    return [f"{os.getpid()} {os.environ.get('GREETING')} {environ['REMOTE_ADDR']}".encode()]
