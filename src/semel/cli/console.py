"""``semel console``: the console by itself; ``semel users``: who may log in to it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from semel.cli import output
from semel.cli.targets import Target, app_at, current_user
from semel.errors import ConfigurationError

if TYPE_CHECKING:
    from semel.console.users import UsersFile

_ROLES: Final = ("viewer", "operator", "custodian")
_PATH: Final = click.Path(dir_okay=False, path_type=Path)
_NEEDS: Final = {"jinja2", "markupsafe", "uvicorn"}


@click.command()
@click.argument("url", required=False)
@click.option("--guard", envvar="SEMEL_GUARD", help="The application's guard, say shop:guard.")
@click.option(
    "--app", envvar="SEMEL_APP", help="The application, for policies on endpoints, say shop:app."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8410, show_default=True, help="0: a free one."
)
@click.option(
    "--role",
    type=click.Choice(_ROLES),
    default="custodian",
    show_default=True,
    help="Of whoever opens the printed address.",
)
@click.option("--users", type=_PATH, help="Who may log in: a file that `semel users add` writes.")
@click.option("--name", "names", multiple=True, help="A name it answers to. Repeatable.")
@click.option("--certificate", type=_PATH, help="For TLS: the certificate with its chain.")
@click.option("--key", type=_PATH, help="For TLS: the private key.")
@click.option("--behind-tls", is_flag=True, help="A proxy in front speaks TLS to browsers.")
@click.option("--proxy-header", help="Where a proxy names who is logged in, say X-User.")
@click.option(
    "--proxy-from", multiple=True, help="The proxy's addresses, say 10.0.0.0/8. Repeatable."
)
@click.option("--role-header", help="Where the proxy says their roles; else they are viewers.")
@click.option(
    "--two-person",
    multiple=True,
    type=click.Choice(("all", "evict", "free", "absent", "erase", "drop")),
    help="An act that a second person must approve. Repeatable.",
)
@click.option(
    "--trace-url", help="The search of your tracing system, say https://…/search?q={identity}."
)
@click.pass_context
def console(
    context: click.Context, /, url: str | None, guard: str | None, app: str | None, **given: Any
) -> None:
    """Serve the console of the store at URL, and print an address that lets you in once.

    Without URL and --guard it is the store of the settings: SEMEL_STORE, or semel.toml. It listens
    on this machine alone. To let others in, name a users file and speak TLS, or name the header in
    which a proxy says who is logged in, and the proxy's addresses. With --guard probes and settings
    are the application's, with --app the policies on its endpoints too.
    """
    try:
        import uvicorn as _  # noqa: F401 - missing, it is told before anything is opened

        from semel.console.standalone import Standalone
    except ModuleNotFoundError as missing:
        if missing.name not in _NEEDS:
            raise
        said = f"the console needs {missing.name}; install: pip install 'semel[cli,console]'"
        output.fail(said, output.FAILED)
    if url is not None and context.get_parameter_source("guard") is ParameterSource.ENVIRONMENT:
        guard = None  # what is typed comes before what is set
    standalone = Standalone(**given)
    standalone.check()
    opened = Target(guard, url, app).open_guard()
    serves = None if app is None else app_at(app)

    def ready(address: str) -> None:
        output.say(f"the console of {opened.backend.url}")
        output.say(f"  {address}")
        if "token=" in address:
            output.say("this address works once; Ctrl-C ends the console")

    try:
        standalone.serve(opened, serves, current_user(), ready)
    except OSError as error:
        where = f"{standalone.host}:{standalone.port}"
        output.fail(f"{where} cannot be listened on: {error.strerror}", output.FAILED)
    finally:
        opened.close()


@click.group()
def users() -> None:
    """Who may log in to `semel console --users FILE`."""


def _file(path: Path) -> UsersFile:
    from semel.console.users import UsersFile

    return UsersFile(path)


@users.command("add")
@click.argument("file", type=_PATH)
@click.argument("name")
@click.option("--role", type=click.Choice(_ROLES), required=True, help="What they may do.")
def add_user(file: Path, name: str, role: str) -> None:
    """Add NAME to FILE, or change their role and password. The password is asked for.

    Where the input is no terminal, it is its first line.
    """
    from semel.console.roles import ConsoleUser

    if sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    new = _file(file).add(ConsoleUser(name, [role]), password)
    output.say(f"{name} was {'added' if new else 'changed'}: {role}")


@users.command("remove")
@click.argument("file", type=_PATH)
@click.argument("name")
def remove_user(file: Path, name: str) -> None:
    """Take NAME out of FILE. Their sessions end at once."""
    if not _file(file).remove(name):
        raise ConfigurationError(f"{name} is not in {file}")
    output.say(f"{name} was removed")


@users.command("list")
@click.argument("file", type=_PATH)
@output.as_json
def list_users(file: Path, as_json: bool) -> None:
    """List who is in FILE."""
    found = [(name, sorted(each.user.roles)) for name, each in _file(file).users().items()]
    if as_json:
        output.print_json([{"name": name, "roles": roles} for name, roles in found])
    else:
        rows = [(name, ", ".join(roles)) for name, roles in found]
        output.say_table(("NAME", "ROLES"), rows, "nobody")
