"""Fixtures of the tests of the reports."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.test import Client


@pytest.fixture
def staff(operator: Callable[..., Client]) -> Client:
    """Somebody who may view reports and nothing else."""
    return operator("view_usage_report")
