"""A payments API in Flask whose requests take effect once, however often they are sent."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

from flask import Flask, abort, g, jsonify, request
from flask.typing import ResponseReturnValue

import semel
from semel.frameworks.flask import install, transaction

FOLDER = Path(os.environ.get("SHOP_FOLDER", "."))
STORE = os.environ.get("SEMEL_STORE", f"sqlite:///{FOLDER / 'semel.db'}")
CALLERS = {"Bearer alice": "alice", "Bearer bob": "bob"}

app = Flask(__name__)
guard = semel.Guard(STORE, tenant=lambda _: g.caller)
install(app, guard)


@app.before_request
def authenticate() -> None:
    """Before any key is looked at: without a caller there is no answer, not even a kept one."""
    g.caller = CALLERS.get(request.headers.get("Authorization", ""))
    if g.caller is None:
        abort(401)


def asked() -> dict[str, Any]:
    """The body, which must say how much."""
    body: dict[str, Any] = request.get_json()
    if not isinstance(body, dict) or not isinstance(body.get("amount"), int):
        abort(400, "amount must be a whole number")
    return {"amount": body["amount"], "currency": str(body.get("currency", "EUR"))}


def happened(route: str, amount: int) -> None:
    """What cannot be taken back: one line for each time that a handler really ran."""
    line = f"{route} {g.caller} {amount}\n"
    log = os.open(FOLDER / "effects.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    with closing(os.fdopen(log, "wb", 0)) as effects:
        effects.write(line.encode())


def made(route: str, what: dict[str, Any]) -> ResponseReturnValue:
    answer = {"id": uuid4().hex, **what}
    return answer, 201, {"Location": f"/{route}/{answer['id']}"}


@app.post("/payments")
@guard.route(semel.ietf(required=True, key="uuid"))
def pay() -> ResponseReturnValue:
    payment = asked()
    happened("payments", payment["amount"])
    match payment["amount"]:
        case 402:
            return {"error": "declined"}, 402
        case 503:
            return {"error": "try again"}, 503
        case 500:
            raise RuntimeError("the payment could not be made")
        case 700:
            while not (FOLDER / "release").exists():
                time.sleep(0.01)
        case _:
            pass
    return made("payments", payment)


@app.get("/payments")
def payments() -> ResponseReturnValue:
    effects = FOLDER / "effects.log"
    lines = effects.read_text().splitlines() if effects.exists() else []
    mine = [line for line in lines if line.startswith(f"payments {g.caller} ")]
    return jsonify(count=len(mine))


@app.post("/transfers")
@guard.route(semel.payments(required=True, probe=None))
def transfer() -> ResponseReturnValue:
    wanted = asked()
    happened("transfers", wanted["amount"])
    if wanted["amount"] == 500:
        raise RuntimeError("sent to the bank, and no answer came")
    return made("transfers", wanted)


@app.post("/orders")
@guard.route(semel.ietf(mode="atomic", required=True))
def order() -> ResponseReturnValue:
    """`transaction` is a connection in semel's own transaction: order and key commit together."""
    wanted = asked()
    happened("orders", wanted["amount"])
    row = transaction.execute("INSERT INTO orders (amount) VALUES (?)", (wanted["amount"],))
    if wanted["amount"] == 500:
        raise RuntimeError("the order is not to be")
    return {"id": row.lastrowid, **wanted}, 201


@app.get("/orders")
def orders() -> ResponseReturnValue:
    with closing(database()) as connection:
        return jsonify(count=connection.execute("SELECT count(*) FROM orders").fetchone()[0])


@app.post("/notes")
@guard.route(semel.ietf())
def note() -> ResponseReturnValue:
    """A key is honoured, but not demanded."""
    wanted = asked()
    happened("notes", wanted["amount"])
    return made("notes", wanted)


def database() -> sqlite3.Connection:
    return sqlite3.connect(FOLDER / "semel.db")


with closing(database()) as connection:
    connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, amount INT)")
