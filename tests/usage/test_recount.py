"""Reports on a recorded trace agree with a plain recount of it, while the clocks change.

The trace is decided by the engine at moments of its own, collected every few hours, and recounted here from what each
verdict said: by no bucket, and by the wall clock of a place, as a person would with a list and a calendar.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from django.utils import timezone

from django_ratelimiter.engine import Charge, Limit, MemoryEngine
from django_ratelimiter.engine.usage import UsageCarry
from django_ratelimiter.usage.collector import collect as collecting
from django_ratelimiter.usage.collector.collect import collect
from django_ratelimiter.usage.collector.prune import prune
from django_ratelimiter.usage.reports import coverage
from django_ratelimiter.usage.reports.coverage import DAY, HOUR, Period
from django_ratelimiter.usage.reports.report import Report
from django_ratelimiter.usage.reports.totals import Figures
from django_ratelimiter.usage.times import Granularity

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)
#: Of each, how long before and after the clocks change the trace begins and ends.
BEFORE, AFTER = 3 * DAY, 2 * DAY + 7 * HOUR + 12 * MINUTE
REQUESTS = 800
#: In days. What is kept at first, and what the deletion leaves.
ALL = {"minute": None, "hour": None, "day": None}
LEFT = {"minute": 1, "hour": 4, "day": None}

#: When clocks change, in UTC: back in the east, and forward in the west.
CHANGES = {
    ("Europe/Berlin", "back"): datetime(2026, 10, 25, 1, tzinfo=UTC),
    ("America/New_York", "forward"): datetime(2026, 3, 8, 7, tzinfo=UTC),
}
LIMITS = {
    "hourly": Limit(20, 3_600, "fixed_window"),
    "shadow": Limit(90, 86_400, "sliding_window_counter"),
    "soft": Limit(200, 86_400, "fixed_window", soft_quota=60),
}


class Told(NamedTuple):
    """One verdict: what a rule said of a request."""

    at: datetime
    rule: str
    tier: str
    partition: str | None
    figures: Figures


class Scene(NamedTuple):
    """The trace, the place of the project and of the reader, and the clock of both."""

    told: list[Told]
    change: datetime
    project: ZoneInfo
    reader: ZoneInfo
    clock: list[datetime]

    @property
    def period(self) -> Period:
        return Period(self.change - BEFORE, self.clock[0])

    @property
    def long(self) -> Period:
        """A period that is shown by days."""
        return Period(self.change - 9 * DAY, self.clock[0])


@pytest.fixture(params=CHANGES, ids="-".join)
def scene(request: pytest.FixtureRequest, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """A trace that was decided and collected, with everything left."""
    change = CHANGES[request.param]
    project = ZoneInfo(request.param[0])
    settings.TIME_ZONE = project.key
    settings.RATELIMITER = {**settings.RATELIMITER, "RETENTION": ALL}
    clock = [change - BEFORE]
    monkeypatch.setattr(timezone, "now", lambda: clock[0])
    engine = MemoryEngine(lambda: int(clock[0].timestamp() * 1_000_000))
    engine.drop_usage("0:collected before")  # else it would keep one hour only
    monkeypatch.setattr(collecting, "get_engine", lambda: engine)
    told = record(engine, clock, change)
    with timezone.override(project):
        yield Scene(told, change, project, project, clock)


def record(engine: MemoryEngine, clock: list[datetime], change: datetime) -> list[Told]:
    """Let the time come for one request after the other, and a collector now and then."""
    chance = random.Random(7)
    start, length = clock[0], int((BEFORE + AFTER).total_seconds())
    # As many in the hours around the change as in the days, for there it matters.
    moments = [start + timedelta(seconds=chance.randrange(length)) for _ in range(REQUESTS // 2)]
    moments += [change + timedelta(seconds=chance.randrange(-9_000, 9_000)) for _ in range(REQUESTS // 2)]
    told: list[Told] = []
    for number, clock[0] in enumerate(sorted(moments)):
        if number % 13 == 1:
            engine.count_exempt(["hourly|pro"], ())
            told.append(Told(clock[0], "hourly", "pro", None, Figures(allowed=1)))
        told += decide(engine, clock[0], chance) if number % 9 else degraded(engine, clock[0], number)
        if number % 50 == 0:
            collect()
    clock[0] = change + AFTER
    collect()
    return told


def decide(engine: MemoryEngine, at: datetime, chance: random.Random) -> list[Told]:
    tier, caller = chance.choice(("", "pro")), str(chance.randrange(12))
    charges = [
        Charge(
            f"{rule}|{tier}",
            limit,
            costs_of(rule),
            gating=rule != "shadow",
            usage=f"{rule}|{tier}",
            partition=caller,
            usual_cost=chance.choice((1, 2, 3)),
        )
        for rule, limit in LIMITS.items()
    ]
    verdicts = engine.check(charges)
    is_rejected = any(each.charge.gating and not each.allowed for each in verdicts)
    return [
        Told(at, rule, tier, caller, figures_of(rule, verdict.allowed, verdict.soft_exceeded, is_rejected))
        for rule, verdict in zip(LIMITS, verdicts, strict=True)
    ]


def degraded(engine: MemoryEngine, at: datetime, number: int) -> list[Told]:
    """A request that a process had rejected by itself, which its next call tells."""
    field = "hourly|pro\nD"
    engine.check([], counts=UsageCarry(str(number), ((int(at.timestamp()) // 60, field, 1),)))
    return [Told(at, "hourly", "pro", None, Figures(rejected=1, degraded=1))]


def costs_of(rule: str) -> int:
    return 3 if rule == "soft" else 1


def figures_of(rule: str, allowed: bool, soft_exceeded: bool, is_rejected: bool) -> Figures:
    if allowed and is_rejected:
        return Figures(rejected_by_other=1)
    if allowed:
        return Figures(allowed=1, soft_exceeded=int(soft_exceeded), units=costs_of(rule))
    return Figures(shadow_rejected=1) if rule == "shadow" else Figures(rejected=1)


def recount(told: Iterable[Told], key: Callable[[Told], Hashable]) -> dict[Hashable, Figures]:
    """The sums of what has the same key."""
    sums: defaultdict[Hashable, Figures] = defaultdict(Figures)
    for each in told:
        sums[key(each)] += each.figures
    return dict(sums)


def once(told: Iterable[Told]) -> Iterator[Told]:
    """Each request once, whatever rules have said of it: rejected if one rejects it, else as a rule in shadow says."""
    requests: defaultdict[tuple[datetime, str | None, int], list[Figures]] = defaultdict(list)
    seen: Counter[tuple[datetime, str, str, str | None]] = Counter()
    for at, rule, tier, partition, figures in told:
        requests[at, partition, seen[at, rule, tier, partition]].append(figures)
        seen[at, rule, tier, partition] += 1
    for (at, partition, _), all_of_it in requests.items():
        whole = sum(all_of_it, Figures())
        is_soft, is_degraded = int(whole.soft_exceeded > 0), int(whole.degraded > 0)
        figures = (
            Figures(rejected=1, degraded=is_degraded)
            if whole.rejected
            else Figures(shadow_rejected=1)
            if whole.shadow_rejected
            else Figures(allowed=1, soft_exceeded=is_soft, units=1, exempt=int(partition is None))
        )
        yield Told(at, "", "", partition, figures)


def on_the_wall(moment: datetime, granularity: Granularity, zone: ZoneInfo) -> str:
    """What a clock of that place shows, as far as the step needs it; with what tells one 2 o'clock from another."""
    form = {Granularity.MINUTE: "%Y-%m-%d %H:%M %z", Granularity.HOUR: "%Y-%m-%d %H %z", Granularity.DAY: "%Y-%m-%d"}[
        granularity
    ]
    return moment.astimezone(zone).strftime(form)


