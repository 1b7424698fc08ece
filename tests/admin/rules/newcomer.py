"""A new algorithm in the admin. `tests/engine/test_add_an_algorithm.py` runs this in a project that has got one.

The algorithm is the session window of docs/howto/add-an-algorithm.md: 5 units, until there is a pause of a minute.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from django.test import Client

from django_ratelimiter.engine import Limit
from django_ratelimiter.models import RuleLimit
from django_ratelimiter.rules.formatting import limit_in_words
from django_ratelimiter.rules.records import LimitRecord
from django_ratelimiter.testing import FrozenClock, override_rules

from ..pages import ADD_RULE, shown
from .test_limit_fields import SENTENCES
from .visitor import PATH, START_US, Visitor

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.entry_points.urls")]

NAME = "session_window"
COLUMNS = {"quota": 5, "window_seconds": "60", "algorithm": NAME}

#: After so many seconds so many pass, and one more may come back so many later. Each that passes begins the pause anew.
STEPS = [(59, 2, 60), (118, 0, 1), (119, 5, 60)]


def test_the_form_offers_it_with_its_fields(admin_client: Client) -> None:
    page = shown(admin_client.get(ADD_RULE))
    assert '<option value="session_window">session window: until there is a pause</option>' in page
    columns = re.search(r'data-columns="(\{.*?\})"', page)
    assert columns
    assert json.loads(columns[1])[NAME] == {"": ["quota", "soft_quota", "window_seconds"]}


def test_the_admin_describes_it(admin_client: Client) -> None:
    told = admin_client.get(SENTENCES, {**COLUMNS, "cost": 1}).json()
    assert told == {
        "text": "All callers together can use 5 units per minute. The count starts again after a pause of "
        "a minute. A rejected caller can retry after this pause.",
    }
    assert limit_in_words(LimitRecord(Limit(5, 60, NAME))) == "5 per minute, session window"


def test_requests_are_limited_on_redis(visitor: Visitor, save: Callable[..., RuleLimit]) -> None:
    """The limit is saved in the admin's form; the requests pass the middleware."""
    save(COLUMNS)
    assert [visitor.ask(START_US).allowed for _ in range(3)] == [True] * 3
    for seconds, passing, retry_after in STEPS:
        answers = [visitor.ask(START_US + seconds * 1_000_000) for _ in range(passing + 1)]
        assert answers == [(True, None)] * passing + [(False, retry_after)]
    assert visitor.latest["RateLimit-Policy"] == '"export";q=5;w=60'


def test_requests_are_limited_in_memory(client: Client) -> None:
    clock = FrozenClock()
    with override_rules({"slug": "all", "limits": [COLUMNS]}, clock=clock):
        statuses = []
        for pause in (0, 0, 0, 59, 0, 0, 60):
            clock.advance(pause)
            statuses.append(client.get(PATH).status_code)
    assert statuses == [200] * 5 + [429, 200]
