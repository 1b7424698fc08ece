"""Our aims: the limits, the goals, and the results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from .. import instructions
from .tables import Results, number, table

ENGINE: Final = "ours: engine.check"
RATE: Final = "ours: @ratelimit with a rate"
DRF_OWN: Final = "DRF's AnonRateThrottle on django-redis"


class Aim(NamedTuple):
    """A row of the table.

    must, aim: the maximum of the figure; `None` = there is only an aim. found: `None` = it could not be measured.
    """

    what: str
    must: float | None
    aim: float
    found: float | None

    def holds(self) -> str:
        """Return which of the two is met."""
        if self.found is None:
            return ""
        if self.found <= self.aim:
            return "aim"
        if self.must is None:
            return "not yet"
        return "must" if self.found <= self.must else "**no**"


def aims(results: Results) -> str:
    """Return the table."""
    rows = []
    for each in (*of_instructions(results), *of_decisions(results)):
        digits = 0 if each.aim >= 10 else 2
        rows.append([each.what, *(number(figure, digits) for figure in each[1:]), each.holds()])
    return table(["", "must", "aim", "measured", "holds"], rows)


def of_instructions(results: Results) -> Iterator[Aim]:
    """Yield aims for the instructions that are added to a request."""
    found = instructions.added(results.get("instructions", {}).get("rows", {}))

    def to(name: str, other: str) -> float | None:
        return found[name] / found[other] if name in found and other in found else None

    evalsha, one, three = instructions.EVALSHA, "ours: one rule", "ours: three rules"
    yield Aim("instructions, one rule, to one EVALSHA through redis-py", 1.0, 1.0, to(one, evalsha))
    yield Aim("the same, three rules", 1.1, 1.08, to(three, evalsha))
    yield Aim("the same, three rules, rejected", 1.35, 1.35, to(f"{three}, rejected", evalsha))
    yield Aim("@ratelimit with a rate, to django-ratelimit", 0.6, 0.6, to(RATE, "django-ratelimit"))
    yield Aim("AnonRateThrottle, to DRF's own", 0.6, 0.6, to("ours: AnonRateThrottle", DRF_OWN))
    first = "a caller's first visit"
    yield Aim("synced, a caller's first visit, to exact", 1.0, 1.0, to(f"{one}, synced, {first}", f"{one}, {first}"))


def of_decisions(results: Results) -> Iterator[Aim]:
    """Yield aims for a decision alone, as a ratio to the floor."""
    stage = results.get("decisions", {})
    pinned = stage.get("pinned") or stage.get("unpinned", {})

    def to_floor(name: str, case: str = "allowed") -> float | None:
        found: float | None = pinned.get(case, {}).get(name, {}).get("ratio")
        return found

    yield Aim("engine.check, 1 rule, to the floor", 0.72, 0.7, to_floor(f"{ENGINE}, 1 rule"))
    yield Aim("engine.check, 3 rules, to the floor", 0.88, 0.85, to_floor(f"{ENGINE}, 3 rules"))
    path = to_floor("ours: limiter.check(request), 3 rules")
    yield Aim("limiter.check(request), 3 rules, to the floor", 1.9, 1.9, path)
    memory = to_floor(f"{ENGINE}, 1 rule, denial memory", "denied")
    yield Aim("rejected by denial memory, to the floor", 0.1, 0.1, memory)
    yield Aim("approximate, to the floor", 0.1, 0.1, to_floor(f"{ENGINE}, 1 rule, approximate"))
    paced = results.get("latency", {}).get("us", {}).get("paced", {}).get(f"{ENGINE}, 3 rules", {})
    yield Aim("p99 with 32 clients, 3 rules, ms", 5.0, 5.0, paced["p99"] / 1_000 if paced else None)
