"""Fixtures for pytest, found by its entry point. Imported in every run of pytest, so it imports no Django by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .testing import FrozenClock, RulesInForce


@pytest.fixture
def ratelimit_clock() -> FrozenClock:
    """The time by which the limits of `ratelimit_rules` count; passes only when the test says so."""
    from .testing import FrozenClock

    return FrozenClock()


@pytest.fixture
def ratelimit_rules(ratelimit_clock: FrozenClock) -> Iterator[RulesInForce]:
    """No rule is in force but what the test puts in force by calling this with it; needs neither Redis nor database."""
    from .testing import override_rules

    with override_rules(clock=ratelimit_clock) as rules:
        yield rules
