"""What hypothesis makes limits and times of."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import strategies as st

from django_ratelimiter.engine import Algorithm, Limit
from tests.reference import capacity_of, period_of

YEAR = 366 * 86_400
MOST = 10_000_000

#: Seconds: tenths from 0.1 s, or whole seconds up to a year.
windows = (
    st.sampled_from([1, 10, 60, 3_600, 86_400, YEAR])
    | st.integers(1, 10_000).map(lambda tenths: Decimal(tenths) / 10)
    | st.integers(1, YEAR)
)
short_windows = st.integers(1, 900).map(lambda tenths: Decimal(tenths) / 10)
algorithms = st.sampled_from(Algorithm)
quotas = st.sampled_from([1, 2, 3, 7, 10, 11, 100, 1_000, MOST]) | st.integers(1, 20) | st.integers(1, MOST)


@st.composite
def limits(
    draw: st.DrawFn,
    windows: st.SearchStrategy[Decimal | int] = windows,
    quotas: st.SearchStrategy[int] = quotas,
    algorithms: st.SearchStrategy[Algorithm] = algorithms,
) -> Limit:
    """A limit of any algorithm, with or without a burst and a soft quota."""
    algorithm, window, quota = draw(algorithms), draw(windows), draw(quotas)
    burst = None
    if "burst" in algorithm.options:
        most = min(MOST, 90 * YEAR * quota // int(window + 1))
        burst = draw(st.none() | st.integers(1, min(most, 2 * quota)) | st.integers(1, most))
    ceiling = min(quota, burst or quota)
    soft = draw(st.none() | st.integers(1, ceiling - 1)) if ceiling > 1 else None
    return Limit(quota, window, algorithm, burst, soft)


def changed(limit: Limit) -> st.SearchStrategy[Limit]:
    """A limit that an editor might turn this one into, keeping its counters."""
    return limits(st.just(limit.window), algorithms=st.just(limit.algorithm))


def costs(limit: Limit) -> st.SearchStrategy[int]:
    """From nothing to more than the limit ever admits."""
    capacity = capacity_of(limit)
    return (
        st.sampled_from([0, 1, 1, 1, 2, capacity - 1, capacity, capacity + 1, 2**60])
        | st.integers(0, 5)
        | st.integers(0, capacity + 1)
    )


@st.composite
def pauses(draw: st.DrawFn, now: int, limit: Limit) -> int:
    """Microseconds until something of interest: a unit comes back, a window ends; or back to an earlier time."""
    period = period_of(limit)
    near = draw(st.sampled_from([0, 0, -1, 1]) | st.integers(-2_000, 2_000))
    far = draw(
        st.sampled_from([0, 0, period, period // 2, period // limit.quota, period - now % period, -period])
        | st.integers(0, 3 * period)
        | st.integers(-period, 0)
        | st.integers(0, 3 * limit.quota).map(lambda units: units * period // limit.quota)
    )
    return far + near
