"""The result of the load test: a table, and what is wrong with it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import Final, NamedTuple

from .processes import Held
from .traffic import Traffic

#: So much more a process may hold at the end: a part of its memory, KiB beside that, and descriptors.
GROWTH: Final = 0.05
FREE_KIB: Final = 4_096
FREE_DESCRIPTORS: Final = 4


class Look(NamedTuple):
    """What the processes held at some time, by their names. passed: the part of the time that had passed by then."""

    passed: float
    held: Mapping[str, Held]


def early_and_late(looks: Sequence[Look]) -> tuple[dict[str, Held], dict[str, Held]]:
    """Return what each process held in the second quarter of the time, when its caches are full, and in the last.

    That is the median: what one outage takes for a while is not what stays. Of descriptors early the most, for they
    come and go with each node that is away.
    """
    early = [look.held for look in looks if 0.25 <= look.passed < 0.5]
    late = [look.held for look in looks if look.passed >= 0.75]
    first, last = {}, {}
    for name in early[0]:
        first[name] = Held(
            median_low(held[name].memory for held in early), max(held[name].descriptors for held in early)
        )
        last[name] = Held(*map(median_low, zip(*[held[name] for held in late], strict=True)))
    return first, last


def table_of(minutes: float, traffic: Traffic, first: dict[str, Held], last: dict[str, Held]) -> str:
    """Return the report, as Markdown."""
    answers = ", ".join(f"{status or 'none'}: {count:,}" for status, count in sorted(traffic.answers.items()))
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    lines = [
        f"{made}, {minutes:g} minutes, {traffic.answers.total():,} requests; answers by status: {answers}.",
        "",
        "| process | MiB early | MiB late | descriptors early | late |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, held in first.items():
        end = last[name]
        lines.append(
            f"| {name} | {held.memory / 1024:.1f} | {end.memory / 1024:.1f} | {held.descriptors} | {end.descriptors} |"
        )
    return "\n".join(lines) + "\n"


def failures_of(traffic: Traffic, first: dict[str, Held], last: dict[str, Held], said: str) -> list[str]:
    """Return what is wrong, in words. said: what the processes have printed."""
    found = [f"{len(traffic.wrong)} wrong answers, the first: {traffic.wrong[0]}."] if traffic.wrong else []
    if "Traceback" in said:
        found.append(f"A process has printed an error:\n{said}")
    for name, before in first.items():
        after = last[name]
        if after.memory > before.memory * (1 + GROWTH) + FREE_KIB:
            found.append(f"{name} held {before.memory:,} KiB, and {after.memory:,} KiB at the end.")
        if after.descriptors > before.descriptors + FREE_DESCRIPTORS:
            found.append(f"{name} had {before.descriptors} descriptors, and {after.descriptors} at the end.")
    return found
