"""Deleting a tier to which very many callers are assigned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.db.models.signals import post_init
from django.test import Client
from django.urls import reverse

from django_ratelimiter.models import Rule, Tier, TierAssignment

from ..pages import number, page_of, shown

pytestmark = pytest.mark.django_db

MANY = 3_000
TIERS = reverse("admin:django_ratelimiter_tier_changelist")


@pytest.fixture
def crowd(free: Tier) -> Tier:
    """A tier with thousands of assignments."""
    TierAssignment.objects.bulk_create(
        TierAssignment(tier=free, api_key_hash=f"{number:064x}") for number in range(MANY)
    )
    return free


@contextmanager
def none_is_loaded() -> Iterator[None]:
    """Fail if an assignment is made into an object within."""
    loaded: list[object] = []

    def note(instance: object, **_signal: object) -> None:
        loaded.append(instance)

    post_init.connect(note, sender=TierAssignment)
    try:
        yield
    finally:
        post_init.disconnect(note, sender=TierAssignment)
    assert len(loaded) == 0


def test_the_page_that_asks_counts_them(admin_client: Client, crowd: Tier, rule: Rule) -> None:
    with none_is_loaded():
        page = shown(admin_client.get(page_of(crowd, "delete")))
    assert "Tier assignments: 3000" in page
    assert "3000 tier assignments" in page
    assert "Limit: export, free: 100/min" in page


def test_deletes_them_all_as_one_version(admin_client: Client, crowd: Tier) -> None:
    before = number()
    with none_is_loaded():
        assert admin_client.post(page_of(crowd, "delete"), {"post": "yes"}).status_code == 302
    assert (number(), Tier.objects.count(), TierAssignment.objects.count()) == (before + 1, 0, 0)


def test_so_does_the_action(admin_client: Client, crowd: Tier) -> None:
    other = Tier.objects.create(slug="pro", name="Pro")
    sent = {"action": "delete_selected", "_selected_action": [crowd.pk, other.pk]}
    with none_is_loaded():
        assert "3000 tier assignments" in shown(admin_client.post(TIERS, sent))
        assert admin_client.post(TIERS, {**sent, "post": "yes"}).status_code == 302
    assert (Tier.objects.count(), TierAssignment.objects.count()) == (0, 0)


def test_needs_the_right_to_delete_assignments(operator: Callable[..., Client], crowd: Tier) -> None:
    client = operator("view_tier", "delete_tier")
    assert "doesn't have permission to delete" in shown(client.get(page_of(crowd, "delete")))
    assert client.post(page_of(crowd, "delete"), {"post": "yes"}).status_code == 403
    assert TierAssignment.objects.count() == MANY


def test_no_such_right_is_needed_for_a_tier_without_any(operator: Callable[..., Client], free: Tier) -> None:
    client = operator("view_tier", "delete_tier")
    assert client.post(page_of(free, "delete"), {"post": "yes"}).status_code == 302
