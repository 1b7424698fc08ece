"""The time of a decision: every contestant in turn, round by round, so that other load affects all of them.

Client and server share one processor. For an allowed caller, and for one that has used up the quota.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from statistics import median
from typing import Any

from ..contest import Contestant, exhaust, new_callers, timed
from ..registry import AWAITED, AWAITED_FLOOR, FLOOR_NAME, made, reason
from ..setting import Setting, pin

ROUNDS, CALLS = 160, 50
WARMING = 4

#: Microseconds of each round, by case and name.
Rounds = dict[str, dict[str, list[float]]]


def measure(setting: Setting) -> dict[str, Any]:
    """Return by name and case: median microseconds, and the median of the rounds' ratios to the floor."""
    contestants, failed = made(setting.url)
    pin((0, setting.server), alone=True)
    rounds = in_rounds(contestants, setting.few_or(ROUNDS), failed)
    return {"times": {name: summed_up(name, rounds) for name in rounds["allowed"]}, "failed": failed}


def in_rounds(contestants: list[Contestant], rounds: int, failed: dict[str, str]) -> Rounds:
    """Return the rounds. Contestants that fail are added to `failed` and skipped."""
    found: Rounds = {"allowed": {}, "rejected": {}}
    callers = {each.name: new_callers(each) for each in contestants}
    for number in range(-WARMING, rounds):
        for each in contestants:
            if each.name in failed:
                continue
            try:
                figures = one_round(each, callers[each.name])
            except Exception as error:  # any error; the others can still be measured
                failed[each.name] = reason(error)
            else:
                for case, us in figures.items() if number >= 0 else ():
                    found[case].setdefault(each.name, []).append(us)
    return found


def one_round(contestant: Contestant, callers: Iterator[int]) -> dict[str, float]:
    """Return microseconds of one call, the mean of a round. Raises RuntimeError if the decision is wrong."""
    allowed = timed(contestant, list(islice(callers, CALLS)))
    exhaust(contestant)
    rejected = timed(contestant, [contestant.refused] * CALLS)
    if allowed.admitted < CALLS or rejected.admitted > CALLS // 20:
        raise RuntimeError(f"It admitted {allowed.admitted} of {CALLS}, and after the quota {rejected.admitted}.")
    return {"allowed": allowed.us, "rejected": rejected.us}


def summed_up(name: str, rounds: Rounds) -> dict[str, dict[str, float]]:
    """Return by case the median, and that of the ratios to the floor of the same round."""
    found = {}
    for case, figures in rounds.items():
        mine, floor = figures[name], figures[AWAITED_FLOOR if name in AWAITED else FLOOR_NAME]
        ratio = median(us / least for us, least in zip(mine, floor, strict=False))
        found[case] = {"us": median(mine), "ratio": ratio}
    return found
