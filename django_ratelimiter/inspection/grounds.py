"""Why a caller has what it has: its tier, its access entry, and the rows behind them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import reduce
from ipaddress import ip_network
from itertools import chain, permutations
from operator import or_
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.db.models import Q, QuerySet
from django.db.models.functions import Right
from django.utils import timezone
from django.utils.translation import gettext as _

from ..databases import is_beside_users
from ..logs import logger
from ..models import AccessEntry, TierAssignment
from ..plans import CallerIdentity, user_pk
from ..rules.ruleset import RuleSet
from ..rules.tiers import NO_PLAN, Entitlement, assigned, find_exemption, find_plan, granted
from ..rules.ttl_cache import OwnCodeFailed
from ..values.access import DIGEST_MARK, AccessList, AccessRecord
from ..values.digests import DIGEST_SIZE
from .caller import Caller


def row_of(record: AccessRecord | None) -> AccessEntry | None:
    """Return the row of a record; `None` = there is none."""
    if record is None:
        return None
    until = None if record.expires_at is None else datetime.fromtimestamp(record.expires_at, UTC)
    named = {"action": record.action, "kind": record.kind, "value": record.value, "reason": record.reason}
    return AccessEntry(pk=record.pk, expires_at=until, **named)


@dataclass(frozen=True, slots=True)
class TierExplanation:
    """The caller's tier, and why."""

    #: assignment, resolver or default; failed = the default, because TIER_RESOLVER failed; none = the caller has no
    #: tier; unknown = only the caller's digest is known; empty = there are no tiers, or the caller is not known.
    kind: str = ""
    slug: str = ""
    name: str = ""
    multiplier: Decimal = Decimal(1)  # times each limit of the caller's own counters
    anchor_day: int | None = None  # the day on which the caller's months begin; `None` = as each limit says
    timezone: str = ""  # the caller's time zone for months; empty = as each limit says
    anchor_time: str = ""  # the time of day at which the caller's months begin; empty = midnight
    #: The assignments that give the tier, multiply without a tier, and give `anchor_day`.
    assigned: TierAssignment | None = None
    multiplied: TierAssignment | None = None
    anchored: TierAssignment | None = None

    @classmethod
    def of(
        cls, granted: Entitlement, reasons: Mapping[str, int], rows: Mapping[int, TierAssignment]
    ) -> TierExplanation:
        """Return the explanation of an entitlement. reasons: as `entitlement_for` notes them. rows: by primary key."""
        found = dict(reasons)
        more, own = (rows.get(found.pop(name, 0)) for name in ("multiplier", "anchor"))
        kind, number = next(iter(found.items()), ("default", 0))
        tier, (day, zone, start) = granted.tier, granted.anchor or (None, None, None)
        named = (kind, tier.slug, tier.name) if tier else ("none", "", "")
        time = str(start or "").removesuffix(":00")
        return cls(*named, granted.multiplier, day, zone or "", time, rows.get(number), more, own)


#: Maximum number of rows of each kind that are shown.
MAX_ROWS: Final = 100

#: Maximum number of values for which partitions of several values are searched.
MAX_NAMES: Final = 4


@dataclass(frozen=True)
class Grounds:
    """The caller's entitlement, and its reason."""

    entitlement: Entitlement
    tier: TierExplanation
    #: The assignments that match the caller and have not ended.
    assignments: Sequence[TierAssignment]
    entries: Sequence[AccessEntry]
    #: The entry that applies now.
    access: AccessEntry | None
    #: EXEMPT lets the caller pass all rules; `None` = it failed. It is not asked if an entry applies, nor of a caller
    #: of whom neither user, API key nor customer is known.
    exempt: bool | None


def grounds_of(callers: Sequence[Caller], rules: RuleSet) -> list[Grounds]:
    """Return the entitlement of each caller and its reason, from the database without caches. At most five queries."""
    named = [{*_names_of(each, rules)} for each in callers]
    for pk, group in _groups_of({value for own in named for kind, value in own if kind == "pk"}):
        for own in named:
            own |= {("group", group)} if ("pk", pk) in own else set()
    values: dict[str, set[Any]] = defaultdict(set)
    for kind, value in chain(*named):
        values[kind].add(value)
    rows = [(_assigned_to(each), each) for each in _assignments(values)[: MAX_ROWS * len(callers)]]
    listed = [(_entered(each), each) for each in _entries(values)[: MAX_ROWS * len(callers)]]
    found = []
    for caller, own in zip(callers, named, strict=True):
        assignments = [row for name, row in rows if name in own]
        entries = [row for name, row in listed if name in own]
        found.append(_grounds_of(caller, rules, assignments, entries))
    return found


