"""Ask a service for its health and its models: two requests of bounded time and size, to the address that the user named and to no other.

vLLM and SGLang both have /health (200 when the engine works) and /v1/models (with `max_model_len`).
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from dsdoctor import __version__
from dsdoctor.facts import HttpAnswer, Section, ServedModel, ServiceAnswers, known, not_asked
from dsdoctor.sources.host import Host
from dsdoctor.sources.probe import Scope
from dsdoctor.sources.texts import readable

REQUEST_TIMEOUT_S = 5.0
ANSWER_LIMIT_BYTES = 1 << 20
MOST_REDIRECTS = 3
MOST_MODELS = 100
TEXT_LIMIT = 300


def collect(host: Host, scope: Scope) -> Mapping[str, Section[Any]]:
    """Section service."""
    if not scope.service:
        return {"service": not_asked("no address was given (--service URL)")}
    timeout_s = min(REQUEST_TIMEOUT_S, scope.deadline_s / 2)
    health, _, _ = ask(scope.service, "/health", timeout_s)
    listing, body, server = ask(scope.service, "/v1/models", timeout_s)
    models = served_models(body) if listing.status == 200 and not listing.error else None
    return {
        "service": known(
            ServiceAnswers(url=scope.service, health=health, listing=listing, models=models, server=server),
            "GET /health, GET /v1/models",
        )
    }


def ask(address: str, path: str, timeout_s: float) -> tuple[HttpAnswer, bytes, str]:
    """One GET: what came back, its body, and what the server calls itself. Never raises."""
    began = time.monotonic()
    body, server, status, error = b"", "", None, ""
    try:
        with _opener(address).open(f"{address}{path}", timeout=timeout_s) as answer:
            status, server = answer.status, answer.headers.get("Server", "")
            body, error = _read(answer, began + timeout_s)
    except urllib.error.HTTPError as refused:
        with refused:
            status, server = refused.code, refused.headers.get("Server", "") if refused.headers else ""
            error = str(refused.reason) if refused.code in REDIRECTS else ""
    except TimeoutError:
        error = f"no answer within {timeout_s:g} s"
    except urllib.error.URLError as failed:
        late = isinstance(failed.reason, TimeoutError)
        error = f"no answer within {timeout_s:g} s" if late else getattr(failed.reason, "strerror", None) or str(failed.reason)
    except (http.client.HTTPException, OSError, ValueError) as failed:
        error = f"the answer is not HTTP ({type(failed).__name__})"
    answer_of = HttpAnswer(path=path, status=status, error=_short(error), elapsed_s=round(time.monotonic() - began, 3))
    return answer_of, body, _short(server)


def served_models(body: bytes) -> tuple[ServedModel, ...] | None:
    """The models in an answer of /v1/models; None when it is not one."""
    try:
        listed = json.loads(body)["data"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(listed, list):
        return None
    return tuple(_model(item) for item in listed[:MOST_MODELS] if isinstance(item, dict) and isinstance(item.get("id"), str))


def _model(item: Mapping[str, Any]) -> ServedModel:
    length = item.get("max_model_len")
    root = item.get("root")
    return ServedModel(
        id=_short(item["id"]), max_model_len=length if type(length) is int and 0 < length < 2**40 else None,
        root=_short(root) if isinstance(root, str) else "",
    )  # fmt: skip


def _read(answer: http.client.HTTPResponse, deadline: float) -> tuple[bytes, str]:
    """The body, and why it is not whole."""
    chunks, size = [], 0
    while chunk := answer.read1(1 << 16):
        chunks.append(chunk)
        size += len(chunk)
        if size > ANSWER_LIMIT_BYTES:
            return b"", f"the answer has more than {ANSWER_LIMIT_BYTES >> 20} MiB"
        if time.monotonic() > deadline:
            return b"", "the answer did not end in time"
    return b"".join(chunks), ""


REDIRECTS = (301, 302, 303, 307, 308)


class _SameHostOnly(urllib.request.HTTPRedirectHandler):
    """Follows a redirect only where it leads to the same scheme, host and port."""

    max_redirections = MOST_REDIRECTS
    max_repeats = MOST_REDIRECTS

    def __init__(self, address: str) -> None:
        self._origin = urlsplit(address)[:2]

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> urllib.request.Request | None:
        if urlsplit(newurl)[:2] != self._origin:
            raise urllib.error.HTTPError(req.full_url, code, "it points to another host, which is not followed", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener(address: str) -> urllib.request.OpenerDirector:
    """Without proxies: the question is whether this node reaches the service."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _SameHostOnly(address))
    opener.addheaders = [("User-Agent", f"dsdoctor/{__version__}"), ("Accept", "application/json")]
    return opener


def _short(text: str) -> str:
    return readable(text).strip()[:TEXT_LIMIT]
