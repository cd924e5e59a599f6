"""The console by itself, as ``semel console`` serves it: where it listens, and who is let in.

On this machine alone, an address that works once is enough. Whoever listens more widely must say
how people are known: by a users file over TLS, or by a proxy and the addresses it asks from.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from semel.console.console import Console
from semel.console.login import LOGIN, LoginPages, OneTimeToken, by_proxy
from semel.console.roles import ConsoleUser, Role
from semel.console.users import UsersFile
from semel.core.frozen import frozen
from semel.errors import ConfigurationError
from semel.operators.trace_link import TraceLink

if TYPE_CHECKING:
    from semel.guard import Guard

_LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")
_CONNECTIONS: Final = 100


@frozen
class Standalone:
    """Settings of a console that is served by itself."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: any that is free."""
    role: str = Role.CUSTODIAN
    """Of whoever uses the address that works once."""
    users: Path | None = None
    names: Sequence[str] = ()
    """Under which it answers, besides those of this machine."""
    certificate: Path | None = None
    key: Path | None = None
    behind_tls: bool = False
    proxy_header: str | None = None
    proxy_from: Sequence[str] = ()
    role_header: str | None = None
    two_person: Sequence[str] = ()
    """Acts that a second person must approve, or ``all``."""
    trace_url: str | None = None
    """The search of the tracing system; None: the guard's own, if it has one."""

    @property
    def loopback(self) -> bool:
        """Whether only this machine reaches it."""
        try:
            return self.host == "localhost" or ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def tls(self) -> bool:
        """Whether browsers speak TLS, to it or to a proxy in front."""
        return self.certificate is not None or self.behind_tls

    def check(self) -> None:
        """Refuse settings that would let in whom nobody knows, each with a sentence."""
        if self.users is not None and self.proxy_header is not None:
            raise ConfigurationError("give --users or --proxy-header, not both")
        if (self.certificate is None) != (self.key is None):
            raise ConfigurationError("--certificate and --key belong together")
        if (self.proxy_header is None) != (not self.proxy_from):
            raise ConfigurationError(
                "--proxy-header and --proxy-from belong together: a header is believed only when "
                "it comes from the proxy's addresses"
            )
        if self.role_header is not None and self.proxy_header is None:
            raise ConfigurationError("--role-header is the proxy's: give --proxy-header too")
        self.ranges()
        if self.trace_url is not None:
            TraceLink(self.trace_url)
        if self.users is not None and not UsersFile(self.users).users():
            raise ConfigurationError(f"nobody is in {self.users}: semel users add {self.users}")
        if not self.loopback:
            self._check_wide()

    def _check_wide(self) -> None:
        if self.users is None and self.proxy_header is None:
            raise ConfigurationError(
                f"--host {self.host} is reached from other machines: say who may log in with "
                "--users FILE, or who is believed with --proxy-header and --proxy-from"
            )
        if self.users is not None and not self.tls:
            raise ConfigurationError(
                "passwords are not sent over the network in the clear: give --certificate and "
                "--key, or say --behind-tls where a proxy in front speaks TLS"
            )
        if not self.names and _any_address(self.host):
            raise ConfigurationError(
                f"--host {self.host} is every address of this machine: say with --name under "
                "which name browsers ask for it, so that no other name leads here"
            )

    def ranges(self) -> list[IPv4Network | IPv6Network]:
        try:
            found = [ip_network(each) for each in self.proxy_from]
        except ValueError as error:
            said = f"--proxy-from takes a range of addresses, say 10.0.0.0/8: {error}"
            raise ConfigurationError(said) from None
        if any(each.prefixlen == 0 for each in found):
            raise ConfigurationError(
                "--proxy-from is every address there is: anybody could say who they are"
            )
        return found

    def hosts(self) -> list[str]:
        own = [] if _any_address(self.host) else [self.host]
        return [*self.names, *own, *(_LOOPBACK_NAMES if self.loopback else ())]

    def console(self, guard: Guard, app: Any, user: str, port: int) -> tuple[Console, str | None]:
        """The console, and the token of the address that works once, where there is one."""
        rule = "all" if "all" in self.two_person else self.two_person or None
        common: dict[str, Any] = {"app": app, "hosts": self.hosts(), "two_person": rule}
        common |= {"trace_url": self.trace_url, "work_share": None}
        if self.proxy_header is not None:
            named = (self.proxy_header, self.ranges(), self.role_header)
            return Console(guard, by_proxy(*named, (Role.VIEWER,)), **common), None
        token = None if self.users is not None else OneTimeToken(ConsoleUser(user, [self.role]))
        users = None if self.users is None else UsersFile(self.users)
        pages = LoginPages(token=token, users=users, secure=self.tls, port=port)
        made = Console(guard, pages.authorize, login=pages, **common)
        return made, None if token is None else token.text

    def serve(self, guard: Guard, app: Any, user: str, ready: Callable[[str], None]) -> None:
        """Listen, tell ``ready`` the address to open, and serve until the process is told to end.

        Addresses are not logged: one of them has the token.
        """
        import uvicorn

        self.check()
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        with socket.create_server((self.host, self.port), family=family) as listening:
            port: int = listening.getsockname()[1]
            made, token = self.console(guard, app, user, port)
            config = uvicorn.Config(
                made,
                access_log=False,
                log_level="warning",
                proxy_headers=False,
                server_header=False,
                limit_concurrency=_CONNECTIONS,
                ssl_certfile=self.certificate,
                ssl_keyfile=self.key,
            )
            ready(self._address(port, token))
            uvicorn.Server(config).run([listening])

    def _address(self, port: int, token: str | None) -> str:
        host = self.names[0] if self.names else self.host
        at = f"[{host}]" if ":" in host else host
        scheme = "https" if self.certificate is not None else "http"
        return f"{scheme}://{at}:{port}/" + ("" if token is None else f"{LOGIN}?token={token}")


def _any_address(host: str) -> bool:
    try:
        return not host or ip_address(host).is_unspecified
    except ValueError:
        return False
