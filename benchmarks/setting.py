"""The setting of a stage: the server, the duration, and the processors."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import redis

#: Whether processes can be bound to a processor here; macOS cannot.
CAN_PIN: Final = hasattr(os, "sched_setaffinity")
ALL: Final = frozenset(os.sched_getaffinity(0)) if CAN_PIN else frozenset(range(os.cpu_count() or 1))


class Cpu(NamedTuple):
    """Seconds of CPU time that a server has used, and calls of scripts with the microseconds in them."""

    seconds: float
    calls: int
    script_us: int


@dataclass(frozen=True)
class Setting:
    """url: of the server. server: its process id. brief: whether rough figures are enough."""

    url: str
    server: int
    brief: bool

    @classmethod
    def of_environment(cls, *, brief: bool) -> Setting:
        """Return the setting in the environment, from the run."""
        return cls(os.environ["BENCH_REDIS_URL"], int(os.environ["BENCH_REDIS_PID"]), brief)

    def few_or(self, many: int) -> int:
        """Return this many, or an eighth in a brief run."""
        return max(2, many // 8) if self.brief else many

    def client(self) -> redis.Redis:
        """Return a new client."""
        return redis.Redis.from_url(self.url)


def pin(processes: Iterable[int], *, alone: bool) -> None:
    """Bind these processes, 0 being this one, to one processor, or to none."""
    if CAN_PIN:
        for process in processes:
            os.sched_setaffinity(process, {max(ALL)} if alone else ALL)


def cpu_of(client: redis.Redis) -> Cpu:
    """Return the server's own figures."""
    spent, commands = client.info("cpu"), client.info("commandstats")
    script = commands.get("cmdstat_evalsha", {"calls": 0, "usec": 0})
    return Cpu(spent["used_cpu_user"] + spent["used_cpu_sys"], script["calls"], script["usec"])


def progress(text: str) -> None:
    """Print the progress."""
    print(f"    {text}", file=sys.stderr, flush=True)
