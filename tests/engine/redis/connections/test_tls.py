"""The engine over TLS, with certificates made for the occasion."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.sentinel import Sentinel

from django_ratelimiter.engine import Charge, EngineUnavailable, Limit
from django_ratelimiter.engine.redis import LazyRedisCluster, RedisEngine
from django_ratelimiter.engine.redis.connections.clients import async_client_of
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
