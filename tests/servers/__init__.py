"""Real servers for the tests: private, thrown away, and gone when the tests are.

postgres, mariadb, valkey    the databases; valkey has Sentinel and the cluster too
mysql                        a MySQL in MariaDB's place, where one is named
postgres_cluster, galera     three nodes each, with their failovers
pgbouncer                    a pooler before PostgreSQL
apps                         uvicorn and gunicorn with an application
served, serve_asgi           applications for these, and what starts one on a bound socket
chromium                     the browser, for the tests of the console

server       what every server has: a folder and a process
scoped       how each is entered and left, also when its start fails
databases    servers that have databases: a new one for each test
child        a process that is signalled, awaited and killed
warden       ends it with the test session, whatever happens
ports        ports that no other session uses
privileges   how a database server runs although the tests are root
debian       programs from Debian's packages
certificates certificates of an authority of the tests' own
"""

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
