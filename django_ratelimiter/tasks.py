"""Celery tasks. Nothing else imports Celery: without it, run `manage.py ratelimit collect` from cron.

The beat entry is a static one, in the settings of the project (with `namespace="CELERY"`)::

    CELERY_BEAT_SCHEDULE = {
        "collect-rate-limit-usage": {
            "task": "django_ratelimiter.collect_usage",
            "schedule": 60.0,
            "options": {"expires": 60},
        },
    }
"""

from __future__ import annotations

from celery import shared_task

from .exceptions import EngineUnavailable
from .usage.collect import collect


@shared_task(name="django_ratelimiter.collect_usage", ignore_result=True, expires=60, throws=(EngineUnavailable,))
def collect_usage() -> None:
    """Collect the usage of all closed minutes. While Redis is out of reach the task fails, one line each minute."""
    collect()
