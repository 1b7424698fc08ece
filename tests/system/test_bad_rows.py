"""Rows that no form would accept, written by SQL: they cost their own rules and nothing else, and say why."""

from __future__ import annotations

import html

from django.db import connection
from django.urls import reverse

from django_ratelimiter.models import Rule, RuleLimit

from .conftest import Edit, MakeRule
from .load import send
from .site import Site

QUOTA, SAVED_QUOTA = 1_000_000, 500_000
REQUESTS = 40


def test_bad_rows_leave_the_site_up_and_the_other_rules_in_force(site: Site, make_rule: MakeRule, edit: Edit) -> None:
    good, *bad = [make_rule(number, QUOTA, partition_by=["ip"]) for number in (1, 2, 3, 4)]
    break_rows(*bad)
    clients = site.connect(8, good.path)
    # SQL numbers no version: the rules are in force as they were saved last.
    for rule in (good, *bad):
        assert {(answer.status, answer.quota) for answer in send(clients, rule.path, REQUESTS)} == {(200, QUOTA)}

    editor = edit(clients[0])
    editor.save(good, quota=SAVED_QUOTA)
    assert {(answer.status, answer.quota) for answer in send(clients, good.path, REQUESTS)} == {(200, SAVED_QUOTA)}
    for rule in bad:
        assert {(answer.status, answer.quota) for answer in send(clients, rule.path, REQUESTS)} == {(200, None)}

    reasons = ("'no_such' is unknown", "Window in seconds: Must be above 0", "A “<” or “>” has no matching bracket")
    checked = site.manage("check")
    listed = html.unescape(editor.open(reverse("admin:django_ratelimiter_rule_changelist")))
    for rule, reason in zip(bad, reasons, strict=True):
        assert any(rule.slug in line and reason in line for line in checked.splitlines())
        assert reason in listed
        own_page = editor.open(reverse("admin:django_ratelimiter_rule_change", args=[rule.pk]))
        assert reason in html.unescape(own_page)
    assert good.slug not in checked


def break_rows(algorithm: Rule, window: Rule, route: Rule) -> None:
    """Write an unknown algorithm, a window of 0 and a broken route."""
    limits, rules = RuleLimit._meta.db_table, Rule._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {limits} SET algorithm = 'no_such' WHERE rule_id = %s", [algorithm.pk])
        cursor.execute(f"UPDATE {limits} SET window_seconds = 0 WHERE rule_id = %s", [window.pk])
        broken = "items/<int:item"
        cursor.execute(f"UPDATE {rules} SET path_kind = 'route', path = %s WHERE id = %s", [broken, route.pk])
