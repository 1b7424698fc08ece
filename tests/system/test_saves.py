"""Once the admin's save has returned, no request that meets the rule is decided by its old limit, in any process."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from django_ratelimiter.models import Rule, RuleSetVersion

from .conftest import Edit, MakeRule
from .editor import Editor
from .load import Answer, Client, Traffic, send
from .site import Site

CLIENTS = 8
REQUESTS = 160
#: A quota that nobody exhausts, and one that every client has exhausted already.
WIDE, NARROW = 1_000_000, 1
NOT_IN_FORCE = "Saved, not yet in force everywhere"


def test_no_request_after_a_save_is_decided_by_the_old_limit(site: Site, make_rule: MakeRule, edit: Edit) -> None:
    rule = make_rule(1, WIDE, partition_by=["ip"])
    clients = site.connect(CLIENTS, rule.path)
    editor = edit(clients[0])
    for quota in (NARROW, WIDE):
        save_under_traffic(editor, rule, quota, clients)
        assert_decided_by(quota, send(clients, rule.path, REQUESTS), site.workers)


def test_two_editors_who_save_at_once_are_both_obeyed_at_once(site: Site, make_rule: MakeRule, edit: Edit) -> None:
    rules = [make_rule(number, WIDE, partition_by=["ip"]) for number in (1, 2)]
    clients = site.connect(CLIENTS + 2, rules[0].path)
    editors = [edit(client) for client in clients[:2]]
    numbered = RuleSetVersion.objects.count()

    quotas = (NARROW, WIDE, NARROW, WIDE)
    with Traffic(clients[2:], [rule.path for rule in rules]) as traffic, ThreadPoolExecutor(2) as threads:
        traffic.wait_for(lambda answers: len(answers) > CLIENTS)
        for quota in quotas:
            list(threads.map(partial(Editor.save, quota=quota), editors, rules))
            traffic.wait_for(lambda answers: len(answers) > REQUESTS // 2)
            for editor, rule in zip(editors, rules, strict=True):
                answers = [answer for answer in traffic.since(editor.posted) if answer.path == rule.path]
                assert_decided_by(quota, answers, site.workers)
    assert RuleSetVersion.objects.count() == numbered + len(rules) * len(quotas)


def others(clients: Sequence[Client], editor: Editor) -> list[Client]:
    """The clients of the worker that does not save: it is told of a new version by the engine alone."""
    return [client for client in clients if client.process != editor.process]


def save_under_traffic(editor: Editor, rule: Rule, quota: int, clients: Sequence[Client]) -> None:
    """Save while the other worker is busy; none of its requests after the save is decided by the old limit."""
    asking = others(clients, editor)
    with Traffic(asking, [rule.path]) as traffic:
        traffic.wait_for(lambda answers: len(answers) > CLIENTS)
        editor.save(rule, quota=quota)
        traffic.wait_for(lambda answers: len(answers) > CLIENTS)
    assert_decided_by(quota, traffic.since(editor.posted), {client.process for client in asking})


def assert_decided_by(quota: int, answers: Sequence[Answer], workers: Collection[int]) -> None:
    """All of these workers answered, each time by this quota."""
    assert {answer.process for answer in answers} == workers
    assert {answer.quota for answer in answers} == {quota}
    assert {answer.status for answer in answers} == {429 if quota == NARROW else 200}
