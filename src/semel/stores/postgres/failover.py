"""Refuses a server that missed a failover, where several hosts may say that they are the primary.

Every promotion of a standby begins a new timeline. A primary that died before, and comes back as if
nothing had happened, is still on the old one: it does not know what was acknowledged since, and
nothing it acknowledges will stay. A process that has seen the new timeline refuses the old one.
"""

from __future__ import annotations

from typing import Final

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from semel.stores.sql.statements import StatementFault

TIMELINE_QUERY: Final = (
    b"SELECT system_identifier, ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))"
    b"::bit(32)::bigint FROM pg_control_system()"
)
"""For a primary; a standby cannot answer it, and other engines may not know the functions."""

TRIES: Final = 4
"""Of a statement in all: one lost connection, and two hosts that are refused."""

_LISTS: Final = ("host", "hostaddr", "port")


class FailoverTimeline:
    """The newest timeline this process has seen, and the order in which to try the hosts.

    No lock: each field is set in one step, and an older value is as if one had looked earlier.
    """

    def __init__(self, conninfo: str) -> None:
        self.conninfo = conninfo
        """For libpq; its hosts in the order in which to try them."""
        self._seen: tuple[int, int] | None = None

    def check(self, system: int, timeline: int, host: str, port: str) -> None:
        """Refuse a server that has missed a promotion. Another system identifier is a new start:
        somebody has moved the database."""
        seen = self._seen
        if seen is None or seen[0] != system or seen[1] < timeline:
            self._seen = (system, timeline)
        elif seen[1] > timeline:
            self.conninfo = _with_last(self.conninfo, host, port)
            raise StatementFault(
                f"this server is on timeline {timeline}, but {seen[1]} was seen: it was a primary "
                "before a failover, and must not be used",
                tries=TRIES,
            )


def _with_last(conninfo: str, host: str, port: str) -> str:
    """The same hosts, the refused one last."""
    params = conninfo_to_dict(conninfo)
    lists = {name: str(value).split(",") for name in _LISTS if (value := params.get(name))}
    count = max(map(len, lists.values()), default=0)
    whole = {name: each * count if len(each) == 1 else each for name, each in lists.items()}

    def is_refused(place: int) -> bool:
        named = {whole[name][place] for name in ("host", "hostaddr") if name in whole}
        return host in named and ("port" not in whole or whole["port"][place] in ("", port))

    order = sorted(range(count), key=is_refused)
    moved = {name: ",".join(each[place] for place in order) for name, each in whole.items()}
    return make_conninfo(conninfo, **moved)
