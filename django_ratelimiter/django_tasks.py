"""Tasks for Django's own task framework, `django.tasks`, which Django has since 6.0. Nothing else imports it.

It has no schedule, so something else enqueues a task each minute: `collect_usage.enqueue()`.
"""

from __future__ import annotations

from django.tasks import task

from .usage.collector.alerts import Thresholds, lag, send_alerts
from .usage.collector.collect import run


@task
def collect_usage(**thresholds: float) -> None:
    """Collect the usage of all closed minutes, as Celery's task does. thresholds: see `Thresholds`.

    While Redis is out of reach, the task fails; no usage is lost.
    """
    run(Thresholds(**thresholds))  # type: ignore[arg-type]


@task
def watch_usage(**thresholds: float) -> None:
    """Send alerts without collecting: for a worker that runs even when the collector does not."""
    send_alerts(lag(), Thresholds(**thresholds))  # type: ignore[arg-type]
