"""Tiers of callers: assignments are read once and cached for TIER_CACHE_SECONDS, with maximum sizes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from functools import lru_cache, partial, reduce
from inspect import isawaitable
from ipaddress import ip_network
from operator import or_
from typing import Any, Final, Literal, NamedTuple, TypeVar

from asgiref.sync import sync_to_async
from django.contrib.auth import get_user_model
from django.core.exceptions import FieldDoesNotExist
from django.core.signals import setting_changed
from django.db.models import Model, Q, QuerySet
from django.utils import timezone
from django.utils.module_loading import import_string

from .. import customers, plans
from ..conf import settings
from ..conf.values import is_attribute_path
from ..customers import Customer
from ..databases import is_beside_users
from ..exceptions import raised_at
from ..logs import logger
from ..plans import Anchor, CallerIdentity, InvalidPlan, attribute_of, plan_of, resolved, truth_of, user_pk
from ..tenants import row_key
from ..values.access import DIGEST_MARK, Names, parse_digest
from ..values.digests import hash_api_key, keyed_digest
from ..values.partitions import encode_partition, is_identity, partition_names
from .records import TierRecord
from .ruleset import RuleSet
from .stored import tables
from .stored.tables import models
from .ttl_cache import CallerCache, IdentityCache, KeyCache, OwnCodeFailed, TableCache

T = TypeVar("T")

_ONE: Final = Decimal(1)
_NONE: Final = (None, None, None)
_new = tuple.__new__  # what a named tuple calls in the end

#: Maximum number of assignments of partitions, or of one caller, in one process; the latest are used.
MAX_ASSIGNMENTS: Final = 20_000

#: Maximum number of known API keys that one process loads while many unknown ones arrive.
MAX_KEYS: Final = 200_000

#: Why a caller has this tier: an assignment, TIER_RESOLVER, or neither of them; or this multiplier, or this first day
#: of months: an assignment.
Reason = Literal["assignment", "resolver", "default", "multiplier", "anchor"]

#: Takes each reason, and the primary key of its assignment; 0 = it is none.
Note = Callable[[Reason, int], object]

#: What TIER_RESOLVER says of a caller: the slug of a tier, and when the caller's months begin.
KnownPlan = tuple[str | None, Anchor | None]
NO_PLAN: Final[KnownPlan] = None, None


class KnownCustomer(NamedTuple):
    """What CUSTOMER says of a caller. plan: of the customer, if TIER_RESOLVER is a path of its attributes."""

    customer: Customer | None
    plan: KnownPlan = NO_PLAN


#: CUSTOMER has not answered.
UNREAD_CUSTOMER: Final = KnownCustomer(None)

#: Returns a caller's partition by these names; `None` = the caller lacks one of them.
PartitionOf = Callable[[tuple[str, ...]], str | None]


class Entitlement(NamedTuple):
    """What a caller may have.

    tier: `None` = no tier. multiplier: of the caller's own counters. anchor: when the caller's months begin; `None` =
    as each limit says.
    """

    tier: TierRecord | None
    multiplier: Decimal = Decimal(1)
    anchor: Anchor | None = None


class _Assigned(NamedTuple):
    """One active assignment. number: higher = later. `None`: it says nothing about the tier, or about months."""

    tier: str | None
    dated: bool
    multiplier: Decimal
    number: int
    anchor_day: int | None = None


class _Partitions(NamedTuple):
    """All assignments of partitions. names: in these partitions. prefixes: IP versions and prefix lengths.

    digests: the assignments of callers of whom only the digest is known, by what they are counted by.
    """

    by_value: dict[str, list[_Assigned]]
    names: frozenset[tuple[str, ...]]
    prefixes: frozenset[tuple[int, int]]
    digests: Mapping[Names, dict[str, list[_Assigned]]]


def callers_differ(rules: RuleSet) -> bool:
    """Return whether what callers may have depends on who they are: there are tiers, or TIER_RESOLVER is set."""
    return bool(rules.tiers) or settings.TIER_RESOLVER is not None


def entitlement_for(
    rules: RuleSet,
    user_id: str | None,
    api_key: str | None,
    partition_of: PartitionOf | None = None,
    read: Callable[[str], Any] = lambda _name: None,
    note: Note | None = None,
) -> Entitlement:
    """Return what is assigned to the user, one of the user's groups, the API key or a partition of the caller.

    An assignment with an end date takes precedence, then the tier of highest rank, then the latest. Without one: the
    tier that TIER_RESOLVER gives, else the default tier of authenticated or, if neither user nor key is known,
    anonymous requests. The multiplier of an assignment without a tier goes on top. api_key: the key's hash. No query
    when cached. read: of the caller's values, see `CallerIdentity`. note: called with the reasons.
    """
    found: tuple[_Assigned, ...] = ()
    if user_id is not None or api_key is not None:
        found = _callers.get((user_id, api_key))
    if partition_of is not None and ((partitions := _partitions.get()).names or partitions.digests):
        found = (*found, *_assigned_partitions(partition_of, partitions))
    plan = NO_PLAN
    if (path := settings.TIER_RESOLVER) is not None:
        is_of_customer = is_attribute_path(path, ("customer",))
        plan = customers_of.get(user_id, api_key, read).plan if is_of_customer else _plans.get(user_id, api_key, read)
    is_anonymous = user_id is None and api_key is None and not (settings.CUSTOMER and read("customer"))
    return granted(rules, found, plan, note, is_anonymous=is_anonymous)


def known_entitlement(rules: RuleSet, values: Mapping[str, str], api_key: str | None) -> Entitlement:
    """Return the entitlement of a caller of whom only these values are known. api_key: the hash of the key."""

    def partition_of(names: tuple[str, ...]) -> str | None:
        return encode_partition([(name, values[name]) for name in names]) if values.keys() >= {*names} else None

    if not callers_differ(rules):
        return Entitlement(None)
    return entitlement_for(rules, values.get("user"), api_key, partition_of, values.get)


def granted(
    rules: RuleSet, found: Sequence[_Assigned], known: KnownPlan, note: Note | None = None, *, is_anonymous: bool
) -> Entitlement:
    """Return the entitlement by these active assignments and this plan. note: see `entitlement_for`.

    The months begin as the strongest assignment with an anchor day says, else the plan: what is given for a while, such
    as a multiplier, does not move them.
    """
    tiers, multiplier, (slug, anchor) = rules.tiers, _ONE, known
    best, more, own = _strongest(found, tiers) if found else _NONE
    tier: TierRecord | None
    if best is not None:
        tier, multiplier = tiers[best.tier], best.multiplier  # type: ignore[index]
    elif slug in tiers:
        tier = tiers[slug]
    else:
        tier = rules.default_tiers.get("anonymous" if is_anonymous else "authenticated")
    if more is not None:
        multiplier *= more.multiplier
    if own is not None:
        anchor = (anchor or Anchor())._replace(day=own.anchor_day)
    if note is not None:
        note("assignment" if best else "resolver" if slug in tiers else "default", best.number if best else 0)
        if more is not None:
            note("multiplier", more.number)
        if own is not None:
            note("anchor", own.number)
    return _new(Entitlement, (tier, multiplier, anchor))


def is_known_api_key(api_key: str, address: Callable[[], str | None] = lambda: None) -> bool:
    """Return whether an assignment or access entry has this hash, active or not; other keys are not identities.

    address: returns the caller's address.
    """
    return _keys.get(api_key, address) is not None


def resolve_api_key(raw: str, address: Callable[[], str | None] = lambda: None) -> str | None:
    """Return the result of API_KEY_RESOLVER for the key; `None` = unknown. Cached like assignments.

    address: returns the caller's address.
    """
    return _resolved_keys.get(raw, address)


def find_api_key(raw: str) -> str | None:
    """Return the same as `resolve_api_key`, without a cache. Raises OwnCodeFailed: that is no answer."""
    return _resolve_key(raw) if _has_form(raw) else None


def forget() -> None:
    """Drop the cached assignments."""
    for remembered in (_callers, _keys, _plans, customers_of, exemptions, _resolved_keys, _partitions):
        remembered.forget()


def _strongest(found: Sequence[_Assigned], tiers: Mapping[str, TierRecord]) -> Sequence[_Assigned | None]:
    """Return the assignments that give the tier, the multiplier on top, and the first day of months."""
    active = [each for each in found if each.tier is None or each.tier in tiers]
    if len(active) > 1:
        active.sort(key=lambda each: (each.dated, tiers[each.tier].rank if each.tier else 0, each.number))
    best = more = own = None
    for each in active:  # the strongest is the last
        if each.tier is not None:
            best = each
        elif each.multiplier != 1:
            more = each
        if each.anchor_day:
            own = each
    return best, more, own


def assigned(
    tier: str | None, starts_at: Any, ends_at: Any, multiplier: Decimal, number: int, anchor_day: int | None
) -> _Assigned:
    """Return the assignment of a row, which must be active."""
    return _Assigned(tier, starts_at is not None or ends_at is not None, multiplier, number, anchor_day)


def _find_caller(caller: tuple[str | None, str | None]) -> tuple[_Assigned, ...]:
    """Return the assignments of the caller with this user's id and hash of an API key, the latest first."""
    user_id, api_key = caller
    conditions = [*of_user(user_id)]
    if api_key is not None:
        conditions.append(Q(api_key_hash=api_key))
    if not conditions:
        return ()
    return tuple([assigned for _, assigned in _in_force(models.TierAssignment.objects.filter(reduce(or_, conditions)))])


