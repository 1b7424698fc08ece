"""Rules on an engine of each kind, and an engine whose replies are lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.making import MakeRule


@pytest.fixture(params=["memory", "redis", "in hand"])
def rule(request: pytest.FixtureRequest, make_rule: MakeRule) -> Callable[..., None]:
    """Make a rule by address, on an engine of each kind; and with units in hand."""
    if request.param == "memory":
        request.getfixturevalue("clock")
    in_hand = {"sync_interval_ms": 60_000} if request.param == "in hand" else {}

    def make(slug: str, **fields: Any) -> None:
        make_rule(slug, **{"quota": 10_000, "partition_by": ["ip"], **in_hand, **fields})

    return make
