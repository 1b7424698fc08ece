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

import time
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, Final, NoReturn, ParamSpec, TypeVar

from . import limiter
from .decision import Decision
from .exceptions import EngineUnavailable, LimitExceeded
from .limiter.slots import Slot, retry_in
from .usage.collector.alerts import Thresholds, lag, send_alerts
from .usage.collector.collect import run

try:
    from celery import Task, shared_task
    from celery.exceptions import Retry
except ModuleNotFoundError:  # django-crontask imports the `tasks` of each app: without Celery these are functions

    def shared_task(**_options: Any) -> Callable[[T], T]:  # type: ignore[no-redef]
        return lambda run: run


P = ParamSpec("P")
T = TypeVar("T")

#: Seconds. A broker may consider a message lost that is held back longer, and deliver it twice.
MAX_COUNTDOWN: Final = 600.0
#: Seconds by which a message may arrive early and still run at once.
EARLY_SECONDS: Final = 0.01

#: The header of a message that waits for its turn: {"at": when, in epoch seconds, "reserved": whether it is charged}.
_HEADER: Final = "ratelimit_slot"


@shared_task(name="django_ratelimiter.collect_usage", ignore_result=True, expires=60, throws=(EngineUnavailable,))
def collect_usage(**thresholds: Any) -> None:
    """Collect the usage of all closed minutes, send alerts, and delete rows that are older than RETENTION.

    thresholds: see `usage.collector.alerts.Thresholds`. While Redis is out of reach, the task fails with one log line
    each minute.
    """
    run(Thresholds(**thresholds))


@shared_task(name="django_ratelimiter.watch_usage", ignore_result=True, expires=60, throws=(EngineUnavailable,))
def watch_usage(**thresholds: Any) -> None:
    """Send alerts without collecting: for a worker that runs even when the collector does not."""
    send_alerts(lag(), Thresholds(**thresholds))


def in_slot(
    scope: str, *, cost: int | None = None, partition: str | None = None
) -> Callable[[Callable[Concatenate[Task[..., Any], P], T]], Callable[Concatenate[Task[..., Any], P], T]]:
    """Run a bound task when it has its turn within the rules of this scope. Options as for `limiter.slot`.

    Put it between the task's decorator, which needs `bind=True`, and the function. The worker never sleeps: if its turn
    is later, the task is sent again with a countdown, which does not count as a retry. It keeps its turn in a queue.
    Leases last until the function ends. A cost that is never allowed fails the task with LimitExceeded. So does
    any wait if the task cannot be sent again, because it was called as a function or eagerly.
    """
    slot = limiter.slot(scope, cost=cost, partition=partition)

    def decorate(run: Callable[Concatenate[Task[..., Any], P], T]) -> Callable[Concatenate[Task[..., Any], P], T]:
        @wraps(run)
        def run_in_turn(self: Task[..., Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
            decision = _turn(self, slot)
            try:
                return run(self, *args, **kwargs)
            finally:
                slot.release(decision)

        return run_in_turn

    return decorate


def _turn(task: Task[..., Any], slot: Slot) -> Decision:
    """Return the decision if it is the task's turn; else send the task again and raise Retry."""
    request: Any = task.request
    headers = request.headers or {}
    waited: dict[str, Any] = headers.get(_HEADER, {})
    at, reserved = waited.get("at", 0.0), waited.get("reserved", False)
    if at - time.time() > EARLY_SECONDS:
        _send_again(task, at, reserved)
    can_wait = not (request.called_directly or request.is_eager)
    decision = slot.ask(None if can_wait else 0.0, only_leases=reserved)
    if not decision.allowed:
        seconds = retry_in(decision)
        if seconds is None or not can_wait:
            raise LimitExceeded(decision)
        _send_again(task, time.time() + seconds, reserved)
    if decision.delay:
        slot.release(decision)  # taken again at its turn
        _send_again(task, time.time() + decision.delay, True)
    headers.pop(_HEADER, None)  # a retry by the task itself gets a new turn
    return decision


def _send_again(task: Task[..., Any], at: float, reserved: bool) -> NoReturn:
    request: Any = task.request
    seconds = max(0.0, min(at - time.time(), MAX_COUNTDOWN))
    message = task.signature_from_request(
        request,
        countdown=seconds,
        retries=request.retries,
        headers={**(request.headers or {}), _HEADER: {"at": at, "reserved": reserved}},
    )
    message.apply_async()
    raise Retry(when=seconds, sig=message)  # type: ignore[arg-type]  # a float is a Real, except in the stubs