def within(scene: Scene, period: Period, rule: str | None = None, tier: str | None = None) -> list[Told]:
    return [
        each
        for each in scene.told
        if period.start <= each.at < period.end and rule in (None, each.rule) and tier in (None, each.tier)
    ]


def compare(scene: Scene, period: Period, granularity: Granularity, zone: ZoneInfo | None = None) -> None:
    """Totals and series of this period, of all rules and of each, agree with the recount."""
    zone = zone or scene.reader
    shown = coverage.read_coverage().widen(period)
    totals = {(rule, tier): figures for rule, tier, figures in Report(period).totals}
    assert totals == recount(within(scene, shown), lambda each: (each.rule, each.tier))
    for rule, tier in ((None, None), ("hourly", None), ("soft", "pro"), (None, "")):
        report = Report(period, rule, tier)
        assert report.granularity is granularity
        found = {on_the_wall(point.start, granularity, zone): point.figures for point in report.points}
        assert len(found) == len(report.points), "every step stands there once"
        assert report.points[0].start == shown.start
        assert report.points[-1].end == shown.end
        told = within(scene, shown, rule, tier)
        if rule is tier is None:
            told = [*once(told)]
            assert report.together == sum((each.figures for each in told), Figures())
        expected = recount(told, lambda each: on_the_wall(each.at, granularity, zone))
        assert {start: figures for start, figures in found.items() if figures != Figures()} == expected