def of_user(user_id: str | None) -> Iterator[Q]:
    """Yield the conditions that an assignment is of this user, and of one of the user's groups; none if none can be."""
    users, pk = get_user_model(), user_pk(user_id)
    if pk is None or not is_beside_users(models.TierAssignment):
        return
    yield Q(user=pk)
    with suppress(FieldDoesNotExist):  # a custom user model without groups
        users._meta.get_field("groups")
        yield Q(group__in=users._default_manager.filter(pk=pk).values_list("groups", flat=True))


def _in_force(assignments: QuerySet[models.TierAssignment]) -> Iterator[tuple[str, _Assigned]]:
    """Return the currently active assignments, the latest first, each with its partition."""
    tables.must_exist("TierAssignment")
    now = timezone.now()
    begun, not_over = Q(starts_at=None) | Q(starts_at__lte=now), Q(ends_at=None) | Q(ends_at__gt=now)
    rows: Any = (
        assignments.filter(begun, not_over)
        .order_by("-pk")
        .values_list("partition", "tier__slug", "starts_at", "ends_at", "multiplier", "pk", "anchor_day")
    )
    for partition, *row in rows[: MAX_ASSIGNMENTS + 1]:
        yield partition, assigned(*row)


def _find_partitions() -> _Partitions:
    by_value: dict[str, list[_Assigned]] = {}
    names, prefixes, digests = set(), set(), dict[Names, dict[str, list[_Assigned]]]()
    for number, (value, assigned) in enumerate(_in_force(models.TierAssignment.objects.filter(partition__gt=""))):
        if number == MAX_ASSIGNMENTS:
            logger.error("More than %s partitions have a tier; the oldest assignments have no effect.", MAX_ASSIGNMENTS)
            break
        if value.startswith(DIGEST_MARK):
            with suppress(ValueError):  # written by SQL, or by a later version
                every, digest = parse_digest(value.removeprefix(DIGEST_MARK))
                for of in every:
                    digests.setdefault(of, {}).setdefault(digest, []).append(assigned)
            continue
        of = partition_names(value)
        if not all(map(is_identity, of)):  # written by SQL, or by a later version
            continue
        by_value.setdefault(value, []).append(assigned)
        names.add(of)
        if of == ("ip",) and "/" in value:
            with suppress(ValueError):  # written by SQL, or by a later version
                network = ip_network(value.removeprefix("ip:"))
                prefixes.add((network.version, network.prefixlen))
    return _Partitions(by_value, frozenset(names), frozenset(prefixes), digests)


