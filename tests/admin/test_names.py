"""Whom digests stand for, as lists of callers say it: users by their login names, in one query for the whole list."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User

from django_ratelimiter.admin.names import names_in_words
from django_ratelimiter.identity import digest
from django_ratelimiter.usage.live import names

pytestmark = pytest.mark.django_db


@pytest.fixture
def reader() -> User:
    user = User.objects.create_user("reader")
    user.user_permissions.add(Permission.objects.get(codename="reveal_caller"))
    return User.objects.get(pk=user.pk)


def remember(value: object) -> str:
    names.remember(digest(f"user:{value}"), "user", str(value))
    return digest(f"user:{value}")


def test_users_are_named_in_one_query(reader: User, django_assert_num_queries: Any) -> None:
    ann, bob = User.objects.create_user("ann@example.org"), User.objects.create_user("bob")
    digests = [remember(user.pk) for user in (ann, bob)]
    reader.has_perm("any")
    with django_assert_num_queries(1):
        found = names_in_words(reader, digests)
    assert [found[each] for each in digests] == [f"user: ann@example.org (id {ann.pk})", f"user: bob (id {bob.pk})"]


@pytest.mark.parametrize("value", ["4711", "7|%", "9" * 40])
def test_of_a_user_who_is_gone_the_primary_key_stays(reader: User, value: str) -> None:
    found = names_in_words(reader, [remember(value)])
    assert list(found.values()) == [f"user: {value}"]


def test_others_are_told_by_their_value_and_ask_no_database(
    reader: User, settings: Any, django_assert_num_queries: Any
) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "REVEAL": ["user", "ip"]}
    names.remember(digest("ip:192.0.2.7"), "ip", "192.0.2.7")
    reader.has_perm("any")
    with django_assert_num_queries(0):
        assert names_in_words(reader, [digest("ip:192.0.2.7")]) == {digest("ip:192.0.2.7"): "IP address: 192.0.2.7"}


def test_readers_without_the_permission_learn_nothing(django_assert_num_queries: Any) -> None:
    ann = User.objects.create_user("ann")
    ann.has_perm("any")
    with django_assert_num_queries(0):
        assert names_in_words(ann, [remember(ann.pk)]) == {}
