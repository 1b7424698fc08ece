"""Tasks that note when they began, for a worker of the tests: `celery -A tests.system.celery_app worker`."""

from __future__ import annotations

import os
import time
from typing import Any

import django
from celery import Celery
from django_redis import get_redis_connection

django.setup()

from django_ratelimiter.tasks import in_slot  # noqa: E402

#: The list in Redis in which tasks note "NAME NUMBER EPOCH-SECONDS".
BEGAN = "tasks-began"

app = Celery("tests.system", broker=os.environ["TEST_REDIS_URL"])


@app.task(bind=True, name="pay")
@in_slot("stripe")
def pay(self: Any, number: int) -> None:
    """Wait for its turn."""
    note("pay", number)


@app.task(bind=True, name="transfer")
@in_slot("bank")
def transfer(self: Any, number: int) -> None:
    """Wait for its turn, among others than payments."""
    note("transfer", number)


@app.task(name="quick")
def quick(number: int) -> None:
    """Waits for nothing."""
    note("quick", number)


def note(name: str, number: int) -> None:
    get_redis_connection("ratelimit").rpush(BEGAN, f"{name} {number} {time.time()}")
