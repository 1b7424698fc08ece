"""Which processes decide requests, by which version of the rules, and whether they reach Redis.

A process sends a heartbeat at most once in INTERVAL, and at once if it has new rules or a breaker has opened or closed.
It is sent in a thread after the next decision, so that no request waits. A process without requests sends none.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
from contextlib import suppress
from threading import Thread
from time import monotonic, time
from typing import Any, Final, NamedTuple

from ..backend import get_engine
from ..engine.base import Version
from ..engine.breaker import on_state_change, open_breakers
from ..exceptions import EngineUnavailable
from ..signals import rules_changed

logger = logging.getLogger("django_ratelimiter")

#: Seconds between the heartbeats of a process that decides.
INTERVAL: Final = 30.0
#: Seconds after its last heartbeat for which a process is listed.
HEARD_SECONDS: Final = 120.0
#: Seconds after the last sign of it for which a proxy is reported that is not trusted; maximum number of them.
PROXY_SECONDS: Final = 3_600.0
MAX_PROXIES: Final = 10


class Heartbeat(NamedTuple):
    """One heartbeat of a process.

    process: its random name. version: of the rules that it uses. open_breakers: number of servers that it does not call
    at present. outage_at: when one of its breakers opened or closed last; `None` = never. at: when it was sent. Both in
    seconds since the Unix epoch. proxies: that seem not to be trusted, see `identity.proxies.Forwarding`.
    """

    process: str
    host: str
    pid: int
    version: Version
    open_breakers: int
    outage_at: float | None
    at: float
    proxies: tuple[str, ...] = ()


class Fleet(NamedTuple):
    """All processes with a recent heartbeat, this one first, and the versions that the shards of Redis hold.

    versions: `None` = a shard holds none; empty = the engine is not on Redis. unanswered: shards that did not answer.
    """

    heartbeats: list[Heartbeat]
    versions: list[Version | None]
    unanswered: int


class _Pulse:
    """The heartbeat of this process, and when it is due. due_at: monotonic seconds."""

    def __init__(self) -> None:
        self.begin()
        on_state_change(self.note_outage)
        rules_changed.connect(self.hasten, dispatch_uid="django_ratelimiter.heartbeats")

    def begin(self) -> None:
        """Start as a new process, for example after a fork."""
        self.process, self.pid = secrets.token_hex(6), os.getpid()
        self.due_at = float("-inf")
        self.outage_at: float | None = None
        self.proxies: dict[str, float] = {}
        self.thread: Thread | None = None

    def hasten(self, **_signal: object) -> None:
        """Send the heartbeat with the next decision."""
        self.due_at = float("-inf")

    def note_outage(self) -> None:
        """Record that a breaker has opened or closed."""
        self.outage_at = time()
        self.hasten()

    def note_proxy(self, proxy: str) -> bool:
        """Record that a proxy seems not to be trusted; returns whether that is new."""
        is_new = proxy not in self.proxies and len(self.proxies) < MAX_PROXIES
        if is_new:
            self.hasten()
        if is_new or proxy in self.proxies:
            self.proxies[proxy] = monotonic()
        return is_new

    def heartbeat(self, version: Version) -> Heartbeat:
        """Return the heartbeat to send now."""
        since = monotonic() - PROXY_SECONDS
        proxies = tuple(proxy for proxy, at in self.proxies.items() if at > since)
        return Heartbeat(
            self.process, socket.gethostname(), os.getpid(), version, open_breakers(), self.outage_at, time(), proxies
        )


pulse: Final = _Pulse()
os.register_at_fork(after_in_child=pulse.begin)


def beat(version: Version) -> None:
    """Send a heartbeat with this version in a thread, unless an earlier one is still being sent."""
    if pulse.pid != os.getpid():  # some servers fork without calling Python's fork hooks
        pulse.begin()
    pulse.due_at = monotonic() + INTERVAL
    store = getattr(get_engine(), "heartbeats", None)
    if store is not None and (pulse.thread is None or not pulse.thread.is_alive()):
        thread = Thread(target=_write, args=(store, version), name="ratelimiter-heartbeat", daemon=True)
        pulse.thread = thread
        with suppress(RuntimeError):  # no more threads available, or the process is ending
            thread.start()  # not `pulse.thread`: another request may have replaced it, and a thread starts only once


def _write(store: Any, version: Version) -> None:
    process, *rest = pulse.heartbeat(version)
    try:
        store.write(process, json.dumps(rest))
    except EngineUnavailable as error:
        logger.debug("The heartbeat of this process was not sent to Redis: %s", error)
    except Exception:  # an exception must not be printed when the thread ends
        logger.exception("The heartbeat of this process was not sent to Redis.")


def read_fleet(version: Version) -> Fleet:
    """Return the processes with a recent heartbeat. version: of this process's rules. Raises EngineUnavailable."""
    own, store = pulse.heartbeat(version), getattr(get_engine(), "heartbeats", None)
    if store is None:
        return Fleet([own], [], 0)
    versions, unanswered, texts = store.read()
    found = [_read(process, text) for process, text in texts.items() if process != own.process]
    heard = [each for each in found if each is not None and own.at - each.at <= HEARD_SECONDS]
    return Fleet([own, *sorted(heard, key=lambda each: (each.host, each.pid))], versions, unanswered)


def _read(process: str, text: str) -> Heartbeat | None:
    """Return a heartbeat; `None` if a later release of this app has written another format."""
    try:
        host, pid, version, open_now, outage_at, at, *more = json.loads(text)
        version, proxies = Version(*map(int, version)), tuple(str(each) for part in more[:1] for each in part)
        return Heartbeat(process, str(host), int(pid), version, int(open_now), outage_at, float(at), proxies)
    except (TypeError, ValueError):
        return None
