"""Real servers for the tests: private, thrown away, and gone when the tests are."""

from tests.servers.apps import AppServer, gunicorn, uvicorn
from tests.servers.child import Child, ServerError
from tests.servers.mariadb import MariadbServer
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer
from tests.servers.valkey import SentinelGroup, ValkeyCluster, ValkeyServer

__all__ = [
    "AppServer",
    "Child",
    "MariadbServer",
    "PgBouncer",
    "PostgresServer",
    "SentinelGroup",
    "ServerError",
    "ValkeyCluster",
    "ValkeyServer",
    "gunicorn",
    "uvicorn",
]