def test_reports_agree_with_a_recount(scene: Scene, settings: Any) -> None:
    together = sum((each.figures for each in (*scene.told, *once(scene.told))), Figures())
    assert all(getattr(together, name) for name in Figures.__slots__), "everything has happened"
    compare_with_everything_left(scene)
    compare_partitions(scene)
    compare_elsewhere(scene)
    settings.RATELIMITER = {**settings.RATELIMITER, "RETENTION": LEFT}
    compare_after_deletion(scene)


def compare_with_everything_left(scene: Scene) -> None:
    compare(scene, Period(scene.change - 90 * MINUTE, scene.change + 90 * MINUTE), Granularity.MINUTE)
    compare(scene, Period(scene.change - 37 * HOUR, scene.change + 23 * MINUTE), Granularity.HOUR)
    compare(scene, scene.period, Granularity.HOUR)
    compare(scene, scene.long, Granularity.DAY)
    [changed] = [each.end - each.start for each in Report(scene.long).points if each.start < scene.change < each.end]
    assert changed in (23 * HOUR, 25 * HOUR)


def compare_elsewhere(scene: Scene) -> None:
    """For readers whose clocks change at other times, and who are off by half an hour."""
    for zone in ("America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"):
        elsewhere = scene._replace(reader=ZoneInfo(zone))
        with timezone.override(elsewhere.reader):
            compare(elsewhere, scene.period, Granularity.HOUR)
            compare(elsewhere, scene.long, Granularity.DAY)


def compare_after_deletion(scene: Scene) -> None:
    assert prune() > 0
    now = scene.clock[0]
    compare(scene, scene.period, Granularity.DAY, zone=scene.project)
    compare(scene, Period(scene.change - 5 * HOUR, scene.change + 5 * HOUR), Granularity.HOUR)
    compare(scene, Period(scene.change - 41 * MINUTE, now - 17 * MINUTE), Granularity.HOUR)
    compare(scene, Period(now - 2 * HOUR - 3 * MINUTE, now), Granularity.MINUTE)
    scene.clock[0] += 5 * DAY
    assert prune() > 0
    compare(scene, Period(scene.change - BEFORE, now), Granularity.DAY, zone=scene.project)
    compare(scene, Period(scene.change - 5 * HOUR, scene.change + 5 * HOUR), Granularity.DAY, zone=scene.project)


def compare_partitions(scene: Scene) -> None:
    """What the top callers asked."""
    sums = recount((each for each in scene.told if each.rule == "soft"), lambda each: each.partition)
    top_partitions = Report(scene.period, "soft").top_partitions
    assert {each.partition: (each.allowed, each.rejected) for each in top_partitions} == {
        partition: (figures.allowed, figures.rejected) for partition, figures in sums.items() if figures.allowed
    }
