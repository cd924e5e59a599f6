"""`semel notables list`: what was seen of requests, filtered, by pages, for people and programs."""

from __future__ import annotations

import csv
import io
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import semel
from semel.cli.commands import semel as command

KEY = "a-key-of-some-length-that-is-hidden"


class Desk:
    """Somebody at a terminal, with a store in which something was noted."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/semel.db"
        guard = semel.Guard(self.url, tenant=lambda request: "", maintenance=None, name="shop")
        for number in range(3):
            for payload in ({"amount": 1}, {"amount": 2}):
                with suppress(semel.Refused):
                    key, name = f"{KEY}-{number}", f"pay {number}"
                    guard.once(key, lambda: 1, name=name, payload=payload, tenant="bob")
            guard.close()
        guard.once("short", lambda: 1, name="pay 0", tenant="ann")
        guard.close()

    def run(self, *arguments: str) -> Result:
        env = {"SEMEL_STORE": self.url, "SEMEL_NAME": "shop", "COLUMNS": "300"}
        return CliRunner().invoke(command, ("notables", "list", *arguments), env=env)

    def json(self, *arguments: str) -> Any:
        done = self.run(*arguments, "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def routes(found: Any) -> list[str]:
    return [each["route"] for each in found["notables"]]


def test_the_newest_come_first_with_all_that_is_known(desk: Desk) -> None:
    found = desk.json()
    assert routes(found) == ["once pay 0", "once pay 2", "once pay 1", "once pay 0"]
    assert found["after"] is None
    short, mismatch, *_ = found["notables"]
    assert (short["kind"], short["tenant"], short["identity"]) == ("suspicious_key", "ann", None)
    assert mismatch["detail"]["fields"] == ["amount"]
    assert (mismatch["application"], mismatch["count"]) == ("shop", 1)
    assert KEY not in desk.run("--json").output


def test_filters_and_pages(desk: Desk) -> None:
    assert len(desk.json("--kind", "mismatch")["notables"]) == 3
    both = desk.json("--kind", "mismatch", "--kind", "suspicious_key", "--route", "once pay 0")
    assert [each["kind"] for each in both["notables"]] == ["suspicious_key", "mismatch"]
    first = desk.json("--kind", "mismatch", "--limit", "2")
    assert routes(first) == ["once pay 2", "once pay 1"]
    rest = desk.json("--kind", "mismatch", "--limit", "2", "--after", first["after"])
    assert (routes(rest), rest["after"]) == (["once pay 0"], None)
    identity = first["notables"][0]["identity"]
    assert routes(desk.json("--identity", identity)) == ["once pay 2"]
    assert desk.json("--since", "1h")["notables"] == desk.json()["notables"]
    assert desk.json("--since", "2999-01-01")["notables"] == []
    wrong = desk.run("--after", "yesterday")
    assert wrong.exit_code == 2
    assert "no place in the notables" in wrong.output


def test_a_table_for_people_and_lines_for_spreadsheets(desk: Desk) -> None:
    table = desk.run().stdout
    assert table.splitlines()[0].split() == [
        *("AT", "KIND", "ROUTE", "TENANT", "RECORD", "COUNT", "DETAIL")
    ]
    assert "code: key-reused, status: 422, fields: amount, missing: 0" in table
    rows = list(csv.reader(io.StringIO(desk.run("--csv").stdout)))
    assert len(rows) == 5
    assert rows[1][1] == "suspicious_key"
    assert "nothing was noted" in desk.run("--kind", "webhook").stdout
