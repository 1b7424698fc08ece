"""All contestants by name, and how each is created. One that cannot be created is listed with the reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from importlib import import_module
from typing import Final

from .contest import CALLERS_EACH, HOUR, Contestant, timed

FLOOR_NAME: Final = "floor: redis-py, EVALSHA"
AWAITED_FLOOR: Final = "floor on an event loop: redis.asyncio, EVALSHA"

#: By name: the function that creates it, from the URL of a Redis and the seconds of a window.
MAKERS: Final = {
    FLOOR_NAME: "floor:through_client",
    "ours: engine.check, 1 rule": "ours.engines:one",
    "ours: engine.check, 3 rules": "ours.engines:three",
    "ours: engine.check, 1 rule, denial memory": "ours.engines:denial_memory",
    "ours: engine.check, 1 rule, approximate": "ours.engines:approximate",
    "ours: limiter.check(request), 1 rule": "ours.requests:one",
    "ours: limiter.check(request), 3 rules": "ours.requests:three",
    "ours: limiter.check(request), 3 rules, user and key": "ours.requests:known",
    "django-ratelimit: is_ratelimited": "peers.django_ratelimit:decision",
    "DRF: AnonRateThrottle": "peers.rest_framework:decision",
    "django-smart-ratelimit: @ratelimit": "peers.smart_ratelimit:decision",
    "limits: fixed window": "peers.limits:fixed",
    "throttled-py: token bucket": "peers.throttled:bucket",
    "pyrate-limiter: token bucket": "peers.pyrate:bucket",
    AWAITED_FLOOR: "floor:on_event_loop",
    "ours: AsyncRedisEngine.check, 3 rules": "ours.engines:awaited_three",
    "ours: limiter.acheck(request), 3 rules": "ours.requests:awaited_three",
}
#: These are compared with the floor of an event loop.
AWAITED: Final = tuple(MAKERS)[tuple(MAKERS).index(AWAITED_FLOOR) :]
#: These count on a node of a cluster.
MAKERS_ON_CLUSTER: Final = {
    "ours: engine.check, 1 rule, cluster node": "ours.engines:cluster_one",
    "ours: engine.check, 3 rules, cluster node": "ours.engines:cluster_three",
}
ON_CLUSTER: Final = tuple(MAKERS_ON_CLUSTER)
#: These decide locally, and are shown separately from those that call Redis each time.
REMEMBERING: Final = tuple(name for name in MAKERS if name.endswith(("denial memory", "approximate")))


def made(
    url: str, names: Iterable[str] = tuple(MAKERS), seconds: int = HOUR
) -> tuple[list[Contestant], dict[str, str]]:
    """Return the contestants that work, and the errors of the others.

    url: of the Redis; those with Django use the one in its settings, which must be the same.
    seconds: the window.
    """
    working: list[Contestant] = []
    failed: dict[str, str] = {}
    for name in names:
        module, _, function = (MAKERS | MAKERS_ON_CLUSTER)[name].partition(":")
        try:
            maker = getattr(import_module(f"{__package__}.{module}"), function)
            contestant: Contestant = replace(maker(url, seconds), name=name, first=first_caller(name))
            if not timed(contestant, [contestant.first]).admitted:
                raise RuntimeError("The first request was refused.")
        except Exception as error:  # any error; the others can still be measured
            failed[name] = reason(error)
        else:
            working.append(contestant)
    return working, failed


def first_caller(name: str) -> int:
    """Return the first of a contestant's own callers."""
    return (*MAKERS, *MAKERS_ON_CLUSTER).index(name) * CALLERS_EACH


def reason(error: BaseException) -> str:
    """Return an exception as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
