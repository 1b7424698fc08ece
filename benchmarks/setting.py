"""Where a stage measures: the server, how long, and on which processors."""

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
    """Seconds of processor time that a server has spent, and calls of scripts with the microseconds in them."""

    seconds: float
    calls: int
    script_us: int


@dataclass(frozen=True)
class Setting:
    """url: the server's address. server: its process id. brief: whether a rough figure is enough."""

    url: str
    server: int
    brief: bool

    @classmethod
    def of_environment(cls, *, brief: bool) -> Setting:
        """As the run has set it in the environment."""
        return cls(os.environ["BENCH_REDIS_URL"], int(os.environ["BENCH_REDIS_PID"]), brief)

    def few_or(self, many: int) -> int:
        """So many, or an eighth in a brief run."""
        return max(2, many // 8) if self.brief else many

    def client(self) -> redis.Redis:
        """A client of one's own."""
        return redis.Redis.from_url(self.url)


def pin(processes: Iterable[int], *, alone: bool) -> None:
    """Bind these processes, 0 being this one, to one processor, or to none."""
    if CAN_PIN:
        for process in processes:
            os.sched_setaffinity(process, {max(ALL)} if alone else ALL)


def cpu_of(client: redis.Redis) -> Cpu:
    """What the server tells of itself."""
    spent, commands = client.info("cpu"), client.info("commandstats")
    script = commands.get("cmdstat_evalsha", {"calls": 0, "usec": 0})
    return Cpu(spent["used_cpu_user"] + spent["used_cpu_sys"], script["calls"], script["usec"])


def progress(text: str) -> None:
    """Say where we are."""
    print(f"    {text}", file=sys.stderr, flush=True)
