"""Which history of a database counts, decided without a server; and asked of one."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from semel.core.operations.requests import Claimed
from semel.stores.postgres import PostgresBackend
from semel.stores.postgres.failover import FailoverTimeline
from semel.stores.sql.statements import StatementFault
from semel.testing.contract.records import claim, new_fence, new_identity

HOSTS = "host=a,b,c port=1,2,3 password='a secret' target_session_attrs=read-write"


def test_a_later_timeline_is_followed_and_an_earlier_one_refused() -> None:
    timeline = FailoverTimeline(HOSTS)
    timeline.check(7, 1, "a", "1")
    timeline.check(7, 3, "b", "2")
    timeline.check(7, 3, "b", "2")
    with pytest.raises(StatementFault, match="timeline 1, but 3 was seen") as refused:
        timeline.check(7, 1, "a", "1")
    assert refused.value.doubt is False
    assert refused.value.tries > 2


def test_another_database_is_a_new_start() -> None:
    """Somebody has moved it to a new server, by a dump: its timelines begin anew."""
    timeline = FailoverTimeline(HOSTS)
    timeline.check(7, 3, "a", "1")
    timeline.check(8, 1, "a", "1")
    timeline.check(8, 2, "a", "1")
    with pytest.raises(StatementFault):
        timeline.check(8, 1, "a", "1")


@pytest.mark.parametrize(
    ("conninfo", "refused", "hosts", "ports"),
    [
        (HOSTS, ("a", "1"), "b,c,a", "2,3,1"),
        (HOSTS, ("b", "2"), "a,c,b", "1,3,2"),
        (HOSTS, ("a", "2"), "a,b,c", "1,2,3"),
        ("host=a,b port=5", ("a", "5"), "b,a", "5,5"),
        ("host=a,b", ("a", "5432"), "b,a", None),
        ("host=a,a port=1,2", ("a", "1"), "a,a", "2,1"),
        ("host=/run/one,/run/two", ("/run/one", "5432"), "/run/two,/run/one", None),
        ("host=a", ("a", "5432"), "a", None),
        ("dbname=shop", ("/run/postgresql", "5432"), None, None),
    ],
)
def test_who_was_refused_is_tried_last(
    conninfo: str, refused: tuple[str, str], hosts: str | None, ports: str | None
) -> None:
    timeline = FailoverTimeline(conninfo)
    timeline.check(7, 2, "z", "9")
    with pytest.raises(StatementFault):
        timeline.check(7, 1, *refused)
    params, before = conninfo_to_dict(timeline.conninfo), conninfo_to_dict(conninfo)
    assert (params.pop("host", None), params.pop("port", None)) == (hosts, ports)
    assert params == {name: v for name, v in before.items() if name not in ("host", "port")}


def test_a_server_that_does_not_say_is_used(postgres_url: str) -> None:
    """Functions of PostgreSQL's own may be forbidden, and other engines do not have them."""
    PostgresBackend(postgres_url).migrate()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("REVOKE EXECUTE ON FUNCTION pg_control_system FROM public")
        connection.execute("CREATE ROLE unasked LOGIN")
        connection.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO unasked")
        try:
            backend = PostgresBackend(postgres_url.replace("postgres@", "unasked@"))
            done = backend.blocking().perform(claim(new_identity(), new_fence()))
            backend.close()
        finally:
            connection.execute("DROP OWNED BY unasked")
            connection.execute("DROP ROLE unasked")
    assert isinstance(done, Claimed)
