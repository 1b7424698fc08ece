"""Who has which tier: the assignments, looked up once and kept for TIER_CACHE_SECONDS in a bounded cache."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import reduce
from operator import or_
from typing import Any, Final, TypeVar, cast

from django.contrib.auth import get_user_model
from django.core.exceptions import FieldDoesNotExist, ValidationError
from django.db import Error
from django.db.models import Q

from ..conf import settings
from ..models import TierAssignment
from .ruleset import RuleSet, TierRecord

logger = logging.getLogger("django_ratelimiter")

CACHE_SIZE: Final = 20_000

Found = TypeVar("Found")

_Cache = dict[Hashable, tuple[float, Any]]

_tiers: _Cache = {}
_keys: _Cache = {}  # by itself: invented keys may fill it, and shall push out no tier


def tier_for(rules: RuleSet, user_id: str | None, api_key: str | None) -> TierRecord | None:
    """The tier of highest rank assigned to the user, one of the user's groups or the API key.

    Without an assignment: the default tier of authenticated or, where neither user nor key is known, anonymous
    requests. `None` = no tier. api_key: the key's hash. No query when warm.
    """
    if user_id is None and api_key is None:
        return rules.default_tier("anonymous")
    nothing: tuple[str, ...] = ()
    slugs = _remembered(_tiers, (user_id, api_key), lambda: _assigned(user_id, api_key), nothing)
    tiers = [rules.tiers[slug] for slug in slugs if slug in rules.tiers]
    if tiers:
        return max(tiers, key=lambda tier: tier.rank)
    return rules.default_tier("authenticated")


def api_key_known(api_key: str) -> bool:
    """Whether an assignment knows this hash; any other key is no identity."""
    return _remembered(_keys, api_key, lambda: _key_exists(api_key), False)


def forget() -> None:
    """Drop what is remembered: the next request reads the assignments again."""
    _tiers.clear()
    _keys.clear()


def _assigned(user_id: str | None, api_key: str | None) -> tuple[str, ...]:
    subjects = _user_subjects(user_id) if user_id is not None else []
    if api_key is not None:
        subjects.append(Q(api_key_hash=api_key))
    if not subjects:
        return ()
    assignments = TierAssignment.objects.filter(reduce(or_, subjects))
    return tuple(assignments.values_list("tier__slug", flat=True))


def _user_subjects(user_id: str) -> list[Q]:
    """What names the user in an assignment; nothing for an authentication's own kind of user."""
    users = get_user_model()
    try:
        users._meta.pk.to_python(user_id)
    except ValidationError:
        return []
    subjects = [Q(user=user_id)]
    with suppress(FieldDoesNotExist):  # a custom user model without groups
        users._meta.get_field("groups")
        subjects.append(Q(group__in=users._default_manager.filter(pk=user_id).values("groups")))
    return subjects


def _key_exists(api_key: str) -> bool:
    return TierAssignment.objects.filter(api_key_hash=api_key).exists()


def _remembered(cache: _Cache, key: Hashable, find: Callable[[], Found], otherwise: Found) -> Found:
    """What `find` returned within the last TIER_CACHE_SECONDS; `otherwise` while the database cannot be read."""
    now = time.monotonic()
    kept = cache.get(key)
    if kept and now < kept[0]:
        return cast(Found, kept[1])
    try:
        found = find()
    except Error:
        logger.exception("Tier assignments cannot be read; the default tier is used.")
        found = cast(Found, kept[1]) if kept else otherwise
    if len(cache) >= CACHE_SIZE:
        cache.clear()
    cache[key] = (now + settings.TIER_CACHE_SECONDS, found)
    return found
