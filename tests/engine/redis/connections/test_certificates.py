"""Certificates are read from disk once a minute, not for each connection."""

from __future__ import annotations

from typing import Any

import pytest
import redis
import redis.asyncio
from redis.connection import SSLConnection

from django_ratelimiter.engine.redis.connections import tls
from django_ratelimiter.engine.redis.connections.tls import MAX_AGE, TLSContextCache, share_tls_context


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
    monkeypatch.setattr(tls, "contexts", TLSContextCache(lambda: seconds[0]))
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