def _grounds_of(
    caller: Caller, rules: RuleSet, assignments: Sequence[TierAssignment], entries: Sequence[AccessEntry]
) -> Grounds:
    """Return the entitlement, and where it comes from. assignments, entries: those that match the caller."""
    now = timezone.now()
    rows = {each.pk: each for each in assignments if each.starts_at is None or each.starts_at <= now}
    found = [
        assigned(row.tier.slug if row.tier else None, row.starts_at, row.ends_at, row.multiplier, pk, row.anchor_day)
        for pk, row in rows.items()
    ]
    plan, reasons = NO_PLAN, dict[str, int]()
    known = {"user": caller.user, "address": caller.address, "customer": caller.customer}

    def read(name: str) -> Any:
        return known[name] if name in known else caller.value_of(name)

    identity = CallerIdentity(caller.known.get("user"), caller.api_key, read)
    try:
        plan, otherwise = find_plan(identity), "default"
    except OwnCodeFailed as error:
        logger.error("The plan of a caller cannot be shown: %s", error)
        otherwise = "failed"
    is_proven = not {"user", "api_key", "customer"}.isdisjoint(caller.known)
    is_anonymous = not is_proven and caller.kind != "digest"
    entitlement = granted(rules, found, plan, reasons.__setitem__, is_anonymous=is_anonymous)
    tier = TierExplanation.of(entitlement, reasons, rows)
    if caller.kind == "digest" and rules.tiers and tier.kind in ("default", "none"):
        tier = replace(tier, kind="unknown", slug="", name="")
    tier = replace(tier, kind=otherwise) if tier.kind == "default" else tier
    records = AccessList(map(_record_of, entries))  # searched in the same way as for requests
    whom, customer = (caller.address, caller.known.get("user"), caller.api_key), caller.known.get("customer")
    access = row_of(records.lookup(*whom, digests_of=caller.digests_by, customer=customer))
    exempt = access is None and is_proven and find_exemption(identity)
    return Grounds(entitlement, tier, assignments, entries, access, exempt)


def may_be_denied(callers: Iterable[Caller]) -> str:
    """Return in words that an access entry may deny one of these API keys, whose hash is not known; "" = none does."""
    if any(each.kind == "api_key" and each.api_key is None for each in callers):
        not_over = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
        if AccessEntry.objects.filter(not_over, kind="api_key", action="deny").exists():
            return _("Access entries deny API keys by their hash, which is not known here.")
    return ""


def _names_of(caller: Caller, rules: RuleSet) -> Iterator[tuple[str, Any]]:
    """Yield by what rows may name this caller, each a kind and a value."""
    ways = {rule.partition_by for rule in rules.rules if rule.partition_by} | {(name,) for name in caller.known}
    # As rules in force count it, and by each known value.
    yield from (("digest", each) for each in (caller.digest, *chain.from_iterable(map(caller.digests_by, ways))))
    yield from (("partition", each) for each in _partitions(caller))
    yield from (("ip", each) for each in _networks(caller.address))
    user, customer = map(caller.known.get, ("user", "customer"))
    pk = user_pk(user) if is_beside_users(TierAssignment) else None
    values = {"user": user, "pk": pk, "api_key": caller.api_key, "customer": customer}
    yield from ((kind, value) for kind, value in values.items() if value is not None)


def _groups_of(pks: Collection[Any]) -> Iterable[tuple[Any, Any]]:
    """Return the groups of these users, each with the user."""
    users = get_user_model()
    if not pks or not any(field.name == "groups" for field in users._meta.many_to_many):
        return ()  # a custom user model without groups
    return users._default_manager.filter(pk__in=pks, groups__isnull=False).values_list("pk", "groups")


def _assignments(values: Mapping[str, Collection[Any]]) -> QuerySet[TierAssignment]:
    """Return the assignments of callers with these values, by kind, that are not over."""
    subjects = (
        Q(user__in=values["pk"]),
        Q(group__in=values["group"]),
        Q(api_key_hash__in=values["api_key"]),
        Q(partition__in=values["partition"]),
        Q(partition__startswith=DIGEST_MARK, ending__in=values["digest"]),
    )
    not_over = Q(ends_at=None) | Q(ends_at__gt=timezone.now())
    rows = TierAssignment.objects.alias(ending=Right("partition", DIGEST_SIZE)).filter(not_over, reduce(or_, subjects))
    return rows.select_related("tier").prefetch_related("user", "group").order_by("-pk")


def _assigned_to(row: TierAssignment) -> tuple[str, Any]:
    """Return kind and value of the subject of an assignment."""
    if row.user_id is not None or row.group_id is not None:
        return ("group", row.group_id) if row.user_id is None else ("pk", row.user_id)
    if row.api_key_hash:
        return "api_key", row.api_key_hash
    is_digest = row.partition.startswith(DIGEST_MARK)
    return ("digest", row.partition[-DIGEST_SIZE:]) if is_digest else ("partition", row.partition)


def _partitions(caller: Caller) -> list[str]:
    """Return the caller's known partitions, and the networks that contain the address."""
    names = list(caller.known)[:MAX_NAMES]
    found = [caller.partition(some) for size in range(1, len(names) + 1) for some in permutations(names, size)]
    return [*filter(None, found), *(f"ip:{network}" for network in _networks(caller.known.get("ip")))]


def _networks(address: str | None) -> Iterator[str]:
    """Yield the networks that contain this address, the narrowest first, in the format of entries and assignments."""
    if address is None:
        return
    network = ip_network(address)
    yield str(network.network_address) if network.prefixlen == network.max_prefixlen else str(network)
    for length in range(network.prefixlen - 1, -1, -1):
        yield str(network.supernet(new_prefix=length))


def _entries(values: Mapping[str, Collection[Any]]) -> QuerySet[AccessEntry]:
    """Return the access entries of callers with these values, by kind, that are not over."""
    named = [Q(kind=kind, value__in=values[kind]) for kind in ("ip", "user", "api_key", "customer")]
    named.append(Q(kind="digest", ending__in=values["digest"]))
    not_over = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
    return AccessEntry.objects.alias(ending=Right("value", DIGEST_SIZE)).filter(not_over, reduce(or_, named))


def _entered(row: AccessEntry) -> tuple[str, Any]:
    """Return kind and value of the caller of an entry."""
    return row.kind, row.value[-DIGEST_SIZE:] if row.kind == "digest" else row.value


def _record_of(row: AccessEntry) -> AccessRecord:
    expires_at = None if row.expires_at is None else row.expires_at.timestamp()
    return AccessRecord(row.action, row.kind, row.value, expires_at, row.reason, row.pk)
