"""Which processes decide requests, by which version of the rules, and whether they reach Redis.

A process says so at most once in INTERVAL, and at once where it has new rules or a breaker has opened or closed: beside
its next decision, in a thread of its own, so that no request waits for it. A process that decides nothing says nothing.
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

from .backend import get_engine
from .engine.base import Version
from .engine.breaker import on_state_change, open_breakers
from .exceptions import EngineUnavailable
from .signals import rules_changed

logger = logging.getLogger("django_ratelimiter")

#: Seconds after which a process that decides says again that it is there.
INTERVAL: Final = 30.0
#: Seconds for which a process counts as heard of.
HEARD_SECONDS: Final = 120.0


class Heartbeat(NamedTuple):
    """What a process has said of itself.

    process: its name, made up when it begins. version: of the rules that it decides by. open_breakers: servers that it
    does not ask at present. outage_at: when a breaker of it opened or closed last; `None` = never. at: when it said so.
    Both in seconds since the Unix epoch.
    """

    process: str
    host: str
    pid: int
    version: Version
    open_breakers: int
    outage_at: float | None
    at: float


class Fleet(NamedTuple):
    """All processes that were heard of lately, this one first, and the versions that the shards of Redis hold.

    versions: `None` = a shard holds none; empty = the engine is not on Redis. unanswered: shards that gave no answer.
    """

    heartbeats: list[Heartbeat]
    versions: list[Version | None]
    unanswered: int


class _Pulse:
    """What this process says and when. due_at: monotonic seconds."""

    def __init__(self) -> None:
        self.begin()
        on_state_change(self.note_outage)
        rules_changed.connect(self.hasten, dispatch_uid="django_ratelimiter.heartbeats")

    def begin(self) -> None:
        """Begin as a new process, such as one that was forked just now."""
        self.process, self.pid = secrets.token_hex(6), os.getpid()
        self.due_at = float("-inf")
        self.outage_at: float | None = None
        self.thread: Thread | None = None

    def hasten(self, **_signal: object) -> None:
        """Say it beside the next decision."""
        self.due_at = float("-inf")

    def note_outage(self) -> None:
        """Note that a breaker has opened or closed."""
        self.outage_at = time()
        self.hasten()

    def heartbeat(self, version: Version) -> Heartbeat:
        """Return what is to be said now."""
        return Heartbeat(
            self.process, socket.gethostname(), os.getpid(), version, open_breakers(), self.outage_at, time()
        )


pulse: Final = _Pulse()
os.register_at_fork(after_in_child=pulse.begin)


def beat(version: Version) -> None:
    """Say that this process decides by this version, in a thread; not while an earlier one still tries to."""
    if pulse.pid != os.getpid():  # some servers fork without telling Python
        pulse.begin()
    pulse.due_at = monotonic() + INTERVAL
    store = getattr(get_engine(), "heartbeats", None)
    if store is not None and (pulse.thread is None or not pulse.thread.is_alive()):
        thread = Thread(target=_write, args=(store, version), name="ratelimiter-heartbeat", daemon=True)
        pulse.thread = thread
        with suppress(RuntimeError):  # no more threads to be had, or the process is about to end
            thread.start()  # ours: `pulse.thread` may be another request's by now, and none is to be started twice


def _write(store: Any, version: Version) -> None:
    process, *rest = pulse.heartbeat(version)
    try:
        store.write(process, json.dumps(rest))
    except EngineUnavailable as error:
        logger.debug("The heartbeat of this process was not sent to Redis: %s", error)
    except Exception:  # a thread's end is nobody's business
        logger.exception("The heartbeat of this process was not sent to Redis.")


def read_fleet(version: Version) -> Fleet:
    """Return which processes were heard of lately. version: of this process's rules. Raises EngineUnavailable."""
    own, store = pulse.heartbeat(version), getattr(get_engine(), "heartbeats", None)
    if store is None:
        return Fleet([own], [], 0)
    versions, unanswered, texts = store.read()
    found = [_read(process, text) for process, text in texts.items() if process != own.process]
    heard = [each for each in found if each is not None and own.at - each.at <= HEARD_SECONDS]
    return Fleet([own, *sorted(heard, key=lambda each: (each.host, each.pid))], versions, unanswered)


def _read(process: str, text: str) -> Heartbeat | None:
    """Return what was written; `None` where a later release of this app has written something else."""
    try:
        host, pid, version, open_now, outage_at, at = json.loads(text)
        return Heartbeat(process, str(host), int(pid), Version(*map(int, version)), int(open_now), outage_at, float(at))
    except (TypeError, ValueError):
        return None
