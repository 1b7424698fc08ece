"""No limiter: only the call for three rules, packed in advance and sent over a bare socket before each view.

The difference to ours is what a process does to identify the caller, match rules, and write response fields.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import redis
from django.http import HttpRequest, HttpResponse

from django_ratelimiter.engine import Charge, Limit, Version
from django_ratelimiter.engine.redis import RedisEngine

from ..contest import HOUR
from ..proxy import CountingProxy
from .rules import PLENTY
from .settings import REDIS_URL

_VERSION = Version(1)
# Without notes about partitions: as most calls of a busy process.
_CHARGES = (
    Charge("one", Limit(PLENTY, HOUR), usage="one|"),
    Charge("two", Limit(PLENTY, 86_400, "token_bucket"), usage="two|"),
    Charge("three", Limit(PLENTY, HOUR, "fixed_window"), usage="three|"),
)
_server = urlsplit(REDIS_URL)


def packed_call() -> bytes:
    """Return what the engine sends for three rules, recorded by a proxy. It is valid in this minute."""
    with CountingProxy(_server.port or 6379) as proxy:
        url = _server._replace(netloc=f"127.0.0.1:{proxy.port}").geturl()
        with redis.Redis.from_url(url) as client:
            engine = RedisEngine(client, "bench-bare")
            engine.publish(_VERSION)
            for _ in range(3):  # by now the script is loaded, and every usage label is known
                engine.check(_CHARGES, version=_VERSION)
        return proxy.last


class Call:
    """The call over its own connection."""

    def __init__(self) -> None:
        self._minute, self._packed = 0, b""
        self._connection = socket.create_connection((_server.hostname, _server.port or 6379))
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def packed(self) -> bytes:
        """Return what to send in this minute."""
        minute = int(time.time() // 60)
        if minute != self._minute:
            self._minute, self._packed = minute, packed_call()
        return self._packed

    def send(self) -> None:
        """Send it and read the reply, which is ignored."""
        self._connection.sendall(self.packed())
        self._connection.recv(4_096)


def limited(view: Callable[[HttpRequest], HttpResponse], _quota: int) -> Callable[[HttpRequest], Any]:
    """Return the view after that call."""
    call = Call()

    def wrapped(request: HttpRequest) -> HttpResponse:
        call.send()
        return view(request)

    return wrapped
