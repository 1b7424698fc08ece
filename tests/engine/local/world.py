"""Processes on a virtual clock that ask one engine, which notes what it is asked."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from django_ratelimiter.engine import Charge, EngineUnavailable, Limit, MemoryEngine, Verdict
from django_ratelimiter.engine.call import Call
from django_ratelimiter.engine.coroutines import ImmediateAdapter
from django_ratelimiter.engine.local.engine import LocalFirstEngine
from django_ratelimiter.engine.local.store import LocalCounters
from django_ratelimiter.engine.usage import UsageBuffer
from tests.counting import sums_of

INTERVAL = 1.0
START_US = 1_700_000_000_000_000
WINDOW = 3_600

#: Makes another process on the one engine: `process(denial_memory=…, ask_interval=…, max_counters=…)`.
Process = Callable[..., Any]


class Clock:
    """Time that passes only when told to, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return 5_000.0 + self.now

    def us(self) -> int:
        return START_US + round(self.now * 1_000_000)


class Counted:
    """An engine that notes what it is asked.

    down: it is out of reach; lost: it decides, and its reply is lost. during: happens during the next call.
    """

    def __init__(self, clock: Clock) -> None:
        self.memory = MemoryEngine(clock.us)
        self.calls: list[Call] = []
        self.down = self.lost = False
        self.during: Callable[[], object] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.memory, name)

    def to_async(self) -> ImmediateAdapter:
        return ImmediateAdapter(self)

    def check(self, charges: Call, **options: Any) -> Sequence[Verdict]:
        if self.down:
            raise EngineUnavailable("made to fail")
        during, self.during = self.during, None
        if during:
            during()
        self.calls.append(charges)
        verdicts = self.memory.check(charges, **options)
        if self.lost:
            self.lost = False
            raise EngineUnavailable("made to lose the reply")
        return verdicts


class OnALoop:
    """The twin of a process, each of its calls run to its end: none of them ever waits."""

    def __init__(self, process: LocalFirstEngine) -> None:
        self._process, self._twin = process, process.to_async()

    def __getattr__(self, name: str) -> Any:
        if name in ("counters", "flush"):
            return getattr(self._process, name)
        return lambda *args, **options: _result(getattr(self._twin, name)(*args, **options))


def _result(call: Coroutine[Any, Any, Any]) -> Any:
    try:
        call.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("It waits.")


def over(engine: Any, clock: Clock, **options: Any) -> LocalFirstEngine:
    """Another process on this engine."""
    counters = LocalCounters(
        clock=clock, memory=MemoryEngine(clock.us, counts_usage=False), usage_buffer=UsageBuffer(clock=clock), **options
    )
    return LocalFirstEngine(engine, counters)


def charge(quota: int = 10, key: str = "key", **fields: Any) -> Charge:
    limit = fields.pop("limit", None) or Limit(
        quota, fields.pop("window", WINDOW), fields.pop("algorithm", "fixed_window")
    )
    return Charge(key, limit, **{"sync_interval": INTERVAL, **fields})


def admitted(engine: LocalFirstEngine, asked: Charge, times: int, **options: Any) -> int:
    return sum(engine.check([asked], **options)[0].allowed for _ in range(times))


def held(engine: Counted, asked: Charge) -> int:
    """What the engine holds as spent."""
    return asked.limit.quota - engine.memory.peek([asked._replace(cost=0)])[0].remaining


def counts(engine: Counted) -> dict[str, tuple[int, ...]]:
    """Usage that the engine was told of: allowed, rejected, shadow_rejected, soft_exceeded."""
    return sums_of(engine.memory, "allowed", "rejected", "shadow_rejected", "soft_exceeded")
