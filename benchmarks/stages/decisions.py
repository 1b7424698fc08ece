"""The time of a decision: every contestant in turn, round by round, so that other load affects all of them.

Client and server share one processor; then the same with all processors. For an allowed caller, and for one that has
used up the quota.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from statistics import median
from typing import Any

from ..contest import CALLERS_EACH, Contestant, exhaust, new_callers, timed
from ..registry import AWAITED, AWAITED_FLOOR, FLOOR_NAME, made, reason
from ..setting import CAN_PIN, Setting, pin, progress

ROUNDS, CALLS = 160, 50
WARMING = 4

Rounds = dict[str, list[float]]


def measure(setting: Setting) -> dict[str, Any]:
    """Return for each way and case, by name: median microseconds, and the median of the rounds' ratios to the floor."""
    contestants, failed = made(setting.url)
    results: dict[str, Any] = {"rounds": setting.few_or(ROUNDS), "calls": CALLS, "failed": failed}
    for way in ("pinned", "unpinned") if CAN_PIN else ("unpinned",):
        progress(f"{len(contestants)} contestants, {way}")
        pin((0, setting.server), alone=way == "pinned")
        skip = 1 if way == "pinned" else CALLERS_EACH // 2
        rounds = in_rounds(contestants, setting.few_or(ROUNDS), failed, skip)
        results[way] = {case: summed_up(figures) for case, figures in rounds.items()}
    return results


def in_rounds(contestants: list[Contestant], rounds: int, failed: dict[str, str], skip: int) -> dict[str, Rounds]:
    """Return microseconds of each round, by case and name. Contestants that fail are added to `failed` and skipped.

    skip: this many callers of each have made requests before.
    """
    found: dict[str, Rounds] = {"allowed": {}, "denied": {}}
    callers = {each.name: new_callers(each, skip) for each in contestants}
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
    denied = timed(contestant, [contestant.refused] * CALLS)
    if allowed.admitted < CALLS or denied.admitted > CALLS // 20:
        raise RuntimeError(f"It admitted {allowed.admitted} of {CALLS}, and after the quota {denied.admitted}.")
    return {"allowed": allowed.us, "denied": denied.us}


def summed_up(rounds: Rounds) -> dict[str, dict[str, float]]:
    """Return the median of each, and of its ratios to the floor of the same round."""
    found = {}
    for name, mine in rounds.items():
        floor = rounds[AWAITED_FLOOR if name in AWAITED else FLOOR_NAME][: len(mine)]
        ratio = median(us / least for us, least in zip(mine, floor, strict=False))
        found[name] = {"us": median(mine), "ratio": ratio}
    return found
