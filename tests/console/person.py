"""Somebody before a real browser, and a console on a real port."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import uvicorn
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request, Response

from semel.console import Role
from tests.waiting import PATIENCE

TELL = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`violates ${event.violatedDirective}: ${event.blockedURI} ${event.sample}`));
"""
"""In every page: what the browser's policy refuses is told on its console."""

AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
RUN_AXE = """async () => {
  const found = await axe.run(document, { resultTypes: ["violations"] });
  return found.violations.flatMap((rule) => rule.nodes.map((node) =>
    `${rule.id}: ${node.html.slice(0, 200)}: ${node.failureSummary}`));
}"""


@contextmanager
def served(app: Any) -> Iterator[str]:
    """The address of an ASGI application under uvicorn, on a thread of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(app, access_log=False, log_level="error", lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(PATIENCE)


class Person:
    """A login with a browser of its own. All that the browser complains of is kept."""

    def __init__(
        self,
        browser: Browser,
        address: str,
        role: Role | None = Role.CUSTODIAN,
        name: str = "ada",
        **options: Any,
    ) -> None:
        self.address = address
        told = {} if role is None else {"x-role": role.value, "x-name": name}
        self.context = browser.new_context(extra_http_headers=told, **options)
        self.context.set_default_timeout(PATIENCE * 1000)
        self.context.add_init_script(TELL)
        self.page: Page = self.context.new_page()
        self.complaints: list[str] = []
        self.sent: list[str] = []
        """The paths of the forms that were sent, below the console."""
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.complaints.append(f"raised: {error}"))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"said {dialog.message}"))
        self.page.on("request", self._asked)
        self.page.on("requestfailed", self._failed)
        self.page.on("response", self._answered)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def _asked(self, request: Request) -> None:
        if request.method == "POST":
            self.sent.append(request.url.removeprefix(f"{self.address}/"))

    def _failed(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # it went to another page meanwhile
            self.complaints.append(f"{request.method} {request.url}: {request.failure}")

    def _answered(self, response: Response) -> None:
        if response.status >= 400:
            self.complaints.append(f"{response.status} {response.request.method} {response.url}")
        if not response.url.startswith(self.address):
            self.complaints.append(f"something from elsewhere: {response.url}")

    def open(self, path: str = "") -> Page:
        self.page.goto(f"{self.address}/{path}")
        return self.page

    def click(self, name: str, within: Page | Locator | None = None) -> None:
        (within or self.page).get_by_role("button", name=name).click()

    def click_link(self, name: str) -> None:
        self.page.get_by_role("link", name=name).click()

    def axe(self) -> list[str]:
        """What axe finds wrong with the page as it is now. The script is not the page's: it is run
        by the tool, past the page's policy."""
        if not self.page.evaluate("typeof axe === 'object'"):
            self.page.evaluate(AXE)
        found: list[str] = self.page.evaluate(RUN_AXE)
        return found

    def overflow(self) -> int:
        """Pixels by which the page is wider than the window."""
        wide: int = self.page.evaluate(
            "document.scrollingElement.scrollWidth - document.scrollingElement.clientWidth"
        )
        return wide
