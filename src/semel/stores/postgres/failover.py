"""Which history of a database is the current one, where several hosts may claim to have it.

Every promotion of a standby begins a new timeline. A primary that died before, and comes back as if
nothing had happened, is still on the old one: it does not know what was acknowledged since, and
nothing it acknowledges will stay. Who has seen the new timeline refuses the old one.
"""

from __future__ import annotations

from typing import Final

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from semel.stores.postgres.errors import Fault

ASKED: Final = (
    b"SELECT system_identifier, ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))"
    b"::bit(32)::bigint FROM pg_control_system()"
)
"""Of a primary; a standby could not answer, and other engines may not know the question."""

TRIES: Final = 4
"""Of a statement in all: once its connection may have been lost, and two hosts may be refused."""

_LISTS: Final = ("host", "hostaddr", "port")


class Lineage:
    """What this process has seen, and where it should look last.

    No lock: each field is set in one step, and to see an older value is to have looked earlier.
    """

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._seen: tuple[int, int] | None = None

    @property
    def conninfo(self) -> str:
        return self._conninfo

    def judge(self, system: int, timeline: int, host: str, port: str) -> None:
        """Refuse a server that has missed a promotion. Another database altogether is a new start:
        somebody has moved it."""
        seen = self._seen
        if seen is None or seen[0] != system or seen[1] < timeline:
            self._seen = (system, timeline)
        elif seen[1] > timeline:
            self._conninfo = _with_last(self._conninfo, host, port)
            raise Fault(
                f"this server is on timeline {timeline}, but {seen[1]} was seen: it was a primary "
                "before a failover, and must not be used",
                tries=TRIES,
            )


def _with_last(conninfo: str, host: str, port: str) -> str:
    """The same hosts; the one that was refused is tried when no other is to be had."""
    params = conninfo_to_dict(conninfo)
    lists = {name: str(value).split(",") for name in _LISTS if (value := params.get(name))}
    count = max(map(len, lists.values()), default=0)
    whole = {name: each * count if len(each) == 1 else each for name, each in lists.items()}
    places = [place for place in range(count) if _is(whole, place, host, port)]
    order = sorted(range(count), key=lambda place: place in places)
    moved = {name: ",".join(each[place] for place in order) for name, each in whole.items()}
    return make_conninfo(conninfo, **moved)


def _is(lists: dict[str, list[str]], place: int, host: str, port: str) -> bool:
    named = {lists[name][place] for name in ("host", "hostaddr") if name in lists}
    return host in named and ("port" not in lists or lists["port"][place] in ("", port))
