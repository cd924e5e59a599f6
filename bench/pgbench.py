"""The statements of the store as pgbench scripts: what PostgreSQL itself makes of them."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from semel.stores.sql.dialect import dialect
from tests.servers.postgres import PostgresServer

QUERIES: Final = dialect("postgresql").queries
VALUES: Final = {
    "identity": "sha256(int8send(:n))",
    "fence": "substr(sha256(int8send(:n)), 1, 16)",
    "fingerprint": "convert_to('v1:' || repeat('a', 43), 'UTF8')",
    "fields": "decode(repeat('ab', 64), 'hex')",
    "tenant": "'tenant'",
    "method": "'POST'",
    "path": "'/payments'",
    "key": "convert_to('key-' || :n, 'UTF8')",
    "on_lapse": "1",
    "terms": "0",
    "lease": "60000000",
    "fresh_until": "NULL",
    "request": "NULL",
    "snapshot": "decode(repeat('ab', 300), 'hex')",
    "retention": "86400000000",
    "tombstone": "86400000000",
    "resource": "NULL",
}


def statement(name: str, **values: str) -> str:
    """A query of the store with pgbench's values in the place of its parameters."""
    filled = VALUES | values
    query = QUERIES[name]
    return re.sub(r"\$(\d+)", lambda match: filled[query.takes[int(match[1]) - 1]], query.text)


ANY_KEY: Final = ("\\set n random(1, 9000000000000000000)",)
"""Each transaction has a key of its own. Or a client counts: ``i`` is its own, and begins at 0."""


def pgbench(
    server: PostgresServer,
    url: str,
    statements: Sequence[str],
    clients: int,
    seconds: float,
    keys: Sequence[str] = ANY_KEY,
) -> float:
    """Transactions per second, each of them these statements, one after the other."""
    options = ["-n", "-M", "prepared", "-c", str(clients), "-j", "2", "-D", "i=0"]
    options += ["-T", str(max(1, round(seconds)))]
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        lines = [*keys, *(f"{text};" for text in statements)]
        script.write("\n".join(lines) + "\n")
        script.flush()
        done = subprocess.run(
            [Path(server.binaries.folder, "pgbench"), *options, "-f", script.name, url],
            capture_output=True,
            text=True,
            check=True,
        )
    rate = re.search(r"tps = ([\d.]+)", done.stdout)
    assert rate is not None, done.stdout
    return float(rate[1])
