"""The overview's list of callers: names for those who may see them, and that the figures are estimates."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
import redis
from django.test import Client

from django_ratelimiter.identity import digest
from django_ratelimiter.models import Rule, UsageBatch
from django_ratelimiter.usage.live import names
from django_ratelimiter.usage.times import now
from tests.admin.usage.test_pages import weigh

from ..pages import shown
from .test_overview import OVERVIEW, text_of

pytestmark = pytest.mark.django_db

ANN, BOB = digest("user:4711"), digest("ip:192.0.2.7")


@pytest.fixture
def callers(rule: Rule) -> None:
    UsageBatch.objects.create(batch_id="0:x", collected_at=now())
    for number, client in enumerate((ANN, BOB)):
        weigh(timedelta(0), client, 5, 40 + number, rule="export")
    names.remember(ANN, "user", "4711")
    names.remember(BOB, "ip", "192.0.2.7")


def read_names(client: redis.Redis) -> int:
    """Return how often names were read: by MGET, which each call of the script makes once as well."""
    stats = client.info("commandstats")
    mget, script = (stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("mget", "evalsha"))
    return int(mget - script)


@pytest.mark.parametrize(("codenames", "sees"), [(["reveal_caller"], True), ([], False)])
@pytest.mark.usefixtures("callers")
def test_names_are_for_who_may_reveal_callers(
    operator: Callable[..., Client], redis_client: redis.Redis, codenames: list[str], *, sees: bool
) -> None:
    client = operator("view_usage_report", "unblock_caller", *codenames)
    before = read_names(redis_client)
    response = client.get(OVERVIEW)
    text = text_of(response)
    assert ("IP address: 192.0.2.7 Export 5 41" in text, f"{BOB} Export 5 41" in text) == (sees, not sees)
    assert ("user: 4711 Export 5 40" in text, f"{ANN} Export 5 40" in text) == (sees, not sees)
    assert f"?digest={ANN}&rule=export" in shown(response)
    assert "≈ marks estimates, from a sample of many requests" in text
    assert read_names(redis_client) - before == int(sees)
