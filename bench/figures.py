"""``python -m bench.figures``: measures what bench/scale.py computes with, into bench/figures.toml.

Each store is driven by one process with 32 operations in flight: claims and completions of new
keys, then claims of keys that are done. CPU is that of the store's own processes, in microseconds
for each pair or replay, the median of the rounds; of SQLite that of the process that asks, and its
log is all that it writes to files. The log is that of the first 20,000 pairs in an empty table:
where indexes grow, a pair writes more, and a faster round would look worse for it. Bytes are for a
completed key of 36 letters with an answer of 231 bytes in JSON that does not compress: in SQL
stores the table and its indexes, rewritten without gaps; in Redis the memory. ``tombstone``: the
same once the answer is past its retention.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sqlite3
import statistics
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import psycopg

from bench.cases.raw import said_by
from bench.measure import cpu_seconds
from semel.stores import open_backend
from tests.servers import MariadbServer, PostgresServer, ValkeyServer
from tests.servers.galera import GaleraCluster
from tests.servers.postgres_cluster import PostgresCluster

FILE: Final = Path(__file__).with_name("figures.toml")
IN_FLIGHT: Final = 32
KEYS = 400_000
LOGGED = 20_000
EXPIRE: Final = (  # as queries/expire.sql has it
    "UPDATE semel_record SET state = 6, snapshot = NULL, fields = NULL, {key} = NULL,"
    " duty = 6, due_at = forget_at, forget_at = NULL WHERE state = 3"
)


@dataclass
class Figures:
    """Of one store. Rates are of one process on a busy machine; compare them, do not trust them."""

    pairs_per_second: float = 0.0
    replays_per_second: float = 0.0
    pair_cpu: float = 0.0
    replay_cpu: float = 0.0
    copy_cpu: float = 0.0
    """What each further node spends on a pair."""
    log_bytes: float = 0.0
    """Written ahead for each pair, and sent to each further node."""
    key_bytes: float = 0.0
    tombstone_bytes: float = 0.0


@dataclass(frozen=True)
class Site:
    """Where a store runs: the process that is asked, others that have copies, and what is kept.

    ``pid`` is 0 where the store runs in the process that asks.
    """

    url: str
    pid: int
    copies: Sequence[int]
    kept: Callable[[], dict[str, float]]
    log: Callable[[], float]
    execute: Callable[[str], Sequence[Sequence[Any]]] = lambda text: ()
    """Of MariaDB: what its administrator asks."""


def median(values: Sequence[float]) -> float:
    return float(f"{statistics.median(values):.3g}")


def measured(site: Site, rounds: int, seconds: float) -> Figures:
    first = drive(site, "pairs", 0, f"count={LOGGED}")
    pairs, replays = [], []
    for _ in range(rounds):
        pairs.append(drive(site, "pairs", seconds))
        replays.append(drive(site, "replays", seconds))
    return Figures(
        pairs_per_second=median([each["rate"] for each in pairs]),
        replays_per_second=median([each["rate"] for each in replays]),
        pair_cpu=median([each["cpu"] for each in pairs]),
        replay_cpu=median([each["cpu"] for each in replays]),
        copy_cpu=median([each["copy"] for each in pairs]),
        log_bytes=median([first["log"]]),
        **site.kept(),
    )


def drive(site: Site, script: str, seconds: float, *others: str) -> dict[str, float]:
    open_backend(site.url, migrate=True).migrate()
    pids = (site.pid, *site.copies)
    spent, log = [cpu_seconds(pid) for pid in pids], site.log()
    told = json.loads(said_by(script, site.url, IN_FLIGHT, seconds, *others))
    rate = told["rate"]
    if not site.pid:
        return {**told, "copy": 0.0, "log": told.get("written", 0.0)}
    count = rate * seconds if seconds else LOGGED
    used = [
        cpu_seconds(pid) - was for pid, was in zip((site.pid, *site.copies), spent, strict=True)
    ]
    copies = sum(used[1:]) / len(site.copies) if site.copies else 0.0
    return {
        "rate": rate,
        "cpu": 1e6 * used[0] / count,
        "copy": 1e6 * copies / count,
        "log": (site.log() - log) / count,
    }


# ── the stores ────────────────────────────────────────────────────────────────────────────────────


def postgresql_site(url: str, pid: int, copies: Sequence[int]) -> Site:
    def ask(text: str) -> Any:
        with psycopg.connect(url, autocommit=True) as connection:
            cursor = connection.execute(text.encode())
            return cursor.fetchall()[0] if cursor.description else None

    def size() -> float:
        ask("VACUUM FULL semel_record")
        (total, keys) = ask(
            "SELECT pg_total_relation_size('semel_record')::float, count(*) FROM semel_record"
        )
        return float(f"{total / keys:.3g}")

    def kept() -> dict[str, float]:
        whole = size()
        ask(EXPIRE.format(key="key"))
        return {"key_bytes": whole, "tombstone_bytes": size()}

    lsn = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float"
    return Site(url, pid, copies, kept, lambda: float(ask(lsn)[0]))


@contextmanager
def sqlite() -> Iterator[Site]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "records.db")

        def size() -> float:
            with closing(sqlite3.connect(path, isolation_level=None)) as file:
                file.execute("VACUUM")
                file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                ((keys,),) = file.execute("SELECT count(*) FROM semel_record")
            return float(f"{path.stat().st_size / keys:.3g}")

        def kept() -> dict[str, float]:
            whole = size()
            with closing(sqlite3.connect(path, isolation_level=None)) as file:
                file.execute(EXPIRE.format(key="key"))
            return {"key_bytes": whole, "tombstone_bytes": size()}

        yield Site(f"sqlite:///{path}", 0, (), kept, lambda: 0.0)


@contextmanager
def postgresql() -> Iterator[Site]:
    settings = {"shared_buffers": "512MB", "max_wal_size": "4GB"}
    with PostgresServer(fsync=True, settings=settings) as server:
        yield postgresql_site(server.url, server.pid, ())


@contextmanager
def postgresql_quorum() -> Iterator[Site]:
    with PostgresCluster() as cluster:
        copies = [node.pid for node in cluster.standbys]
        yield postgresql_site(cluster.url_of("postgres"), cluster.primary.pid, copies)


def mariadb_site(server: MariadbServer, copies: Sequence[int]) -> Site:
    server.execute("CREATE DATABASE shop")

    def multiply() -> None:
        """A table grows by megabytes: in a small one that would be most of it."""
        ((names,),) = server.execute(
            "SELECT GROUP_CONCAT('`', column_name, '`') FROM information_schema.columns"
            " WHERE table_schema = 'shop' AND table_name = 'semel_record'"
        )
        ((keys,),) = server.execute("SELECT count(*) FROM shop.semel_record")
        other = names.replace("`identity`", "UNHEX(SHA2(CONCAT(identity, seq), 256))")
        server.execute(
            f"INSERT INTO shop.semel_record ({names}) SELECT {other} FROM shop.semel_record"
            f" JOIN shop.seq_1_to_100 LIMIT {max(0, KEYS - keys)}"
        )

    def size() -> float:
        server.execute("OPTIMIZE TABLE shop.semel_record")
        server.execute("ANALYZE TABLE shop.semel_record")
        ((total,),) = server.execute(
            "SELECT data_length + index_length FROM information_schema.tables"
            " WHERE table_schema = 'shop' AND table_name = 'semel_record'"
        )
        ((keys,),) = server.execute("SELECT count(*) FROM shop.semel_record")
        return float(f"{total / keys:.3g}")

    def kept() -> dict[str, float]:
        multiply()
        whole = size()
        expire = EXPIRE.format(key="`key`")
        server.execute(expire.replace("semel_record", "shop.semel_record"))
        return {"key_bytes": whole, "tombstone_bytes": size()}

    def log() -> float:
        return float(server.execute("SHOW GLOBAL STATUS LIKE 'Innodb_os_log_written'")[0][1])

    return Site(server.url_of("shop"), server.pid, copies, kept, log, server.execute)


@contextmanager
def mariadb() -> Iterator[Site]:
    with MariadbServer(on_disk=True) as server:
        yield mariadb_site(server, ())


@contextmanager
def galera() -> Iterator[Site]:
    with GaleraCluster() as cluster:
        first, *others = cluster.nodes
        yield mariadb_site(first, [node.pid for node in others])


@contextmanager
def redis() -> Iterator[Site]:
    """One primary and one replica, as in each third of a cluster."""
    with ValkeyServer() as server, ValkeyServer() as replica:
        replica.follow(server)
        empty = used_memory(server)

        def kept() -> dict[str, float]:
            keys = len(server.ask("KEYS", "*}:r:*"))
            whole = (used_memory(server) - empty) / keys
            server.ask("EVAL", DROP_ANSWERS, 0)
            left = (used_memory(server) - empty) / keys
            shown = [float(f"{each:.3g}") for each in (whole, left)]
            return {"key_bytes": shown[0], "tombstone_bytes": shown[1]}

        def log() -> float:
            return number(server, "persistence", "aof_current_size")

        yield Site(server.url, server.pid, [replica.pid], kept, log)


DROP_ANSWERS: Final = (
    "for _, key in ipairs(redis.call('KEYS', '*}:r:*')) do"
    " local origin = struct.unpack('>I4', redis.call('GETRANGE', key, 59, 62))"
    " redis.call('SET', key, redis.call('GETRANGE', key, 0, 66 + origin)) end"
)


def used_memory(server: ValkeyServer) -> float:
    """Without what does not grow with the keys."""
    rest = ("mem_replication_backlog", "mem_clients_slaves", "mem_clients_normal", "mem_aof_buffer")
    shared = sum(number(server, "memory", name) for name in rest)
    return number(server, "memory", "used_memory") - shared


def number(server: ValkeyServer, section: str, name: str) -> float:
    told: bytes = server.ask("INFO", section)
    return float(told.split(f"\r\n{name}:".encode())[1].split()[0])


SITES: Final[dict[str, Callable[[], AbstractContextManager[Site]]]] = {
    "sqlite": sqlite,
    "postgresql": postgresql,
    "postgresql_quorum": postgresql_quorum,
    "mariadb": mariadb,
    "galera": galera,
    "redis": redis,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sites", nargs="*", default=[*SITES], choices=[*SITES], metavar="SITE")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    given = parser.parse_args()
    found: dict[str, Any] = tomllib.loads(FILE.read_text()) if FILE.exists() else {}
    found["date"] = datetime.datetime.now(datetime.UTC).date()
    found["cores"], found["load_average"] = os.cpu_count(), round(os.getloadavg()[0], 1)
    for name in given.sites:
        with SITES[name]() as site:
            found[name] = asdict(measured(site, given.rounds, given.seconds))
        print(f"{name}: {found[name]}", flush=True)
    FILE.write_text(written(found))


def written(found: dict[str, Any]) -> str:
    lines = ["# Written by `python -m bench.figures`; what the names mean is said there."]
    lines += [f"{name} = {found[name]}" for name in ("date", "cores", "load_average")]
    for name in SITES:
        lines += ["", f"[{name}]", *(f"{key} = {value:g}" for key, value in found[name].items())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
