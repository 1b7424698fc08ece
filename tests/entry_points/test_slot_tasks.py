"""Tasks that take their turn: what is sent again, when, and what it costs; without a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import Celery
from celery.canvas import Signature
from celery.exceptions import Retry

from django_ratelimiter import backend, limiter, tasks
from django_ratelimiter.exceptions import LimitExceeded

from ..counting import usage_of
from ..making import Clock, MakeRule

pytestmark = pytest.mark.django_db(transaction=True)

QUEUE: dict[str, Any] = {"quota": 1, "algorithm": "leaky_bucket", "limit": {"window_seconds": 2, "burst": 3}}
LEASES: dict[str, Any] = {"quota": 1, "algorithm": "concurrency", "limit": {"window_seconds": 60}}


class Worker:
    """Runs the task `pay` as a worker would, and keeps what it sends again instead of sending it."""

    def __init__(self, clock: Clock, cost: int | None = None) -> None:
        self.clock = clock
        self.sent: list[Signature[Any]] = []
        self.began: list[float] = []
        self.body: Callable[[Any], object] = lambda task: None
        app = Celery("tests", set_as_current=False)

        @app.task(bind=True, name="pay", shared=False)  # type: ignore[untyped-decorator]
        @tasks.in_slot("stripe", cost=cost)
        def pay(task: Any, number: int, *, currency: str) -> str:
            self.began.append(clock.seconds())
            self.body(task)
            return f"{number} {currency}"

        self.pay = pay

    def run(self, **options: Any) -> str | None:
        """What the task returned, or `None` if it was sent again."""
        request = {"id": "1", "args": [7], "kwargs": {"currency": "EUR"}, "retries": 2, "called_directly": False}
        route = {"delivery_info": {"exchange": "", "routing_key": "celery"}}
        self.pay.push_request(**{**request, **route, "headers": {"own": "kept"}, **options})
        try:
            return self.pay.run(7, currency="EUR")  # type: ignore[no-any-return]
        except Retry:
            return None
        finally:
            self.pay.pop_request()

    def run_again(self, wait: bool = True) -> str | None:
        """Run what was sent last, after its countdown."""
        options = self.sent[-1].options
        if wait:
            self.clock.now_us += round(options["countdown"] * 1_000_000)
        return self.run(headers=options["headers"], retries=options["retries"])

    def countdowns(self) -> list[float]:
        return [pytest.approx(message.options["countdown"], abs=1e-5) for message in self.sent]


@pytest.fixture
def worker(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Worker:
    worker = Worker(clock)
    monkeypatch.setattr(Signature, "apply_async", lambda message: worker.sent.append(message))
    monkeypatch.setattr(tasks.time, "time", lambda: clock.now_us / 1_000_000)
    return worker


@contextmanager
def charges(expected: int) -> Iterator[None]:
    """So many requests are admitted and counted meanwhile."""
    yield
    assert sum(count.allowed for count in usage_of(backend.get_engine())) == expected


def test_a_place_in_the_queue_is_taken_once_and_obeyed_later(make_rule: MakeRule, worker: Worker) -> None:
    make_rule("out", scope="stripe", **QUEUE)
    with charges(2):
        assert worker.run() == "7 EUR"
        assert worker.run() is None
        assert worker.countdowns() == [2]
        [message] = worker.sent
        assert worker.run_again() == "7 EUR"
    assert worker.began == [0, 2]
    assert worker.clock.slept == []
    # It is the same task, and this is no retry of its own.
    assert (message.task, *message.args, message.kwargs) == ("pay", 7, {"currency": "EUR"})
    assert (message.options["task_id"], message.options["retries"]) == ("1", 2)
    assert message.options["headers"]["own"] == "kept"


def test_a_full_queue_is_asked_again_when_there_is_a_place(make_rule: MakeRule, worker: Worker) -> None:
    make_rule("out", scope="stripe", **QUEUE)
    with charges(4):
        for _ in range(4):
            worker.run()
        assert worker.countdowns() == [2, 4, 2]
        assert worker.run_again() is None
        assert worker.countdowns()[-1] == 4
        assert worker.run_again() == "7 EUR"
    assert worker.began == [0, 6]


def test_a_message_that_comes_early_waits_on(make_rule: MakeRule, worker: Worker) -> None:
    make_rule("out", scope="stripe", **QUEUE)
    with charges(2):
        worker.run()
        worker.run()
        worker.clock.now_us += 500_000
        assert worker.run_again(wait=False) is None
        assert worker.countdowns() == [2, 1.5]
        assert worker.run_again() == "7 EUR"
    assert worker.began == [0, 2]


def test_a_long_wait_is_cut_into_pieces_that_brokers_bear(make_rule: MakeRule, worker: Worker) -> None:
    make_rule("out", scope="stripe", quota=1, algorithm="fixed_window", limit={"window_seconds": 1_000})
    worker.clock.now_us = 1_700_000_000_000_000
    with charges(2):
        worker.run()
        assert worker.run() is None
        while worker.run_again() is None:
            pass
    assert worker.countdowns() == [600, 400]


def test_the_tasks_own_retry_takes_a_new_place(make_rule: MakeRule, worker: Worker) -> None:
    make_rule("out", scope="stripe", **QUEUE)
    worker.run()
    worker.run()
    worker.body = lambda task: task.retry(countdown=1)
    assert worker.run_again() is None
    assert worker.sent[-1].options["retries"] == 3
    assert worker.sent[-1].options["headers"] == {"own": "kept"}
    assert worker.run_again() is None
    assert worker.countdowns() == [2, 1, 1]


def test_a_lease_lasts_for_the_task_and_not_while_it_waits(make_rule: MakeRule, worker: Worker) -> None:
    make_rule("out", scope="stripe", **QUEUE)
    make_rule("one", scope="stripe", **LEASES)
    rejected: list[bool] = []
    worker.body = lambda task: rejected.append(not slot_is_free())
    assert worker.run() == "7 EUR"
    assert worker.run() is None
    assert slot_is_free()
    assert worker.run_again() == "7 EUR"
    assert rejected == [True, True]
    assert slot_is_free()


def slot_is_free() -> bool:
    """Whether another could take the lease."""
    decision = limiter.slot("stripe").ask(None, only_leases=True)
    limiter.slot("stripe").release(decision)
    return decision.allowed


def test_who_is_rejected_a_lease_comes_back_in_a_second(make_rule: MakeRule, worker: Worker) -> None:
    make_rule("one", scope="stripe", **LEASES)
    with limiter.slot("stripe"):
        assert worker.run() is None
    assert worker.countdowns() == [1]
    assert worker.run_again() == "7 EUR"


def test_a_failing_task_keeps_no_lease(make_rule: MakeRule, worker: Worker) -> None:
    make_rule("one", scope="stripe", **LEASES)
    worker.body = lambda task: 1 // 0
    with pytest.raises(ZeroDivisionError):
        worker.run()
    assert slot_is_free()


def test_a_cost_that_never_passes_fails_the_task(make_rule: MakeRule, worker: Worker) -> None:
    make_rule("out", scope="stripe", **QUEUE)
    with pytest.raises(LimitExceeded, match="never"):
        Worker(worker.clock, cost=4).run()


@pytest.mark.parametrize("how", [{"called_directly": True}, {"is_eager": True}])
def test_where_nobody_could_send_it_again_a_wait_is_an_error(
    make_rule: MakeRule, worker: Worker, how: dict[str, bool]
) -> None:
    make_rule("out", scope="stripe", **QUEUE)
    with charges(1):
        assert worker.run(**how) == "7 EUR"
        with pytest.raises(LimitExceeded) as caught:
            worker.run(**how)
    assert caught.value.retry_after == 2
    assert worker.sent == []


def test_the_wrapper_keeps_the_name_and_the_words_of_the_function() -> None:
    @tasks.in_slot("stripe")
    def pay(self: Any) -> None:
        """Pay."""

    assert (pay.__name__, pay.__doc__) == ("pay", "Pay.")
