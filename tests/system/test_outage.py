"""Redis is killed under traffic and comes back empty: each rule's failure policy, and recovery by itself."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from example_project.redis_server import RedisServer

from .conftest import Edit, MakeRule, StartSite
from .load import FREE_PATH, Answer, Traffic
from .test_saves import NOT_IN_FORCE, WIDE

CLIENTS = 8
#: Enough to exhaust, on each path and in each worker, the quota of the local rule.
REQUESTS = 400
QUOTA = 20
#: What each worker grants of it while Redis is away: LOCAL_SHARE, a half.
SHARE = QUOTA // 2

LOCAL, OPEN, CLOSED, CHANGED = "/items/1/", "/items/2/", "/items/3/", "/items/4/"
PATHS = (LOCAL, OPEN, CLOSED, CHANGED, FREE_PATH)


def test_redis_killed_under_traffic(
    start_site: StartSite, make_rule: MakeRule, edit: Edit, redis_server: Callable[..., RedisServer]
) -> None:
    make_rule(1, QUOTA, failure_policy="local", partition_by=["ip"])
    make_rule(2, 1, failure_policy="open", partition_by=["ip"])
    make_rule(3, WIDE, failure_policy="closed", partition_by=["ip"])
    changed = make_rule(4, WIDE, failure_policy="open", partition_by=["ip"])
    server = redis_server()
    site = start_site("--preload", TEST_REDIS_URL=server.url)
    clients = site.connect(CLIENTS, LOCAL)
    editor = edit(clients.pop())

    def everywhere(path: str, status: int) -> Callable[[Sequence[Answer]], bool]:
        return lambda answers: {each.process for each in of(path, answers) if each.status == status} == site.workers

    with Traffic(clients, PATHS) as traffic:
        traffic.wait_for(lambda answers: len(answers) > REQUESTS)
        before = traffic.since(0)
        server.kill()
        killed = time.monotonic()
        traffic.wait_for(lambda answers: len(answers) > REQUESTS)
        assert NOT_IN_FORCE in editor.save(changed, quota=1, failure_policy="closed")
        # The worker that saved obeys; the other one does once it reads the database again, after RULES_MAX_AGE.
        traffic.wait_for(everywhere(CHANGED, 503))
        during = traffic.since(killed)
        server.start()
        started = time.monotonic()
        traffic.wait_for(everywhere(CLOSED, 200))
        recovered = time.monotonic()
        traffic.wait_for(lambda answers: len(answers) > REQUESTS)
    after = traffic.since(recovered)

    assert {answer.status for answer in traffic.answers} == {200, 429, 503}
    assert_decided_by_redis(before, changed_quota=WIDE)
    assert_decided_by_policy(during)
    assert_decided_by_redis(after, changed_quota=1)
    # The empty Redis was told the version by a worker that had just read the new rules.
    assert {answer.quota for answer in of(CHANGED, traffic.since(started))} <= {1, None}
    # Each time Redis began with nothing it granted the quota once; each worker granted its share once.
    granted = Counter(answer.quota and answer.sent > killed for answer in of(LOCAL, traffic.answers) if answer.admitted)
    local = [answer for answer in of(LOCAL, traffic.answers) if answer.quota is None and answer.admitted]
    assert Counter(answer.process for answer in local) == dict.fromkeys(site.workers, SHARE)
    assert granted == {False: QUOTA, True: QUOTA, None: len(local)}


def of(path: str, answers: Iterable[Answer]) -> list[Answer]:
    return [answer for answer in answers if answer.path == path]


def assert_decided_by_redis(answers: Sequence[Answer], changed_quota: int) -> None:
    """Each rule by its own quota, and nothing rejected that has one."""
    quotas = {path: {answer.quota for answer in of(path, answers)} for path in PATHS}
    assert quotas == {LOCAL: {QUOTA}, OPEN: {1}, CLOSED: {WIDE}, CHANGED: {changed_quota}, FREE_PATH: {None}}
    assert {answer.status for answer in answers} == {200, 429}
    assert {answer.status for path in (CLOSED, FREE_PATH) for answer in of(path, answers)} == {200}


def assert_decided_by_policy(answers: Sequence[Answer]) -> None:
    """Each rule by its failure policy, without numbers that nobody knows."""
    assert {answer.quota for answer in answers} == {None}
    assert {answer.status for answer in of(LOCAL, answers)} <= {200, 429}
    assert {answer.status for answer in of(OPEN, answers)} == {200}
    assert {answer.status for answer in of(CLOSED, answers)} == {503}
    assert {answer.status for answer in of(FREE_PATH, answers)} == {200}
    assert all(int(answer.retry_after or 0) > 0 for answer in of(CLOSED, answers))
