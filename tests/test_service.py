"""`--service`: two bounded requests to the address that the user named, whatever answers there."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from dsdoctor.probes import endpoint
from typer.testing import CliRunner

from dsdoctor.cli import command_line
from dsdoctor.errors import UsageError
from dsdoctor.facts import ServedModel, ServiceAnswers, State
from dsdoctor.sources.address import service_address
from dsdoctor.sources.host import Host
from dsdoctor.sources.probe import Scope

Answer = Callable[[BaseHTTPRequestHandler], None]
MODELS = {"object": "list", "data": [{"id": "deepseek-ai/DeepSeek-V3", "root": "/models/DeepSeek-V3", "max_model_len": 32768}]}


def says(status: int, body: bytes = b"", **headers: str) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(body)

    return answer


@contextlib.contextmanager
def serving(**answers: Answer) -> Iterator[tuple[str, list[str]]]:
    """A server on this machine with an answer for /health and for /v1/models; its address, and what was asked of it."""
    asked: list[str] = []
    by_path = {"/health": answers.get("health", says(200)), "/v1/models": answers.get("models", says(200, json.dumps(MODELS).encode()))}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            with contextlib.suppress(OSError):
                by_path.get(self.path, says(404))(self)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


def answers_of(url: str, patience_s: float = 3.0) -> ServiceAnswers:
    section = endpoint.collect(Host(), Scope(target=None, deadline_s=2 * patience_s, service=url))["service"]
    assert section.state is State.KNOWN
    value: ServiceAnswers = section.value
    return value


def test_a_healthy_engine_tells_its_models() -> None:
    with serving() as (url, asked):
        found = answers_of(url)
    assert (found.health.status, found.health.error, found.listing.status) == (200, "", 200)
    assert found.models == (ServedModel(id="deepseek-ai/DeepSeek-V3", root="/models/DeepSeek-V3", max_model_len=32768),)
    assert asked == ["/health", "/v1/models"]


@pytest.mark.parametrize("status", [503, 500, 401, 404])
def test_an_engine_that_says_no(status: int) -> None:
    with serving(health=says(status, b"loading"), models=says(status)) as (url, _):
        found = answers_of(url)
    assert (found.health.status, found.listing.status, found.models) == (status, status, None)


def test_an_engine_that_hangs_is_given_up() -> None:
    with serving(health=lambda _: time.sleep(3.0)) as (url, _):
        began = time.monotonic()
        found = answers_of(url, 0.5)
    assert time.monotonic() - began < 2.5
    assert (found.health.status, found.health.error) == (None, "no answer within 0.5 s")
    assert found.listing.status == 200, "the second question is asked all the same"


def test_an_answer_that_never_ends_and_one_that_is_huge() -> None:
    def drips(request: BaseHTTPRequestHandler) -> None:
        says(200, **{"Content-Length": "1000000"})(request)
        for _ in range(200):
            request.wfile.write(b" ")
            request.wfile.flush()
            time.sleep(0.02)

    huge = b"[" + b" " * (endpoint.ANSWER_LIMIT_BYTES + 1)
    with serving(health=drips, models=says(200, huge)) as (url, _):
        found = answers_of(url, 0.5)
    assert found.health.error == "the answer did not end in time"
    assert (found.listing.error, found.models) == ("the answer has more than 1 MiB", None)


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[]", b'{"data": 7}', b'{"data": {"id": "x"}}', b"\xff\xfe", b"[" * 100_000, b'{"data": [{"max_model_len": 5}, 3]}'],
)
def test_rubbish_is_no_list_of_models(body: bytes) -> None:
    with serving(models=says(200, body)) as (url, _):
        assert not answers_of(url).models


def test_values_of_a_model_that_cannot_be_are_left_out() -> None:
    listed = {
        "data": [
            {"id": "m\x00" * 400, "max_model_len": "8192", "root": 5},
            {"id": "n", "max_model_len": -1},
            {"id": "o", "max_model_len": True},
        ]
    }
    with serving(models=says(200, json.dumps(listed).encode())) as (url, _):
        models = answers_of(url).models or ()
    assert [(model.max_model_len, model.root) for model in models] == [(None, "")] * 3
    assert max(len(model.id) for model in models) <= endpoint.TEXT_LIMIT


def test_what_is_no_http_at_all() -> None:
    def noise(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(b"\x00\x01\x02 nothing\r\n\r\n")
        request.close_connection = True

    with serving(health=noise) as (url, _):
        assert answers_of(url).health.error.startswith("the answer is not HTTP")
    assert "refused" in answers_of(url).health.error.lower(), "the server is gone"


def test_a_redirect_to_another_host_is_not_followed_and_one_to_the_same_is() -> None:
    with serving() as (elsewhere, asked_there), serving(health=says(307, Location=f"{elsewhere}/health")) as (url, _):
        found = answers_of(url)
    assert (found.health.status, asked_there) == (307, [])
    assert "another host" in found.health.error
    with serving(health=says(307, Location="/v1/models")) as (url, asked):
        assert answers_of(url).health.status == 200
        assert asked[:2] == ["/health", "/v1/models"]
    with serving(health=says(302, Location="/health")) as (url, asked):
        assert answers_of(url).health.status == 302
        assert len(asked) < 10, "a circle is left"


@pytest.mark.parametrize(
    ("text", "says_"),
    [
        ("ftp://node/x", "only http and https"), ("file:///etc/passwd", "only http and https"), ("node:8000", "only http and https"),
        ("http://", "names no host"), ("http://a b/", "names no host"), ("http://h:99999", "Port out of range"), ("http://h:0", "port 0"),
        ("http://user:pw@h/", "user name or password"), ("http://h/?key=1", "a query"), ("http://[::1", "expected an address"),
    ],
)  # fmt: skip
def test_addresses_that_are_not_asked(text: str, says_: str) -> None:
    with pytest.raises(UsageError, match=says_.replace("?", r"\?")) as caught:
        service_address(text)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("http://h:8000", "http://h:8000"), ("HTTPS://h/", "https://h"), ("http://h:30000/v1", "http://h:30000"),
        ("http://h/proxy/v1/models", "http://h/proxy"), ("http://[::1]:8000/health", "http://[::1]:8000"),
    ],
)  # fmt: skip
def test_addresses_by_their_base(text: str, address: str) -> None:
    assert service_address(text) == address


def test_the_command_asks_only_where_it_was_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(*arguments: str) -> Any:
        return CliRunner().invoke(command_line(), ["check", "--only", "service", "--format", "json", *arguments])

    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with serving() as (url, asked):
        healthy = check("--service", f"{url}/v1")
        assert (healthy.exit_code, json.loads(healthy.stdout)["verdict"]) == (0, "healthy")
        asked.clear()
        check()
        assert asked == []
    with serving(health=says(503)) as (url, _):
        sick = check("--service", url)
    (found,) = json.loads(sick.stdout)["diagnosis"]
    assert (sick.exit_code, found["check"]) == (1, "service.unhealthy")
    assert "answers 503" in found["summary"]
    assert "127.0.0.1" in json.dumps(found["remedies"])
    refused = check("--service", "gopher://x")
    assert refused.exit_code == 2
    assert json.loads(refused.stdout)["exit_code"] == 2
