"""No limiter: only the call that three rules need, packed once and sent over a bare socket before each view.

What is left between this and ours is what a process does to know who asks, which rules are met, and what to tell.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from urllib.parse import urlsplit

import redis
from django.http import HttpRequest, HttpResponse

from django_ratelimiter.engine import Charge, Limit, Version
from django_ratelimiter.engine.redis import RedisEngine
from django_ratelimiter.engine.redis.protocol import Mode, now

from ..contest import HOUR
from .rules import PLENTY
from .settings import REDIS_URL

_VERSION = Version(1)
_CHARGES = (
    Charge("one", Limit(PLENTY, HOUR), usage="one|", partition="somebody"),
    Charge("two", Limit(PLENTY, 86_400, "token_bucket"), usage="two|", partition="somebody"),
    Charge("three", Limit(PLENTY, HOUR, "fixed_window"), usage="three|", partition=""),
)


def limited(view: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """The view after that call, whose reply nobody reads closely."""
    engine = RedisEngine(redis.Redis.from_url(REDIS_URL), "bench-bare")
    engine.publish(_VERSION)
    engine.check(_CHARGES, version=_VERSION)
    server = urlsplit(REDIS_URL)
    connection = socket.create_connection((server.hostname, server.port or 6379))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def wrapped(request: HttpRequest) -> HttpResponse:
        connection.sendall(engine._packed(Mode.CHECK, _CHARGES, (), _VERSION, None, (now(),)))  # kept for a minute
        connection.recv(4_096)
        return view(request)

    return wrapped
