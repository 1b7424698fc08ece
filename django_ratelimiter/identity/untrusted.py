"""Rejections that reveal a proxy which is not trusted: those of one address that name different callers."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from time import monotonic
from typing import Any, Final
from zlib import crc32

from django.dispatch import Signal
from django.http import HttpRequest

from ..backend import get_engine
from ..conf import settings
from ..decision import Owner
from ..exceptions import EngineUnavailable
from ..logs import logger
from .proxies import forwarding, reported, trusting

#: Maximum number of different rejections that a process examines in a minute, and of addresses that it remembers.
MAX_EXAMINED: Final = 1_000
#: Maximum number of proxies that a process finds, and seconds after which it notes one again in Redis.
MAX_FOUND, FOUND_SECONDS = 10, 3_600

#: By an address that is not trusted: the first caller that it named.
named: Final[dict[str, str]] = {}
#: By proxy and setting, see `_noted_as`: when this process noted it, in monotonic seconds.
noted: Final[dict[str, float]] = {}
#: Hashes of what the rejected requests that were examined in the current minute say of their callers.
heard: Final[set[int]] = set()
_minute = 0.0

#: Sent with a `proxy` to note: on an event loop its receiver is called in a thread.
proxy_found: Signal = Signal()


def examine(request: HttpRequest, by: Iterable[Owner]) -> str | None:
    """Return the proxy, if a request that these limits reject names another caller than an earlier one of its address.

    It is logged once, and returned at most once in FOUND_SECONDS. See `identity.proxies.Forwarding`.
    """
    global _minute
    said, minute = reported(request), monotonic() // 60
    if minute != _minute:
        _minute = minute
        heard.clear()
    if not said[1] or (what := hash(said)) in heard or len(heard) >= MAX_EXAMINED:
        return None
    if not any(each.rule.asks_for_address for each in by):
        return None
    heard.add(what)
    found = forwarding(request)
    if found is None:
        return None
    if len(named) >= MAX_EXAMINED:
        named.clear()
    if named.setdefault(found.address, found.caller) == found.caller:
        return None
    text, now = _noted_as(found.proxy), monotonic()
    if text not in noted:
        if len(noted) >= MAX_FOUND:
            return None
        logger.warning(
            "Rejected requests of one address name different callers in %s. If it is your proxy, all its callers share "
            "one counter: set RATELIMITER['TRUSTED_PROXIES'] to %s. If not, a caller invents these names.",
            found.field,
            trusting(found.proxy),
        )
    elif now - noted[text] < FOUND_SECONDS:
        return None
    noted[text] = now
    return found.proxy


def found_lately() -> set[str]:
    """Return the proxies that processes with our TRUSTED_PROXIES have found in the last hours.

    Without Redis, those that this process has found. Raises EngineUnavailable.
    """
    engine: Any = getattr(found := get_engine(), "engine", found)
    ours, texts = _noted_as(""), engine.proxies() if hasattr(engine, "proxies") else noted
    return {text.removeprefix(ours) for text in texts if text.startswith(ours)}


def _note(proxy: str, **_signal: Any) -> None:
    """Let the overview show this proxy, whichever process makes the page."""
    engine: Any = get_engine()
    if hasattr(engine, "note_proxy"):
        with suppress(EngineUnavailable):
            engine.note_proxy(_noted_as(proxy))


def _noted_as(proxy: str) -> str:
    """Return a text of a proxy and a mark of the setting: once that is right, the overview shows the proxy no more."""
    return f"{crc32(repr(settings.TRUSTED_PROXIES).encode()):08x} {proxy}"


proxy_found.connect(_note)