def _assigned_partitions(partition_of: PartitionOf, partitions: _Partitions) -> Iterator[_Assigned]:
    for names in partitions.names:
        value = partition_of(names)
        if value is not None:
            yield from partitions.by_value.get(value, ())
    for names, by_digest in partitions.digests.items():
        value = partition_of(names)
        for key in () if value is None else (settings.HASH_KEY, *settings.HASH_KEY_FALLBACKS):
            yield from by_digest.get(keyed_digest(key, str(value)), ())
    if partitions.prefixes:
        for value in _networks_around(partition_of(("ip",)), partitions.prefixes):
            yield from partitions.by_value.get(value, ())


@lru_cache(maxsize=4096)
def _networks_around(value: str | None, prefixes: frozenset[tuple[int, int]]) -> list[str]:
    """Return the networks of these lengths that contain the address or network in `value`, as partitions."""
    if value is None:
        return []
    network = ip_network(value.removeprefix("ip:"))
    lengths = [length for version, length in prefixes if version == network.version and length < network.prefixlen]
    return [f"ip:{network.supernet(new_prefix=length)}" for length in lengths]


def _find_key(api_key: str) -> str | None:
    tables.must_exist("TierAssignment", "AccessEntry")
    assigned = models.TierAssignment.objects.filter(api_key_hash=api_key)
    is_known = assigned.exists() or models.AccessEntry.objects.filter(kind="api_key", value=api_key).exists()
    return api_key if is_known else None


