"""A client for requests."""

from __future__ import annotations

from typing import Any

from semel.client.clients import PreparedRequest, SyncClient, one_shot
from semel.client.model import CallAnswer
from semel.errors import ConfigurationError

try:
    import requests
    from requests.structures import CaseInsensitiveDict
except ImportError as missing:
    raise ConfigurationError(
        "semel.client.requests needs requests: pip install 'semel[requests]'"
    ) from missing

__all__ = ["RequestsClient"]

_PATIENCE = 30.0
"""Seconds; requests itself has no time-out."""


class RequestsClient(SyncClient[requests.Session, requests.Response]):
    """Calls through your own `requests.Session`, with its authentication, proxies and adapters.

    Each try waits 30 seconds for the connection and for each part of the answer, unless
    ``timeout=`` of a call says otherwise.
    """

    def _prepare(
        self,
        method: str,
        url: str,
        *,
        params: Any = None,
        data: Any = None,
        json: Any = None,
        files: Any = None,
        headers: Any = None,
        timeout: Any = _PATIENCE,
    ) -> PreparedRequest:
        request = requests.Request(
            method, url, headers=headers, params=params, data=data, json=json, files=files
        )
        prepared = self._http.prepare_request(request)
        body: Any = b"" if prepared.body is None else prepared.body
        if not isinstance(body, str | bytes):
            raise one_shot(body)
        # The headers of this call alone, and the type of its body: the session adds its own again.
        merged: Any = CaseInsensitiveDict(headers or {})
        if "Content-Type" in prepared.headers:
            merged["Content-Type"] = prepared.headers["Content-Type"]
        return PreparedRequest(
            method,
            prepared.url or url,
            tuple([(name, _text(text)) for name, text in merged.items() if text is not None]),
            body.encode() if isinstance(body, str) else body,
            {"timeout": timeout},
        )

    def _exchange(self, request: PreparedRequest) -> CallAnswer:
        prepared = self._http.prepare_request(
            requests.Request(
                request.method,
                request.url,
                headers=dict(request.headers),
                data=request.body or None,
            )
        )
        prepared.url = request.url  # the session's own parameters are in it already
        settings: Any = self._http.merge_environment_settings(request.url, {}, False, None, None)
        timeout = request.options.get("timeout", _PATIENCE)
        response = self._http.send(prepared, allow_redirects=False, timeout=timeout, **settings)
        if not _is_whole(response):
            raise requests.ConnectionError("the answer was cut short in its headers")
        lowered = {name.lower(): text for name, text in response.headers.items()}
        return CallAnswer(response.status_code, lowered, response.content, response)


def _is_whole(response: requests.Response) -> bool:
    """Whether the headers are complete.

    `http.client` accepts headers that end with the connection, and then takes the body, whose
    length it does not know, for an empty one. Such an answer looks like one that really is empty
    and ends with its connection; but servers state the length of those.
    """
    if response.status_code in (204, 304):
        return True
    said = response.headers.get
    if said("Content-Length", "").isdecimal() or "chunked" in said("Transfer-Encoding", "").lower():
        return True
    # It ends with its connection. A body is only there where the headers were whole.
    return bool(response.content)


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
