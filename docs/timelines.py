"""What each algorithm does with the same 30 requests, as the memory engine decides them.

`python docs/timelines.py` draws the pictures of the algorithms again; a test compares them with the engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from drawing import comparison, timeline

from django_ratelimiter.engine import Algorithm, Charge, Limit, MemoryEngine, Verdict

FOLDER: Final = Path(__file__).resolve().parent / "explanation" / "algorithms"

#: The requests: seconds, and how many at once. Two bursts stand on either side of the edge of a window.
STREAM: Final = (
    *((3, 1), (9.5, 6), (10.5, 6), (13, 1), (14, 1), (15, 1), (16, 1), (17, 1), (18, 1), (19, 1)),
    *((24, 5), (26, 1), (27, 1), (28, 1), (29, 2)),
)
SECONDS: Final = 36
QUOTA: Final = 5
WINDOW: Final = 10

#: A request costs a thousand units, so that the level is known with its fractions.
UNIT: Final = 1_000
#: When the stream begins, in seconds since the Unix epoch: at the edge of a window.
BEGINNING: Final = 1_800_000_000

#: How long a request is in flight, in seconds. The process that serves the first one is killed.
IN_FLIGHT: Final = 4


class Answer(NamedTuple):
    """What came of one request. at, leaves, until: seconds; `leaves` is after its delay, `until` with its lease."""

    at: float
    allowed: bool
    leaves: float
    until: float


class Run(NamedTuple):
    """What a limit did with the stream.

    told: what stands behind the quota. edges: moments that the picture marks, in seconds. capacity: requests.
    levels: moments, and how many requests would pass then.
    """

    name: str
    told: str
    edges: tuple[float, ...]
    capacity: int
    answers: list[Answer]
    levels: list[tuple[float, float]]
    algorithm: Algorithm

    @property
    def busiest(self) -> tuple[int, float, float]:
        """The most requests that were let go in any stretch of a window's length, the first and the last of them."""
        went = sorted(answer.leaves for answer in self.answers if answer.allowed)
        stretches = [[at for at in went if first <= at < first + WINDOW] for first in went]
        fullest = max(stretches, key=len)
        return len(fullest), fullest[0], fullest[-1]


def run(name: str, told: str, edges: tuple[float, ...] = (), algorithm: str = "", **options: Any) -> Run:
    """Send the stream through an engine with this limit. edges: moments that the picture marks."""
    algorithm = Algorithm(algorithm or name)
    engine = MemoryEngine()
    limit = Limit(QUOTA * UNIT, WINDOW, algorithm, **options)
    charge = Charge("caller", limit, UNIT)
    answers: list[Answer] = []
    levels: list[tuple[float, float]] = []
    leases: list[tuple[float, Verdict]] = []
    requests = dict(STREAM)
    for at in (quarter / 4 for quarter in range(4 * SECONDS + 1)):
        now = round((BEGINNING + at) * 1_000_000)
        levels.append((at, engine.peek([charge], now - 1)[0].remaining / UNIT))
        engine.release([lease for until, lease in leases if until == at])
        levels.append((at, engine.peek([charge], now)[0].remaining / UNIT))
        for _ in range(requests.get(at, 0)):
            [verdict] = engine.check([charge], now_us=now)
            lasts = IN_FLIGHT if answers else WINDOW
            if answers:
                leases.append((at + lasts, verdict))
            answers.append(Answer(at, verdict.allowed, at + verdict.delay, at + lasts))
        levels.append((at, engine.peek([charge], now)[0].remaining / UNIT))
    return Run(name, told, edges, limit.capacity // UNIT, answers, levels, algorithm)


def runs() -> Iterator[Run]:
    """One of each algorithm, and of the options that change what it does."""
    edges = (10.0, 20.0, 30.0)
    fixed, bucket = Algorithm.FIXED_WINDOW, Algorithm.TOKEN_BUCKET
    yield run(fixed, "per 10 s, windows of the clock", edges)
    yield run(f"{fixed}-first_request", "per 10 s, windows of its own", (3, 13, 24, 34), fixed, anchor="first_request")
    yield run("sliding_window_log", "in any 10 s")
    yield run("sliding_window_counter", "per 10 s, two windows weighed", edges)
    yield run("sliding_window_slots", "in 5 slots of 2 s", tuple(range(2, SECONDS, 2)), slots=5)
    yield run(bucket, "per 10 s, bit by bit")
    options = {"refill": "interval", "burst": 8 * UNIT}
    yield run(f"{bucket}-interval", "at each whole window, 8 at most", edges, bucket, **options)
    yield run("gcra", "per 10 s, bit by bit")
    yield run("leaky_bucket", "per 10 s, one after the other")
    yield run("concurrency", "at once")


def pictures() -> dict[str, str]:
    """The SVG of each picture by its name."""
    all_runs = list(runs())
    drawn = {run.name: timeline(run, QUOTA, WINDOW, SECONDS) for run in all_runs}
    eight = [run for run in all_runs if run.name == run.algorithm]
    return {**drawn, "comparison": comparison(eight, QUOTA, WINDOW, SECONDS)}


def main() -> None:
    for name, svg in pictures().items():
        (FOLDER / f"{name}.svg").write_text(svg, "utf-8")


if __name__ == "__main__":
    main()
