"""The engine over TLS, and certificates, which are read from disk once a minute and not for each connection."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.connection import SSLConnection
from redis.sentinel import Sentinel

from django_ratelimiter.engine import Charge, EngineUnavailable, Limit
from django_ratelimiter.engine.redis import LazyRedisCluster, RedisEngine
from django_ratelimiter.engine.redis.connections import connection
from django_ratelimiter.engine.redis.connections.clients import async_client_of
from django_ratelimiter.engine.redis.connections.connection import MAX_AGE, TLSContextCache, share_tls_context
from example_project.redis_server import HOST, ServerError, find_binary
from tests.clusters import Cluster, ServerWith

CHARGE = Charge("key", Limit(5, 86_400, "token_bucket"))


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ca.pem, other-ca.pem, and peer.pem with peer.key, which the first has signed for 127.0.0.1."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on PATH to make certificates with")
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    new += ("-addext", "keyUsage=critical,digitalSignature,keyCertSign")  # Python 3.13 and later insist on it
    for name in ("ca", "other-ca"):
        openssl(*new, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-addext", f"subjectAltName=IP:{HOST}")
    openssl(*new, "-subj", "/CN=peer", *signed, "-keyout", "peer.key", "-out", "peer.pem")
    return folder


@pytest.fixture(scope="session")
def encrypting(certificates: Path) -> dict[str, Any]:
    """The options of a server that speaks TLS and asks for a certificate: the first binary here that can."""
    options = {
        "tls_cert_file": str(certificates / "peer.pem"),
        "tls_key_file": str(certificates / "peer.key"),
        "tls_ca_cert_file": str(certificates / "ca.pem"),
    }
    for binary in (find_binary(), *filter(None, map(shutil.which, ("redis-server", "valkey-server")))):
        try:
            with ServerWith("tls-port", binary=binary, **options):
                return {**options, "binary": binary}
        except ServerError:
            continue
    pytest.skip("no redis-server or valkey-server here was built with TLS")


@pytest.fixture
def trusting(certificates: Path) -> dict[str, Any]:
    """The options of a client that knows the server's authority, and has a certificate of its own."""
    return {
        "ssl_ca_certs": str(certificates / "ca.pem"),
        "ssl_certfile": str(certificates / "peer.pem"),
        "ssl_keyfile": str(certificates / "peer.key"),
    }


def remaining_in_both(engine: RedisEngine) -> list[int]:
    """What remains after a call in this thread and one on an event loop."""
    twin: Any = engine.to_async()

    async def check() -> int:
        try:
            return int((await twin.check([CHARGE]))[0].remaining)
        finally:
            await twin.aclose()

    return [engine.check([CHARGE])[0].remaining, asyncio.run(check())]


def test_one_server(encrypting: dict[str, Any], trusting: dict[str, Any], certificates: Path) -> None:
    with ServerWith("tls-port", **encrypting) as server:
        url = f"rediss://{HOST}:{server.ports[1]}/0"
        with redis.Redis.from_url(url, **trusting) as client:
            assert remaining_in_both(RedisEngine(client, deadline=60)) == [4, 3]
        misled = {**trusting, "ssl_ca_certs": str(certificates / "other-ca.pem")}
        for wrong in ({}, misled, {"ssl_ca_certs": trusting["ssl_ca_certs"]}):
            with redis.Redis.from_url(url, **wrong) as client:
                twin: Any = RedisEngine(client, deadline=60).to_async()
                with pytest.raises(EngineUnavailable):
                    RedisEngine(client, deadline=60).check([CHARGE])
                with pytest.raises(EngineUnavailable):
                    asyncio.run(twin.check([CHARGE]))


def test_a_cluster(encrypting: dict[str, Any], trusting: dict[str, Any]) -> None:
    """Its nodes name each other by their ports for TLS to whoever asks by TLS."""
    with Cluster(2, 0, "tls-port", steady=True, tls_cluster="yes", **encrypting) as cluster:
        client = LazyRedisCluster(f"rediss://{HOST}:{cluster.servers[0].ports[2]}", **trusting)
        engine = RedisEngine(client, deadline=60)
        assert remaining_in_both(engine) == [4, 3]
        engine.publish(1)
        assert client.get("{rl:40}:version") == b"0:1"
        client.close()


def test_the_master_that_sentinels_name() -> None:
    """The options go to event loops as well."""
    client = Sentinel([(HOST, 1)]).master_for("name", ssl=True, ssl_ca_certs="ca.pem", username="limiter")
    twin: Any = async_client_of(client)
    link = twin.connection_pool.connection_class(**twin.connection_pool.connection_kwargs)
    assert isinstance(link, redis.asyncio.connection.SSLConnection)
    assert (link.username, link.ssl_context.ca_certs, link.ssl_context.check_hostname) == ("limiter", "ca.pem", True)


class Context:
    """A context that wraps nothing, and fails if it is told to."""

    fails = False

    def wrap_socket(self, sock: Any, server_hostname: str) -> Any:
        if self.fails:
            raise OSError("certificate verify failed")
        return Wrapped(self, server_hostname)


class Wrapped:
    def __init__(self, context: Context, host: str) -> None:
        self.context, self.host = context, host


class Link:
    """A connection as redis-py makes it."""

    ssl_validate_ocsp = ssl_validate_ocsp_stapled = False

    def __init__(self, host: str) -> None:
        self.host = host

    def _wrap_socket_with_ssl(self, sock: Any) -> Any:
        return Context().wrap_socket(sock, self.host)


class Pool:
    pass


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that the clock shows."""
    seconds = [0.0]
    monkeypatch.setattr(connection, "contexts", TLSContextCache(lambda: seconds[0]))
    return seconds


def wrapped(pool: Pool, host: str = "a") -> Any:
    link = Link(host)
    share_tls_context(pool, link)
    return link._wrap_socket_with_ssl(None)


def test_connections_of_one_pool_share_what_was_read(now: list[float]) -> None:
    pool = Pool()
    first, second = wrapped(pool, "a"), wrapped(pool, "b")
    assert first.context is second.context
    assert (first.host, second.host) == ("a", "b"), "each is compared with the name that it was called by"
    assert wrapped(Pool()).context is not first.context


def test_it_is_read_anew_after_a_while(now: list[float]) -> None:
    pool = Pool()
    first = wrapped(pool)
    now[0] = MAX_AGE
    assert wrapped(pool).context is not first.context


def test_it_is_read_anew_after_a_failure(now: list[float]) -> None:
    pool = Pool()
    first = wrapped(pool)
    first.context.fails = True
    with pytest.raises(OSError, match="verify failed"):
        wrapped(pool)
    assert wrapped(pool).context is not first.context


def test_where_ocsp_is_asked_nothing_is_shared(now: list[float]) -> None:
    pool, link = Pool(), Link("a")
    link.ssl_validate_ocsp = True
    share_tls_context(pool, link)
    assert "_wrap_socket_with_ssl" not in vars(link)


def test_redis_py_is_as_we_take_it_to_be() -> None:
    link = SSLConnection(host="a")
    share_tls_context(Pool(), link)
    assert "_wrap_socket_with_ssl" in vars(link)
    assert redis.asyncio.SSLConnection(host="a").ssl_context.get()
