"""Gateways that ask before they pass a request on, configured as the docs say: to a server that is not Django."""

from __future__ import annotations

import http.client
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.test import override_settings

from django_ratelimiter.models import AccessEntry
from example_project.redis_server import HOST, WatchedProcess, free_port
from tests.making import make_rule
from tests.pages import DOCS, PAGES, blocks, section

PAGE = PAGES["docs/howto/gateway.md"]
#: The addresses of clients, which are not trusted; the gateways ask from HOST.
CLIENT, OTHER, DENIED = "127.0.0.7", "127.0.0.8", "127.0.0.9"
#: How the programs are started, and the suffix by which they know their configuration.
PROGRAMS = {
    "nginx": ("nginx -e stderr -p {folder} -c {file}", ".conf"),
    "traefik": (
        "traefik --providers.file.filename={file} --entrypoints.web.address={host}:{port}"
        " --global.checknewversion=false --global.sendanonymoususage=false",
        ".yaml",
    ),
    "caddy": (
        "env XDG_CONFIG_HOME={folder} XDG_DATA_HOME={folder} caddy run --adapter caddyfile --config {file}",
        ".caddyfile",
    ),
    "envoy": ("envoy -c {file} --log-level error --concurrency 1 --use-dynamic-base-id", ".yaml"),
}
RARE = ("traefik", "envoy")
START_SECONDS = 120.0


def block(heading: str) -> str:
    """The first example under a heading."""
    if heading == "Envoy":
        return (DOCS / "howto/envoy.yaml").read_text("utf-8")
    return blocks(section(PAGE, f"## {heading}"), r"\w*")[0]


class Api(BaseHTTPRequestHandler):
    """A server that is not Django: it says what it was asked."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = f"{self.command} {self.path}".encode()
        self.send_response(403 if self.path.endswith("/forbidden") else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_given: Any) -> None:
        """Nobody reads it."""


@pytest.fixture
def api() -> Iterator[int]:
    """The port of a server that is not Django."""
    with ThreadingHTTPServer((HOST, 0), Api) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture
def limiter_port(live_server: Any) -> Iterator[int]:
    """The port of a Django site with the addresses of the docs, which trusts gateways on this machine."""
    module: Any = ModuleType("urls_of_the_docs")
    module.urlpatterns = []
    exec(block("The view"), module.__dict__)
    # Envoy names its own address, that of this machine in its network.
    trusted = [HOST, socket.gethostbyname(socket.gethostname()), *own_addresses()]
    entries = {"CACHE_ALIAS": "ratelimit", "DEADLINE_MS": 10_000, "TRUSTED_PROXIES": trusted}
    hosts = ["www.example.com", "shop.example", HOST]
    with override_settings(ROOT_URLCONF=module, RATELIMITER=entries, ALLOWED_HOSTS=hosts):
        yield int(live_server.url.rpartition(":")[2])


def own_addresses() -> list[str]:
    """The address that this machine would send from, if it has a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # which sends nothing
        except OSError:
            return []
        return [str(probe.getsockname()[0])]


Asking = Callable[..., tuple[int, dict[str, str], bytes]]


