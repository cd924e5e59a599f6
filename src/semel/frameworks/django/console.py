"""The console as views of a Django project: ``authorize`` is given Django's own request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, re_path
from django.views.decorators.csrf import csrf_exempt

from semel.core.frozen import replace
from semel.core.policy import exempt
from semel.frameworks.django.http import read_head
from semel.web.tags import tag

if TYPE_CHECKING:
    from semel.console import Console


def console_urls(console: Console) -> list[URLPattern]:
    """For a URLconf: ``path("ops/semel/", include(console_urls(guard.console(…))))``.

    ``request.raw`` of ``authorize`` is Django's request, with the user that its middleware knows.
    The console has its own check of where a form comes from, which needs no token.
    """

    def view(request: HttpRequest, below: str) -> HttpResponse:
        read, _ = read_head(request)
        body = request.body if request.method == "POST" else b""
        # The resolver has decoded it: what was escaped is no path of the console's.
        answer = console.respond_to(replace(read, raw=request), quote(below, safe="/"), body)
        made = HttpResponse(answer.body, status=answer.status)
        del made["Content-Type"]
        for name, text in answer.headers:
            made[name.decode("latin-1")] = text.decode("latin-1")
        return made

    # Its forms have no keys, and need none.
    guarded: Any = tag(exempt())(csrf_exempt(view))
    return [re_path(r"^(?P<below>.*)\Z", guarded, name="semel-console")]
