"""Samples that are added up in one pass, compared with a plain sum over all rows; and cells, with the engine."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta

import pytest

from django_ratelimiter.engine import Algorithm, Charge, Limit, MemoryEngine
from django_ratelimiter.forecast.samples import reading, tally
from django_ratelimiter.forecast.samples.cells import CellThresholds, Width, cells_of, thresholds_of
from django_ratelimiter.forecast.samples.reading import Source
from django_ratelimiter.forecast.samples.tally import SampleTally
from django_ratelimiter.models import UsageSample
from django_ratelimiter.usage.reports.coverage import Period
from django_ratelimiter.usage.times import aware, stored

pytestmark = pytest.mark.django_db

START = datetime(2026, 10, 22, 5, 30, tzinfo=UTC)
#: Clocks in Berlin are put back within these days.
PERIOD = Period(START, START + timedelta(days=5))

MINUTE, HOUR, DAY = (Width(seconds) for seconds in (60, 3_600, 86_400))
BERLIN = Width(86_400, "day", "Europe/Berlin")
WIDTHS = [MINUTE, Width(420), HOUR, Width(7_200), DAY, BERLIN]
THRESHOLDS = {width: [{"free": 2, "": 5}, {"free": 4}, {"pro": 0, "free": 9}] for width in WIDTHS}

START_US = 1_795_168_800_000_000  # on the hour
COUNTED = [algorithm for algorithm in Algorithm if not algorithm.traits.holds_leases]


def recorded(seed: int) -> None:
    """Record callers who come once, and some who come again and again."""
    chance = random.Random(seed)
    UsageSample.objects.bulk_create(
        UsageSample(
            rule_slug=chance.choice(["search", "search", "other"]),
            tier_slug=tier,
            partition_hash=f"caller-{who}",
            minute=stored(PERIOD.start + timedelta(minutes=minute - 30)),
            count=chance.choice([1, 2, 3, 7, 1 + 2**40]),
        )
        for who in range(40)
        for tier in chance.choice([["free"], ["pro"], ["", "free"]])
        for minute in chance.sample(range(60 * 24 * 5 + 60), chance.choice([1, 1, 2, 60]))
    )


def seconds(moment: datetime) -> int:
    return int(aware(moment).timestamp())


def plain(width: Width) -> dict[tuple[str, str], Counter[int]]:
    """Requests of each tier and caller by cell."""
    found: defaultdict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    for (tier, who, _minute), (cell, count) in by_minute(width).items():
        found[tier, who][cell] += count
    return found


def by_minute(width: Width) -> dict[tuple[str, str, int], tuple[int, int]]:
    """The cell and the requests of each tier, caller and minute, from one object for each row."""
    found = {}
    starts = width.starts(*map(seconds, PERIOD)) if width.calendar else []
    for row in UsageSample.objects.filter(rule_slug="search"):
        moment = aware(row.minute)
        if PERIOD.start <= moment < PERIOD.end:
            at = seconds(row.minute)
            cell = max(each for each in starts if each <= at) if starts else at // width.seconds * width.seconds
            found[row.tier_slug, row.partition_hash, at] = cell, row.count
    return found


def beyond(width: Width) -> dict[tuple[str, int], list[int]]:
    """Requests beyond each threshold, by tier and cell; of minutes and long cells by hour. One request at a time."""
    by_hour = width == MINUTE or width.calendar or width.seconds > HOUR.seconds
    in_cell: Counter[tuple[str, str, int]] = Counter()
    found: defaultdict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0, 0])
    for (tier, who, minute), (cell, count) in sorted(by_minute(width).items()):
        earlier, in_cell[tier, who, cell] = in_cell[tier, who, cell], in_cell[tier, who, cell] + count
        for place, threshold in enumerate(THRESHOLDS[width]):
            if tier in threshold and (more := earlier + count - max(earlier, threshold[tier])) > 0:
                found[tier, minute // 3_600 * 3_600 if by_hour else cell][place] += more
    return dict(found)


@pytest.mark.parametrize("seed", range(4))
def test_one_pass_finds_what_a_sum_over_all_rows_finds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "MAX_PAIRS", 50)
    recorded(seed)
    start, end = map(seconds, PERIOD)
    found = SampleTally(WIDTHS, THRESHOLDS, (start, end), reading.Seconds())
    for caller in reading.callers(Source("search", PERIOD)):
        found.add(*caller)
    sums = {width: plain(width) for width in WIDTHS}
    for width, expected in sums.items():
        for tier in ("", "free", "pro"):
            peaks = sorted(max(cells.values()) for (of, _), cells in expected.items() if of == tier)
            assert sorted(found.peaks_of(tier, width)) == peaks
            assert found.sampled(tier) == len(peaks)
            assert found.requests[tier] == sum(cells.total() for (of, _), cells in expected.items() if of == tier)
        assert {key: [*row] for key, row in found.beyond(width).items() if any(row)} == beyond(width)
    ranked = sorted((-max(cells.values()), *key) for key, cells in sums[MINUTE].items())
    assert [each[:3] for each in found.top] == ranked[: tally.MAX_CALLERS]
    for each in found.top:
        for width, cells in each.cells.items():
            assert cells == sums[width][each.tier, each.who]


@pytest.mark.parametrize("seed", range(4))
def test_minutes_may_come_in_any_order(seed: int) -> None:
    """As PostgreSQL and MySQL may send them."""
    chance = random.Random(seed)
    minutes = [60 * each for each in chance.sample(range(600), 200)]
    counts = [chance.randint(1, 9) for _ in minutes]
    found = SampleTally(WIDTHS, THRESHOLDS, (0, 36_000))
    found.add("free", "a", minutes, counts)
    for width in (Width(420), HOUR, Width(7_200)):
        cells = Counter[int]()
        for minute, count in zip(minutes, counts, strict=True):
            cells[minute // width.seconds * width.seconds] += count
        assert found.top[0].cells[width] == cells
        assert list(found.peaks_of("free", width)) == [max(cells.values())]


def test_peaks_take_eight_bytes_for_each_caller_and_width() -> None:
    found = SampleTally([MINUTE, HOUR], {}, (0, 86_400))
    for number in range(1_000):
        found.add("free", f"caller-{number}", [60 * number], [1])
    assert [(each.itemsize, len(each)) for each in found.peaks["free"]] == [(8, 1_000), (8, 1_000)]
    assert len(found.top) == tally.MAX_CALLERS


def rejected(limit: Limit, times_us: list[int], cost: int) -> int:
    engine = MemoryEngine()
    return sum(not engine.check([Charge("k", limit, cost)], now_us=at)[0].allowed for at in times_us)


def requests_beyond(limit: Limit, times_us: list[int], cost: int) -> list[int]:
    """Requests beyond each of the thresholds."""
    found = cells_of(limit, cost)
    assert found is not None
    width, thresholds = found
    cells = Counter(at // (width.seconds * 1_000_000) for at in times_us)
    return [sum(max(count - threshold, 0) for count in cells.values()) for threshold in thresholds]


@pytest.mark.parametrize("algorithm", COUNTED)
def test_the_engine_lies_within_the_range(algorithm: Algorithm) -> None:
    """However requests come: spread, in bursts, over the ends of minutes."""
    chance = random.Random(1)
    for _ in range(60):
        window = chance.choice((1, 7, 10, 60, 90, 120, 600))
        burst = chance.choice((None, 2, 40)) if "burst" in algorithm.traits.options else None
        limit = Limit(chance.randint(2, 30), window, algorithm, burst=burst)
        cost = chance.choice((1, 1, 2))
        gap = chance.choice((1_000, 900_000, 20_000_000))
        at, times = START_US + chance.randrange(3_600_000_000), list[int]()
        for _ in range(150):
            at += int(chance.expovariate(1 / gap)) + (chance.random() < 0.02) * 45_000_000
            times.append(at)
        low, _even, high = requests_beyond(limit, times, cost)
        assert low <= rejected(limit, times, cost) <= high, (limit, cost, gap)


def test_a_fixed_window_of_a_minute_is_known_exactly() -> None:
    assert cells_of(Limit(5, 60, "fixed_window")) == (Width(60), CellThresholds(5, 5, 5))
    assert cells_of(Limit(6, 3_600, "fixed_window"), cost=2) == (Width(3_600), CellThresholds(3, 3, 3))
    day = cells_of(Limit(9, None, "fixed_window", calendar="day", timezone="Europe/Berlin"))
    assert day == (Width(86_400, "day", "Europe/Berlin"), CellThresholds(9, 9, 9))


def test_below_a_minute_there_is_a_range() -> None:
    assert cells_of(Limit(5, 10, "fixed_window")) == (Width(60), CellThresholds(30, 30, 5))
    assert cells_of(Limit(5, 1, "sliding_window_log")) == (Width(60), CellThresholds(300, 300, 2))
    assert cells_of(Limit(1, 1, "token_bucket", burst=20)) == (Width(60), CellThresholds(80, 60, 10))


def test_requests_in_progress_are_unknown() -> None:
    assert cells_of(Limit(5, 60, "concurrency")) is None
    assert thresholds_of([Limit(5, 60, "concurrency"), Limit(3, 60, "fixed_window"), Limit(9, 60, "fixed_window")]) == {
        Width(60): CellThresholds(3, 3, 3)
    }


def test_the_days_of_a_calendar() -> None:
    """The day on which summer time ends has 25 hours."""
    saturday = 1_792_792_800  # 2026-10-24 00:00 in Berlin
    starts = Width(86_400, "day", "Europe/Berlin").starts(saturday + 5, saturday + 3 * 86_400)
    assert starts == [saturday, saturday + 86_400, saturday + 86_400 + 90_000]
