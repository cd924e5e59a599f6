"""What gRPC raises, against a real server: hardly anything of it proves that nothing was sent."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio
import pytest

from semel.core.exchange.settle import is_ambiguous
from semel.core.recovery.was_sent import ANSWERED_CODES, WasSent, classify, says_not_executed
from tests.core.provider import Provider, turn_away
from tests.servers.ports import bound_somewhere
from tests.waiting import PATIENCE

METHOD = "/shop.Till/Charge"
AMOUNT = b"amount=1"
Options = tuple[tuple[str, Any], ...]

AT_LEAST: Mapping[str, WasSent] = {
    code.name: WasSent.ANSWERED if code.name in ANSWERED_CODES else WasSent.AMBIGUOUS
    for code in grpc.StatusCode
    if code is not grpc.StatusCode.OK
}


class Till(grpc.GenericRpcHandler):
    """Answers with the status it is asked for, and remembers every charge."""

    def __init__(self) -> None:
        self.charges: list[bytes] = []
        self.over = threading.Event()

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        return grpc.unary_unary_rpc_method_handler(self.charge)

    def charge(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.charges.append(request)
        match request:
            case b"raise":
                raise ValueError("a bug")
            case b"wait":
                self.over.wait()
            case b"again":
                first = self.charges == [b"again"]
                code = grpc.StatusCode.UNAVAILABLE if first else grpc.StatusCode.ALREADY_EXISTS
                context.abort(code, "charged")
            case b"large":
                return bytes(5_000_000)  # a client takes 4 MiB
            case _:
                context.abort(grpc.StatusCode[request.decode()], "as asked")
        return b""


@pytest.fixture
def till() -> Iterator[tuple[Till, int]]:
    till = Till()
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads, handlers=[till])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield till, port
        till.over.set()
        server.stop(None).wait()


def blocking(target: str, request: bytes, timeout: float, options: Options) -> None:
    with grpc.insecure_channel(target, options=options) as channel:
        charge: Any = channel.unary_unary(METHOD)
        charge(request, timeout=timeout)


def awaited(target: str, request: bytes, timeout: float, options: Options) -> None:
    async def call() -> None:
        async with grpc.aio.insecure_channel(target, options=options) as channel:
            charge: Any = channel.unary_unary(METHOD)
            await charge(request, timeout=timeout)

    asyncio.run(call())


Call = Callable[[str, bytes, float, Options], None]
BOTH = pytest.mark.parametrize("call", [blocking, awaited])


def failure(
    call: Call, target: str, request: bytes, timeout: float = PATIENCE, options: Options = ()
) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as raised:
        call(target, request, timeout, options)
    return raised.value


@BOTH
@pytest.mark.parametrize("code", sorted(AT_LEAST))
def test_a_status_of_the_servers_is_never_taken_for_not_sent(
    till: tuple[Till, int], call: Call, code: str
) -> None:
    error = failure(call, f"127.0.0.1:{till[1]}", code.encode())
    assert till[0].charges == [code.encode()]
    assert classify(error) is AT_LEAST[code]
    # Only the other side gives these three, so it did answer; the rest may be the client's own.
    answered = code in ANSWERED_CODES | {"ABORTED", "ALREADY_EXISTS", "DATA_LOSS"}
    assert is_ambiguous(error) is not answered


@BOTH
@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (b"raise", "UNKNOWN"),
        # The client's own word, after the server has done it.
        (b"large", "RESOURCE_EXHAUSTED"),
    ],
)
def test_what_the_server_executed_is_in_doubt(
    till: tuple[Till, int], call: Call, request_: bytes, code: str
) -> None:
    error: Any = failure(call, f"127.0.0.1:{till[1]}", request_)
    assert error.code().name == code
    assert till[0].charges == [request_]
    assert classify(error) is WasSent.AMBIGUOUS
    assert is_ambiguous(error)


@BOTH
def test_what_the_server_executes_beyond_the_deadline_is_in_doubt(
    till: tuple[Till, int], call: Call
) -> None:
    """A deadline counts from before the connection is made: where it ended too early for the server
    to have heard of the call, a longer one is given."""
    error: Any = None
    for seconds in (0.2, 2.0, 20.0, PATIENCE):
        if not till[0].charges:
            error = failure(call, f"127.0.0.1:{till[1]}", b"wait", seconds)
            assert error.code().name == "DEADLINE_EXCEEDED"
            assert classify(error) is WasSent.AMBIGUOUS  # heard of or not, the client cannot tell
    assert till[0].charges == [b"wait"]
    assert is_ambiguous(error)


@BOTH
def test_a_server_that_cannot_be_reached_proves_nothing(call: Call) -> None:
    with bound_somewhere() as bound:
        refused = failure(call, f"127.0.0.1:{bound.getsockname()[1]}", AMOUNT)
    unresolved = failure(call, "nowhere.invalid:1", AMOUNT)
    with Provider(turn_away) as provider:
        turned_away = failure(call, f"127.0.0.1:{provider.port}", AMOUNT)
    for error in (refused, unresolved, turned_away):
        assert classify(error) is WasSent.AMBIGUOUS
        assert is_ambiguous(error)
        assert not says_not_executed(error)


RETRIES = json.dumps(
    {
        "methodConfig": [
            {
                "name": [{}],
                "retryPolicy": {
                    "maxAttempts": 3,
                    "initialBackoff": "0.01s",
                    "maxBackoff": "0.01s",
                    "backoffMultiplier": 1,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ]
    }
)


def take_and_vanish(provider: Provider, connection: socket.socket) -> None:
    """Speak just enough HTTP/2 to be sent a call: an empty SETTINGS frame."""
    connection.sendall(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
    provider.read_until(connection, lambda data: AMOUNT in data)


@BOTH
def test_failed_to_connect_may_follow_a_try_that_was_sent(call: Call) -> None:
    """Why no text of UNAVAILABLE's is a proof."""
    with Provider(take_and_vanish, once=True) as provider:
        target = f"127.0.0.1:{provider.port}"
        error: Any = failure(call, target, AMOUNT, PATIENCE, (("grpc.service_config", RETRIES),))
    assert AMOUNT in provider.received[0]
    assert "failed to connect to all addresses" in error.details()
    assert classify(error) is WasSent.AMBIGUOUS


@BOTH
def test_what_exists_already_may_be_of_a_try_before(till: tuple[Till, int], call: Call) -> None:
    """The channel tries again by itself, and shows the last answer only."""
    options = (("grpc.service_config", RETRIES),)
    error: Any = failure(call, f"127.0.0.1:{till[1]}", b"again", PATIENCE, options)
    assert till[0].charges == [b"again", b"again"]
    assert error.code().name == "ALREADY_EXISTS"
    assert classify(error) is WasSent.AMBIGUOUS


def test_an_error_that_gives_no_code_is_in_doubt() -> None:
    assert classify(grpc.RpcError()) is WasSent.AMBIGUOUS
    assert classify(grpc.FutureTimeoutError()) is WasSent.AMBIGUOUS
