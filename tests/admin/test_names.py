"""Lists of callers name users by their login names, in one query for the whole list."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.utils import timezone

from django_ratelimiter.admin.formatting import names_in_words
from django_ratelimiter.identity import digest
from django_ratelimiter.models import Tier, TierAssignment
from django_ratelimiter.values.partitions import encode_partition

pytestmark = pytest.mark.django_db


@pytest.fixture
def reader() -> User:
    user = User.objects.create_user("reader")
    user.user_permissions.add(Permission.objects.get(codename="reveal_caller"))
    return User.objects.get(pk=user.pk)


def test_users_are_named_in_one_query(reader: User, django_assert_num_queries: Any) -> None:
    ann, bob = User.objects.create_user("ann@example.org"), User.objects.create_user("bob")
    digests = [digest(f"user:{user.pk}") for user in (ann, bob)]
    reader.has_perm("any")
    with django_assert_num_queries(1):
        found = names_in_words(reader, digests)
    assert [found[each] for each in digests] == [f"user: ann@example.org (id {ann.pk})", f"user: bob (id {bob.pk})"]


@pytest.mark.parametrize("value", ["4711", "7|%", "9" * 40])
def test_of_a_user_who_is_gone_the_primary_key_stays(reader: User, value: str) -> None:
    found = names_in_words(reader, [digest(encode_partition([("user", value)]))])
    assert list(found.values()) == [f"user: {value}"]


def test_others_are_told_by_their_value_and_ask_no_database(reader: User, django_assert_num_queries: Any) -> None:
    reader.has_perm("any")
    with django_assert_num_queries(0):
        assert names_in_words(reader, [digest("ip:192.0.2.7")]) == {digest("ip:192.0.2.7"): "IP address: 192.0.2.7"}


def test_keys_are_shown_by_the_labels_of_their_assignments(reader: User, django_assert_num_queries: Any) -> None:
    keys = {"shop": "a1" * 32, "none": "b2" * 32, "account-1": ""}
    row = TierAssignment(tier=Tier.objects.create(slug="gold", name="Gold"), api_key_hash=keys["shop"], reason="Shop")
    row.save()
    ended = timezone.now() + timedelta(days=1)
    other = Tier.objects.create(slug="silver", name="Silver")
    TierAssignment.objects.create(tier=other, api_key_hash=keys["shop"], reason="later")
    for key in (keys["shop"], keys["none"]):
        TierAssignment.objects.create(multiplier=2, api_key_hash=key, reason="on the phone", ends_at=ended)
    aliases = {name: digest(f"api_key:{key or name}") for name, key in keys.items()}
    assert set(names_in_words(reader, aliases.values()).values()) == {
        "API key: a1a1a1a1…", "API key: b2b2b2b2…", "API key: account-1"
    }  # fmt: skip
    reader.user_permissions.add(Permission.objects.get(codename="view_tierassignment"))
    reader = User.objects.get(pk=reader.pk)
    reader.has_perm("any")
    with django_assert_num_queries(1):
        found = names_in_words(reader, aliases.values())
    assert (found[aliases["shop"]], found[aliases["none"]]) == ("API key: Shop (a1a1a1a1…)", "API key: b2b2b2b2…")
