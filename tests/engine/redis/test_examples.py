"""The worked examples, asked on an event loop."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.trio import Trio
from tests.unit.test_examples import EXAMPLES, assert_as_told


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example["name"])
def test_worked_example_on_an_event_loop(blocking: Any, example: dict[str, Any]) -> None:
    assert_as_told(Trio(blocking), example)
