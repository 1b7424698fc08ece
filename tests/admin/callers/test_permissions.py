"""A caller's page: who may open it, who may act, and who sees what."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from django_ratelimiter.admin.callers.act_forms import days
from django_ratelimiter.models import AccessEntry, Tier, TierAssignment

from ..pages import shown
from .page import CALLER

pytestmark = pytest.mark.django_db

UNBLOCK, GRANT = ["Reset all counters", ">Give back<"], ["Allow more", "Change tier", "Deny every request"]


@pytest.mark.parametrize(
    ("permissions", "status", "buttons"),
    [([], 403, []), (["view_rule", "view_usage_report"], 403, []), (["view_tierassignment"], 200, []),
     (["unblock_caller"], 200, UNBLOCK), (["grant_caller"], 200, GRANT),
     (["unblock_caller", "grant_caller"], 200, [*UNBLOCK, *GRANT])],
)  # fmt: skip
def test_each_act_takes_its_own_permission(
    operator: Callable[..., Client], page: str, ann: User, permissions: list[str], status: int, buttons: list[str]
) -> None:
    client = operator(*permissions)
    response = client.get(page)
    assert response.status_code == status
    assert [each for each in [*UNBLOCK, *GRANT] if each in shown(response)] == buttons
    assert client.get(f"{CALLER}?kind=user&value=424242").status_code == status  # whoever that is
    assert client.get(CALLER).status_code == status
    acts = {"reset": "unblock_caller", "more": "grant_caller", "deny": "grant_caller"}
    for act, permission in acts.items():
        token = client.get(page).context["token"] if status == 200 else ""
        sent = {"token": token, "reason": "x", "act": act, "multiplier": "2", "until": days()[-1].value}
        assert client.post(page, sent).status_code == (302 if permission in permissions else 403)
    assert TierAssignment.objects.count() == AccessEntry.objects.count() == int("grant_caller" in permissions)


def test_shows_the_name_usage_and_links_to_those_alone_who_may(
    operator: Callable[..., Client], page: str, ann: User
) -> None:
    text = shown(operator("unblock_caller").get(page))
    assert "ann" not in text.replace("cannot", "")
    assert "Known usage" not in text
    assert reverse("admin:django_ratelimiter_rule_changelist") not in text


@pytest.mark.parametrize(("codenames", "hides"), [([], True), (["view_tierassignment", "view_accessentry"], False)])
def test_what_is_hidden_is_said(
    operator: Callable[..., Client], page: str, ann: User, free: Tier, codenames: list[str], hides: bool
) -> None:
    AccessEntry.objects.create(kind="user", value=str(ann.pk), action="deny", reason="for fraud")
    TierAssignment.objects.create(user=ann, tier=free, reason="as a trial")
    text = shown(operator("unblock_caller", *codenames).get(page))
    for said, row in (("access entries", "for fraud"), ("tier assignments", "as a trial")):
        assert (f"You may not see {said}." in text, row in text) == (hides, not hides)