def _find_all_keys() -> frozenset[str] | None:
    tables.must_exist("TierAssignment", "AccessEntry")
    assigned = models.TierAssignment.objects.exclude(api_key_hash="").values_list("api_key_hash", flat=True)
    listed = models.AccessEntry.objects.filter(kind="api_key").values_list("value", flat=True)
    found = frozenset([*assigned[: MAX_KEYS + 1], *listed[: MAX_KEYS + 1]])
    return None if len(found) > MAX_KEYS else found


def _resolve_key(raw: str) -> str | None:
    path: Any = settings.API_KEY_RESOLVER
    with _own_code("API_KEY_RESOLVER"):  # if it fails, known keys stay known
        found = import_string(path)(raw)
    if isinstance(found, Model):
        return row_key(found)
    if found is not None and not isinstance(found, str):
        raise OwnCodeFailed(f"API_KEY_RESOLVER must return a text, a row or None, not a {type(found).__name__}.")
    return hash_api_key(raw) if found and found == raw else found or None


def find_plan(identity: CallerIdentity) -> KnownPlan:
    """Return what TIER_RESOLVER says of this caller, without a cache. Raises OwnCodeFailed."""
    return resolved(_ask("TIER_RESOLVER", plan_of, identity)) if settings.TIER_RESOLVER else NO_PLAN


def find_exemption(identity: CallerIdentity) -> bool | None:
    """Return whether EXEMPT exempts this caller, without a cache; `None` = it failed, as the log says."""
    try:
        return settings.EXEMPT is not None and resolved(_ask("EXEMPT", truth_of, identity))
    except OwnCodeFailed as error:
        logger.error("Whether a caller is exempt cannot be shown: %s", error)
        return None


def _known_customer(row: Any) -> KnownCustomer:
    """Return what is kept of the row of a customer."""
    customer, path = customers.of_row(row), settings.TIER_RESOLVER
    if customer is None or path is None or not is_attribute_path(path, ("customer",)):
        return KnownCustomer(customer)
    with _own_code("TIER_RESOLVER"):
        return KnownCustomer(customer, plan_of(attribute_of(row, path.split(".")[1:])))


def _ask(setting: str, read: Callable[[Any], T], identity: CallerIdentity) -> T | Awaitable[T]:
    """Return what `read` makes of a setting's answer about this caller; the awaitable of it if that is one."""

    async def read_awaited() -> T:
        with _own_code(setting):
            return await sync_to_async(read)(await answer)  # it may ask the database

    with _own_code(setting):
        path = getattr(settings, setting)
        answer = plans.customer_answer(identity) if setting == "CUSTOMER" else plans.answer_of(path, identity)
        return read_awaited() if isawaitable(answer) else read(answer)


@contextmanager
def _own_code(setting: str) -> Iterator[None]:
    """Raise OwnCodeFailed for what the project's code raises."""
    try:
        yield
    except OwnCodeFailed:  # of another setting
        raise
    except InvalidPlan as error:
        raise OwnCodeFailed(f"RATELIMITER['{setting}'] {error}.") from None
    except Exception as error:
        raise OwnCodeFailed(f"RATELIMITER['{setting}'] failed: {raised_at(error)}") from None


def _has_form(raw: str) -> bool:
    path = settings.API_KEY_FORM
    try:
        return path is None or bool(import_string(path)(raw))
    except Exception as error:  # the project's own code; the resolver decides
        logger.error("RATELIMITER['API_KEY_FORM'] failed: %s", raised_at(error))
        return True


_callers: CallerCache[tuple[_Assigned, ...]] = CallerCache(_find_caller, (), "Tier assignments")
_plans = IdentityCache(partial(_ask, "TIER_RESOLVER", plan_of), NO_PLAN, "The plan of a caller")
#: The customers of callers, and their plans if TIER_RESOLVER reads them.
customers_of = IdentityCache(partial(_ask, "CUSTOMER", _known_customer), UNREAD_CUSTOMER, "The customer of a caller")
#: Whether a caller is exempt, cached because a flood would ask for each rejection; `None` = EXEMPT has failed.
exemptions = IdentityCache[bool | None](partial(_ask, "EXEMPT", truth_of), None, "The exemption of a caller")
_keys = KeyCache(_find_key, "An API key", TableCache(_find_all_keys, None, "Assignments of API keys"))
_resolved_keys = KeyCache(_resolve_key, "An API key", has_form=_has_form)
_partitions = TableCache(_find_partitions, _Partitions({}, frozenset(), frozenset(), {}), "Assignments of partitions")


def _forget_settings(*, setting: str, **_signal: object) -> None:
    """Forget what was found by other settings."""
    if setting == "RATELIMITER":
        forget()


setting_changed.connect(_forget_settings, dispatch_uid="django_ratelimiter.rules.tiers")