@contextmanager
def gateway(name: str, limiter_port: int, api: int, folder: Path, added: str = "") -> Iterator[Asking]:
    """Run a gateway as the docs configure it; yields `ask(method, path, client, **headers)`.

    added: what the docs add to nginx's location of questions, and below it.
    """
    port, (command, suffix) = free_port(), PROGRAMS[name]
    text = block({"nginx": "nginx", "traefik": "Traefik", "caddy": "Caddy", "envoy": "Envoy"}[name])
    for ours, documented in ((limiter_port, "8000"), (api, "3000")):
        text = text.replace(f"127.0.0.1:{documented}", f"{HOST}:{ours}").replace(
            f"value: {documented}", f"value: {ours}"
        )
    text = text.replace("listen 80;", f"listen {HOST}:{port};").replace("value: 80}", f"value: {port}}}")
    text = re.sub(r"^:80 ", f"http://:{port} ", text).replace("address: 0.0.0.0", f"address: {HOST}")
    if name == "nginx":
        text = re.sub(r"(location = /_ratelimit \{.*?)(\n    \})", rf"\1{added}\2", text, flags=re.DOTALL)
        text = f"daemon off; pid nginx.pid; events {{}} http {{ access_log off; {text} }}"
    if name == "caddy":
        text = f"{{\n\tadmin off\n\tauto_https off\n\tdefault_bind {HOST}\n}}\n{text}"
    file = folder / f"gateway{suffix}"
    file.write_text(text)
    process = WatchedProcess(command.format(folder=folder, file=file, host=HOST, port=port).split(), folder)

    def ask(method: str, path: str, client: str = CLIENT, **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(HOST, port, timeout=30, source_address=(client, 0))
        sent = {"Host": "shop.example", **{key.replace("_", "-"): value for key, value in headers.items()}}
        connection.request(method, path, b"x" if method == "POST" else None, sent)
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return response.status, {key.lower(): value for key, value in response.getheaders()}, body

    try:
        deadline = time.monotonic() + START_SECONDS
        while not is_ready(port):
            assert time.monotonic() < deadline, process.output
            assert process.running, process.output
            time.sleep(0.02)
        yield ask
    finally:
        process.stop()
        print(process.output)


def is_ready(port: int) -> bool:
    """Whether a gateway answers, and by its routes: Traefik reads them a little later."""
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    with closing(connection), suppress(OSError):
        connection.request("GET", "/api/", headers={"Host": "shop.example"})
        return connection.getresponse().status != 404
    return False


def each(*names: str) -> Any:
    """These gateways. Traefik and Envoy are no packages of Debian: they are tried where somebody has installed them.

    Without nginx or Caddy their tests are skipped: on a machine that is no maintainer's, a run names them and passes.
    """
    tried = [name for name in names if name not in RARE or shutil.which(name)]
    return pytest.mark.parametrize("name", [_installed(name) for name in tried])


def _installed(name: str) -> Any:
    return pytest.param(name, marks=pytest.mark.skipif(not shutil.which(name), reason=f"not on this machine: {name}"))


@pytest.fixture
def rules() -> None:
    """Two exports by POST a day for each address; reads of anything else are not limited."""
    AccessEntry.objects.create(action="deny", kind="ip", value=DENIED)
    matched = {"path": "/api/export", "path_kind": "prefix", "methods": ["POST"], "partition_by": ["ip"]}
    make_rule("exports", 2, **matched)


#: What of an allowed response's fields a gateway passes on to the client.
SHOWN_WHEN_ALLOWED = {"nginx": True, "traefik": False, "caddy": False, "envoy": True}


@pytest.mark.once
@each("nginx", "traefik", "caddy", "envoy")
def test_a_gateway_obeys_the_rules(name: str, limiter_port: int, api: int, rules: None, tmp_path: Path) -> None:
    forged = {"X_Forwarded_Uri": "/", "X_Forwarded_Method": "GET", "X_Forwarded_For": "203.0.113.99"}
    with gateway(name, limiter_port, api, tmp_path) as ask:
        status, fields, body = ask("POST", "/api/export?full=1")
        assert (status, body) == (200, b"POST /api/export?full=1")
        assert ("ratelimit" in fields) == SHOWN_WHEN_ALLOWED[name]
        assert ask("POST", "/api/export", **forged)[0] == 200
        status, fields, body = ask("POST", "/api/export", **forged)
        assert (status, int(fields["retry-after"]) > 40_000, fields["ratelimit"][:14]) == (429, True, '"exports";r=0;')
        assert fields["x-ratelimit-reference"].startswith("exports#")
        if name != "nginx":
            assert b'"violated-policies": ["exports"]' in body
        assert ask("GET", "/api/export")[0] == 200
        assert ask("POST", "/api/other")[0] == 200
        assert ask("POST", "/api//export/")[0] == 429
        assert ask("POST", "/api/export", OTHER)[0] == 200
        assert ask("GET", "/api/forbidden")[0] == 403  # by the server itself
        assert ask("GET", "/api/", DENIED)[0] == 403
        if name != "envoy":
            assert ask("GET", "/api/a%2f..;/export")[0] == 400, "servers read it in different ways"


@pytest.mark.once
@each("nginx")
def test_nginx_may_let_requests_pass_without_the_limiter(name: str, api: int, tmp_path: Path) -> None:
    with gateway(name, free_port(), api, tmp_path) as ask:
        assert ask("GET", "/api/")[0] == 500
    [line] = re.findall(r"`(error_page 502 .*?;)`", PAGE)
    [location] = re.findall(r"`(location = /_pass .*?)`", PAGE)
    with gateway(name, free_port(), api, tmp_path, f" {line} }} {location[:-1]}") as ask:
        assert ask("GET", "/api/")[::2] == (200, b"GET /api/")
