"""Fixtures for pytest, found by its entry point. Every run of pytest imports it, so it must not import Django."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .testing import FrozenClock, RulesInForce


@pytest.fixture(autouse=True)
def _ratelimit_counts_start_at_zero() -> None:
    """Drop the counts of earlier tests in the memory of this process. Counts in Redis stay; see `clear_counts`."""
    for module, name in (("backend", "_engine"), ("limiter.fallback", "local")):
        loaded = sys.modules.get(f"{__package__}.{module}")  # not loaded: nothing was counted
        counting: Any = getattr(loaded, name, None)
        if type(counting).__name__ in ("MemoryEngine", "FallbackEngine"):
            counting.clear()


@pytest.fixture(autouse=True)
def _ratelimit_exempts_paths_of_the_urls_marker(request: pytest.FixtureRequest) -> Iterator[None]:
    """Clear the cached exempt paths in tests marked `urls`: pytest-django changes ROOT_URLCONF without a signal."""
    loaded: Any = sys.modules.get(f"{__package__}.middleware")
    if loaded is None or request.node.get_closest_marker("urls") is None:
        yield
        return
    loaded.forget_paths()
    yield
    loaded.forget_paths()


@pytest.fixture
def ratelimit_clock() -> FrozenClock:
    """The clock of the limits in `ratelimit_rules`. Its time passes only when the test advances it."""
    from .testing import FrozenClock

    return FrozenClock()


@pytest.fixture
def ratelimit_rules(ratelimit_clock: FrozenClock) -> Iterator[RulesInForce]:
    """Only the rules that the test passes to this object are active. Needs neither Redis nor a database."""
    from .testing import override_rules

    with override_rules(clock=ratelimit_clock) as rules:
        yield rules
