"""Once the admin's save has returned, no request that meets the rule is decided by its old limit, in any process."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from django_ratelimiter.models import Rule, RuleSetVersion

from .conftest import Edit, MakeRule
from .editor import Editor
from .engines import failures_of
from .load import Answer, Traffic, send
from .site import Site

CLIENTS = 8
REQUESTS = 1_000
#: A quota that nobody exhausts, and one that every client has exhausted already.
WIDE, NARROW = 1_000_000, 1
NOT_IN_FORCE = "Saved, not yet in force everywhere"

BreakPublishing = Callable[[int, int], Callable[[], int]]


@pytest.fixture
def break_publishing(unreliable_site: Site) -> Iterator[BreakPublishing]:
    """Make publishing fail so many times in one process; returns how many of these are still to come."""
    files = set()

    def break_(process: int, times: int) -> Callable[[], int]:
        file = failures_of(unreliable_site.folder, process)
        file.write_text(str(times))
        files.add(file)
        return lambda: int(file.read_text())

    yield break_
    for file in files:
        file.unlink()


@pytest.mark.parametrize("flushed", [False, True], ids=["", "and-redis-is-flushed"])
def test_no_request_after_a_save_is_decided_by_the_old_limit(
    site: Site, make_rule: MakeRule, edit: Edit, redis_client: redis.Redis, flushed: bool
) -> None:
    rule = make_rule(1, WIDE, partition_by=["ip"])
    clients = site.connect(CLIENTS, rule.path)
    editor = edit(clients.pop())
    with Traffic(clients, [rule.path]) as traffic:
        traffic.wait_for(lambda answers: len(answers) > CLIENTS)
        for quota in (NARROW, WIDE):
            editor.save(rule, quota=quota)
            saved = time.monotonic()
            if flushed:
                redis_client.flushdb()
            traffic.wait_for(lambda answers: len(answers) > REQUESTS)
            answers = traffic.between(saved, time.monotonic())
            # After a flush the one unit of the narrow quota is there to be spent.
            assert_decided_by(quota, answers, site, refused_but=1 if flushed else 0)


def test_two_editors_who_save_at_once_are_both_obeyed_at_once(site: Site, make_rule: MakeRule, edit: Edit) -> None:
    rules = [make_rule(number, WIDE, partition_by=["ip"]) for number in (1, 2)]
    clients = site.connect(CLIENTS + 2, rules[0].path)
    editors = [edit(client) for client in clients[:2]]
    numbered = RuleSetVersion.objects.count()

    def save(editor: Editor, rule: Rule, quota: int) -> float:
        editor.save(rule, quota=quota)
        return time.monotonic()

    quotas = (NARROW, WIDE, NARROW, WIDE)
    with Traffic(clients[2:], [rule.path for rule in rules]) as traffic, ThreadPoolExecutor(2) as threads:
        traffic.wait_for(lambda answers: len(answers) > CLIENTS)
        for quota in quotas:
            saved = list(threads.map(save, editors, rules, [quota, quota]))
            traffic.wait_for(lambda answers: len(answers) > REQUESTS // 2)
            for rule, moment in zip(rules, saved, strict=True):
                answers = traffic.between(moment, time.monotonic())
                assert_decided_by(quota, [answer for answer in answers if answer.path == rule.path], site)
    assert RuleSetVersion.objects.count() == numbered + len(rules) * len(quotas)


def test_a_save_whose_publishing_fails_once_is_in_force_when_it_returns(
    unreliable_site: Site, make_rule: MakeRule, edit: Edit, break_publishing: BreakPublishing
) -> None:
    rule = make_rule(1, WIDE, partition_by=["ip"])
    clients = unreliable_site.connect(CLIENTS, rule.path)
    editor = edit(clients.pop())
    with Traffic(clients, [rule.path]) as traffic:
        traffic.wait_for(lambda answers: len(answers) > CLIENTS)
        for quota in (NARROW, WIDE):
            failures_left = break_publishing(editor.process, 1)
            page = editor.save(rule, quota=quota)
            saved = time.monotonic()
            assert NOT_IN_FORCE not in page
            assert failures_left() == 0
            traffic.wait_for(lambda answers: len(answers) > REQUESTS)
            assert_decided_by(quota, traffic.between(saved, time.monotonic()), unreliable_site)


def test_a_save_that_cannot_be_published_stands_and_the_collector_puts_it_in_force(
    unreliable_site: Site, make_rule: MakeRule, edit: Edit, break_publishing: BreakPublishing
) -> None:
    rule = make_rule(1, WIDE, partition_by=["ip"])
    clients = unreliable_site.connect(CLIENTS, rule.path)
    editor = edit(clients[0])
    break_publishing(editor.process, 1_000_000)
    page = editor.save(rule, quota=NARROW)
    assert NOT_IN_FORCE in page
    assert rule.limits.get().quota == NARROW
    # The worker that saved would tell the engine with its next request; the other one knows nothing yet.
    others = [client for client in clients if client.process != editor.process]
    assert {answer.quota for answer in send(others, rule.path, 20)} == {WIDE}
    unreliable_site.manage("ratelimit", "collect")
    assert_decided_by(NARROW, send(clients, rule.path, REQUESTS), unreliable_site)


def assert_decided_by(quota: int, answers: Collection[Answer], site: Site, refused_but: int = 0) -> None:
    """Both workers answered, each time by this quota. refused_but: so many were admitted all the same."""
    assert {answer.process for answer in answers} == site.workers
    assert {answer.quota for answer in answers} == {quota}
    admitted = sum(answer.admitted for answer in answers)
    assert admitted == (refused_but if quota == NARROW else len(answers))
    assert {answer.status for answer in answers} <= {200, 429}
