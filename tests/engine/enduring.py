"""Processes that go on deciding while a server dies, as a site does: one decision after the other, some over shards.

Run: python -m tests.engine.enduring URL PROCESSES DEADLINE. It prints "begun", goes on until it reads a line, then lets
all processes hit one fresh key; what it prints in the end, as JSON, is described at `Endured`.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from redis.exceptions import ResponseError

from django_ratelimiter.engine import Charge, EngineUnavailable, Limit
from django_ratelimiter.engine.redis import RedisEngine
from tests.engine.hits import client_of

QUOTA = 500
HITS = 400
PATIENCE = 20.0
#: How long a process rests after each call: a server's death is waited for, and more calls meanwhile tell no more.
REST_SECONDS = 0.002
MANY = Limit(1_000_000, 86_400, "sliding_window_counter")
FRESH = Charge("fresh", Limit(QUOTA, 86_400, "sliding_window_counter"))


@dataclass
class Endured:
    """What happened.

    decided, several: calls of one charge and of three that were answered. unavailable, unavailable_several: calls that
    were not. lost: those of one charge that may have been run all the same, because only the reply is missing.
    at_once: the unavailable ones that asked nobody, and so waited for nothing. others: errors of any other kind.
    admitted: of the hits on the fresh key. back: seconds from the first call that was not answered to the first of
    those that all were, for whoever reads it.
    """

    decided: int = 0
    several: int = 0
    unavailable: int = 0
    unavailable_several: int = 0
    lost: int = 0
    at_once: int = 0
    others: list[str] = field(default_factory=list)
    admitted: int = 0
    back: float = 0.0

    def plus(self, other: Endured) -> Endured:
        """The sum; of `back` the longest."""
        sums = {name: value + getattr(other, name) for name, value in asdict(self).items()}
        return Endured(**{**sums, "back": max(self.back, other.back)})


def endure(url: str, deadline: float, number: int) -> Endured:
    """What one process does."""
    done, failed = Endured(), []
    with client_of(url) as client:
        engine = RedisEngine(client, "enduring", deadline=deadline)
        wait_for(engine)
        together.wait()
        for turn in range(10_000_000):
            if stop.is_set():
                break
            several = turn % 10 == 0
            charges = [
                Charge(f"{number}-{turn % 97}-{part}", MANY, usage=f"several{part}|" if several else "one|")
                for part in range(3 if several else 1)
            ]
            began = time.monotonic()
            try:
                engine.check(charges)
                if several:
                    done.several += 1
                else:
                    done.decided += 1
            except EngineUnavailable as error:
                done.unavailable += 1
                done.unavailable_several += several
                done.at_once += error.__cause__ is None
                done.lost += may_have_been_run(error) and not several
                failed.append(began)
            except Exception as error:
                done.others.append(repr(error))
            time.sleep(REST_SECONDS)
        failed += wait_for(engine)
        done.back = failed[-1] - failed[0] if failed else 0.0
        together.wait()
        patient = RedisEngine(client, "enduring", deadline=PATIENCE)  # about the quota, and not about the machine
        for _ in range(HITS):
            done.admitted += patient.check([FRESH])[0].allowed
    return done


def wait_for(engine: RedisEngine) -> list[float]:
    """Ask until every server that is needed answers; the times at which one did not."""
    failed: list[float] = []
    while True:
        try:
            engine.peek([Charge(str(number), MANY) for number in range(20)])
            return failed
        except EngineUnavailable:
            failed.append(time.monotonic())
            time.sleep(0.02)


def may_have_been_run(error: EngineUnavailable) -> bool:
    """Whether a server may have run the call: it was asked, and has not said no."""
    cause = error.__cause__
    return cause is not None and not isinstance(cause, ResponseError) and "refused" not in str(cause)


def work(url: str, deadline: float, number: int, results: Any) -> None:
    results.put(endure(url, deadline, number))


def main(url: str, processes: int, deadline: float) -> None:
    """Let them go on, and sum up."""
    results = fork.Queue()
    workers = [fork.Process(target=work, args=(url, deadline, number, results)) for number in range(processes)]
    for worker in workers:
        worker.start()
    together.wait()
    print("begun", flush=True)
    sys.stdin.readline()
    stop.set()
    together.wait()
    total = Endured()
    for _ in workers:
        total = total.plus(results.get(timeout=300))
    for worker in workers:
        worker.join()
    print(json.dumps(asdict(total)))


if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    stop, together = fork.Event(), fork.Barrier(int(sys.argv[2]) + 1, timeout=300)
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
