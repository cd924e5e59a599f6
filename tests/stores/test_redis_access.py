"""How connections to Redis are opened: credentials of the moment, TLS, names, other addresses."""

from __future__ import annotations

import os
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from semel.core.operations.requests import Applied, Claimed, Read
from semel.errors import ConfigurationError, StoreUnavailable
from semel.stores.redis import RedisBackend
from semel.stores.redis.commands import BUCKETS
from semel.testing.contract.records import claim, complete, new_fence, new_identity
from tests.servers import SentinelGroup, ValkeyCluster, ValkeyServer
from tests.stores.harness import own_redis
from tests.stores.relay import Relay
from tests.stores.test_redis import COLOURS, keys_of, not_done
from tests.stores.test_redis_cluster import in_bucket
from tests.waiting import PATIENCE


@pytest.fixture
def own_server() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


@pytest.fixture
def prefix(valkey: ValkeyServer) -> Iterator[str]:
    name = f"own{os.urandom(6).hex()}"
    yield name
    for key in keys_of(valkey, name):
        valkey.ask("UNLINK", key)


# ── credentials ───────────────────────────────────────────────────────────────────────────────────


class Tokens:
    """A user whose password is a token: each one that is issued ends the ones before."""

    def __init__(self, server: ValkeyServer) -> None:
        self._server = server
        self.asked = 0
        server.ask("ACL", "SETUSER", "shop", "on", "~*", "&*", "+@all")
        server.ask("ACL", "SETUSER", "default", ">nobody")

    def issue(self) -> tuple[str, str]:
        self.asked += 1
        token = f"token-{self.asked}"
        self._tell("ACL", "SETUSER", "shop", "resetpass", f">{token}")
        return "shop", token

    def cut(self) -> None:
        """Every connection is closed, as managed servers do when a token ends."""
        self._tell("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def _tell(self, *command: str) -> None:
        where = str(self._server.folder / "socket")
        with redis.Redis(unix_socket_path=where, password="nobody", protocol=2) as client:
            client.execute_command(*command)


FORMS: dict[str, Callable[[Tokens], Callable[[], Any]]] = {}


def form(function: Callable[[Tokens], Callable[[], Any]]) -> None:
    FORMS[function.__name__] = function


@form
def plain(tokens: Tokens) -> Callable[[], Any]:
    return tokens.issue


@form
def awaited(tokens: Tokens) -> Callable[[], Any]:
    async def issue() -> tuple[str, str]:
        return tokens.issue()

    return issue


@COLOURS
@pytest.mark.parametrize("kind", FORMS)
def test_each_new_connection_asks_who_it_logs_in_as(
    own_server: ValkeyServer, colour: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is open is checked again and again, and does not log in again."""
    for module in ("pool_async", "pool_sync"):
        monkeypatch.setattr(f"semel.stores.redis.{module}.CHECK_AGAIN", 0.0)
    tokens = Tokens(own_server)
    url = f"redis://127.0.0.1:{own_server.port}/0"
    with own_redis(url, colour, credentials=FORMS[kind](tokens)) as harness:
        op = claim(new_identity(), new_fence())
        assert isinstance(harness.perform(op), Claimed)
        assert isinstance(harness.perform(claim(new_identity(), new_fence())), Claimed)
        assert tokens.asked == 1
        tokens.cut()
        assert isinstance(harness.perform(complete(op.identity, op.fence)), Applied)
        assert tokens.asked == 2


@COLOURS
def test_a_token_that_ended_on_its_way_is_asked_for_once_more(
    own_server: ValkeyServer, colour: str
) -> None:
    tokens = Tokens(own_server)

    def issue() -> tuple[str, str]:
        user, token = tokens.issue()
        return (user, "ended") if tokens.asked == 1 else (user, token)

    url = f"redis://127.0.0.1:{own_server.port}/0"
    with own_redis(url, colour, credentials=issue) as harness:
        assert isinstance(harness.perform(claim(new_identity(), new_fence())), Claimed)
        assert tokens.asked == 2


@COLOURS
def test_credentials_that_cannot_be_had_or_are_wrong_begin_nothing(
    own_server: ValkeyServer, colour: str
) -> None:
    tokens = Tokens(own_server)

    def broken() -> tuple[str, str]:
        raise RuntimeError("a s3cr3t text")

    wrong: list[Callable[[], Any]] = [broken, lambda: "s3cr3t", lambda: ("shop", "s3cr3t")]
    for provider in wrong:
        url = f"redis://127.0.0.1:{own_server.port}/0"
        with own_redis(url, colour, credentials=provider) as harness:
            said = not_done(harness, claim(new_identity(), new_fence()))
        assert "s3cr3t" not in said
        assert "credentials" in said or "refuses the user" in said
    assert tokens.asked == 0


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="leave them out"):
        RedisBackend("redis://ann:pw@a", credentials=lambda: (None, "x"))
    with pytest.raises(ConfigurationError, match="function"):
        RedisBackend("redis://a", credentials="token")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="unknown option 'credentials'"):
        RedisBackend("redis://a?credentials=x")
    with pytest.raises(ConfigurationError, match="server_name"):
        RedisBackend("redis://a?server_name=x")
    with pytest.raises(ConfigurationError, match="client_name"):
        RedisBackend("redis://a?client_name=two%20words")
    with pytest.raises(ConfigurationError, match="host:port"):
        RedisBackend("redis://a?remap=a:1=b:x")


@COLOURS
def test_sentinels_have_credentials_of_their_own(colour: str) -> None:
    with SentinelGroup(replicas=0, lines=["user watcher on >w4tch ~* &* +@all"]) as group:
        for sentinel in group.sentinels:
            sentinel.ask("ACL", "SETUSER", "default", "resetpass", ">nobody")
        asked: list[int] = []

        def watcher() -> tuple[str, str]:
            asked.append(1)
            return "watcher", "w4tch"

        op = claim(new_identity(), new_fence())
        with own_redis(group.url, colour, sentinel_credentials=watcher) as harness:
            assert isinstance(harness.perform(op), Claimed)
        assert len(asked) == 2  # more than half of three
        named = f"{group.url}?sentinel_user=watcher&sentinel_password=w4tch"
        with own_redis(named, colour) as harness:
            assert isinstance(harness.perform(complete(op.identity, op.fence)), Applied)
        with (
            own_redis(group.url, colour, timeout=1.0) as harness,
            pytest.raises((StoreUnavailable, ConfigurationError)),
        ):
            harness.perform(Read(op.identity))


# ── TLS ───────────────────────────────────────────────────────────────────────────────────────────


class Authority:
    """Signs certificates, by the command ``openssl``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.file = folder / "ca.pem"
        self._run(
            *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=authority"),
            *("-keyout", folder / "ca.key", "-out", self.file),
        )

    def sign(self, name: str, names: str) -> tuple[Path, Path]:
        key, request, cert = (self._folder / f"{name}.{end}" for end in ("key", "csr", "pem"))
        extensions = self._folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={names}\n")
        self._run(
            *f"req -newkey rsa:2048 -nodes -subj /CN={name}".split(),
            *("-keyout", key, "-out", request),
        )
        self._run(
            *("x509", "-req", "-days", "2", "-in", request, "-CA", self.file),
            *("-CAkey", self._folder / "ca.key", "-CAcreateserial"),
            *("-extfile", extensions, "-out", cert),
        )
        return cert, key

    @staticmethod
    def _run(*words: str | Path) -> None:
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def demanding(authority: Authority) -> ssl.SSLContext:
    """A server by another name than the host's, which wants to see a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.sign("server", "DNS:cache.example"))
    context.load_verify_locations(authority.file)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


@COLOURS
def test_the_certificate_must_have_the_name_and_be_shown_one(
    valkey: ValkeyServer, prefix: str, colour: str, authority: Authority, demanding: ssl.SSLContext
) -> None:
    cert, key = authority.sign("client", "DNS:client.example")
    own: dict[str, Any] = {
        "ca_file": str(authority.file),
        "cert_file": str(cert),
        "key_file": str(key),
    }
    with Relay(valkey.port, demanding) as relay:
        url = f"{relay.url.replace('redis:', 'rediss:')}?prefix={prefix}"
        right = [own | {"server_name": "cache.example"}, own | {"check_hostname": False}]
        for options in right:
            with own_redis(url, colour, **options) as harness:
                assert isinstance(harness.perform(claim(new_identity(), new_fence())), Claimed)
        unnamed = {"ca_file": own["ca_file"], "check_hostname": False}
        for wrong in (own, own | {"server_name": "other.example"}, unnamed):
            with own_redis(url, colour, **wrong) as harness:
                not_done(harness, claim(new_identity(), new_fence()))
    assert len([name for name in keys_of(valkey, prefix) if b"}:r:" in name]) == len(right)


def test_a_name_that_is_not_compared_is_still_a_certificate_that_is_checked(
    valkey: ValkeyServer, prefix: str, authority: Authority, tmp_path: Path
) -> None:
    """``check_hostname=no`` does not take a certificate that somebody else has signed."""
    stranger = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*stranger.sign("server", "IP:127.0.0.1"))
    with Relay(valkey.port, context) as relay:
        url = f"{relay.url.replace('redis:', 'rediss:')}?prefix={prefix}&check_hostname=no"
        with own_redis(f"{url}&ca_file={authority.file}") as harness:
            not_done(harness, claim(new_identity(), new_fence()))


# ── names and addresses ───────────────────────────────────────────────────────────────────────────


@COLOURS
def test_connections_have_a_name(own_server: ValkeyServer, colour: str) -> None:
    with own_redis(own_server.url, colour) as harness:
        harness.perform(Read(new_identity()))
        assert b" name=semel " in own_server.ask("CLIENT", "LIST")
    with own_redis(f"{own_server.url}?client_name=shop-1", colour) as harness:
        harness.perform(Read(new_identity()))
        assert b" name=shop-1 " in own_server.ask("CLIENT", "LIST")


@COLOURS
def test_a_server_that_forbids_names_is_used(own_server: ValkeyServer, colour: str) -> None:
    own_server.ask("ACL", "SETUSER", "shop", "on", ">p", "~*", "+@all", "-client|setname")
    url = f"redis://shop:p@127.0.0.1:{own_server.port}/0"
    with own_redis(url, colour) as harness:
        assert isinstance(harness.perform(claim(new_identity(), new_fence())), Claimed)


@COLOURS
@pytest.mark.parametrize("given", ["mapping", "function", "URL"])
def test_nodes_of_a_cluster_are_reached_by_other_addresses_than_they_announce(
    valkey_cluster: ValkeyCluster, colour: str, given: str
) -> None:
    prefix = f"own{os.urandom(6).hex()}"
    relays = [Relay(node.port) for node in valkey_cluster.primaries]
    announced = [f"127.0.0.1:{node.port}" for node in valkey_cluster.primaries]
    reached = {name: f"127.0.0.1:{to.port}" for name, to in zip(announced, relays, strict=True)}

    def remap(host: str, port: int) -> tuple[str, int]:
        host, _, text = reached[f"{host}:{port}"].partition(":")
        return host, int(text)

    ways = {"mapping": reached, "function": remap}
    ways["URL"] = ",".join(f"{name}={to}" for name, to in reached.items())
    options: dict[str, Any] = {"prefix": prefix, "remap": ways[given]}
    for relay in relays:
        relay.__enter__()
    try:
        with own_redis(valkey_cluster.url, colour, **options) as harness:
            for bucket in range(0, BUCKETS, 100):
                op = claim(in_bucket(bucket), new_fence())
                assert isinstance(harness.perform(op), Claimed)
        assert all(relay.connections for relay in relays)
    finally:
        for relay in relays:
            relay.close()


@COLOURS
def test_a_primary_is_reached_by_another_address_than_sentinels_announce(colour: str) -> None:
    with SentinelGroup(replicas=0) as group, Relay(group.servers[0].port) as relay:
        remap = {f"127.0.0.1:{group.servers[0].port}": f"127.0.0.1:{relay.port}"}
        with own_redis(group.url, colour, remap=remap, timeout=PATIENCE) as harness:
            assert isinstance(harness.perform(claim(new_identity(), new_fence())), Claimed)
        assert relay.connections == 1
