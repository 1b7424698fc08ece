"""A caller's own limits; reading them uses no quota."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from django.http import HttpRequest

from ..conf import settings
from ..decision import NOTHING_TO_DECIDE
from ..engine.base import NEVER, Verdict
from ..engine.coroutines import run_sync
from ..engine.limits import Limit
from ..exceptions import AccessDenied
from ..headers.syntax import name_of, quota_of
from ..identity import Identity, access_entry_for, digest, partition
from ..inspection.counters import moment_of
from ..limiter.charges import limit_request
from ..limiter.io import THREAD
from ..limiter.path import peek_decision
from ..rules import cache
from ..rules.formatting import limit_in_words
from ..rules.records import LimitRecord, RuleRecord, TierRecord
from ..rules.ruleset import RuleSet
from ..rules.tiers import Entitlement
from ..usage.reports.callers import Usage, usage_of
from ..values.partitions import PROVEN, is_address


class OwnReport(NamedTuple):
    """The caller's limits and usage, as their serializers read them."""

    tier: TierRecord | None
    limits: Sequence[dict[str, Any]]
    usage: Usage


class _ProvenIdentity(Identity):
    """The identity of a request without the values that a caller can choose: they do not prove who it is."""

    __slots__ = ()

    def value(self, name: str) -> str | None:
        return super().value(name) if _is_proof(name) else None


def own_report(request: HttpRequest) -> OwnReport:
    """Return the caller's limits under all enforced rules, whatever requests these match. Uses no quota.

    Raises AccessDenied if an access entry denies the caller. A caller that an entry allows has no limits, and nobody
    has some while enforcement is stopped.
    """
    rules, identity = cache.current_rules(), _ProvenIdentity(request)
    granted = identity.entitlement(rules)
    access = access_entry_for(cache.access_list(), identity)
    if access is not None and access.action == "deny":
        raise AccessDenied(access)
    limits, digests = list[dict[str, Any]](), dict[str, str]()
    if access is None and rules.enforced and settings.ENABLED:
        for rule, tier, limit, verdict in _limits(rules, granted, request, identity):
            limits.append(_own_limit(rule, tier, limit, verdict))
            if (found := _digest(rule, identity)) is not None:
                digests[rule.slug] = found
    return OwnReport(granted.tier, limits, usage_of(digests))


def _limits(
    rules: RuleSet, granted: Entitlement, request: HttpRequest, identity: Identity
) -> Iterator[tuple[RuleRecord, TierRecord | None, Limit, Verdict | None]]:
    """Yield the rules, each limit, and the verdict of a request now; `None` = not known."""
    asked = limit_request(request, earlier=NOTHING_TO_DECIDE, reach="all")._replace(identity=identity)
    for result in run_sync(peek_decision(THREAD, asked)).results:
        if result.mode == "enforce" and not _depends_on_request(result.rule):
            yield result.rule, result.tier, result.limit, result.verdict
    for rule in rules.rules:
        if rule.mode == "enforce" and _depends_on_request(rule):
            yield from ((rule, granted.tier, record.limit, None) for record in rule.limits_for(*granted))


def _own_limit(rule: RuleRecord, tier: TierRecord | None, limit: Limit, verdict: Verdict | None) -> dict[str, Any]:
    quota = quota_of(limit)
    found: dict[str, Any] = {
        "rule": rule.slug,
        "name": rule.name,
        "in_words": limit_in_words(LimitRecord(limit)),
        "counted_by": rule.partition_by,
        "cost": rule.cost,
        "policy": name_of(rule, tier, limit),
        "quota": quota.units,
        "window_seconds": quota.window,
    }
    if verdict is None:
        return found | dict.fromkeys(("remaining", "resets_in", "resets_at", "retry_in"))
    return found | {
        # If the caller lacks the value that the rule is split by, everything is rejected, whatever it costs.
        "remaining": 0 if verdict.charge.cost == NEVER else verdict.remaining,
        "resets_in": verdict.reset_after,
        "resets_at": moment_of(verdict.at_us + round(verdict.reset_after * 1_000_000)).isoformat(),
        "retry_in": 0.0 if verdict.allowed else verdict.retry_after,
    }


def _is_proof(name: str) -> bool:
    return name in PROVEN or is_address(name) or name in settings.TRUSTED_IDENTITIES


def _depends_on_request(rule: RuleRecord) -> bool:
    return not all(map(_is_proof, rule.partition_by))


def _digest(rule: RuleRecord, identity: Identity) -> str | None:
    """Return the digest of the caller's own counters under a rule; `None` = not known, or shared with all callers."""
    if not rule.partition_by or _depends_on_request(rule):
        return None
    value = partition(identity, rule.partition_by)
    if value is None and rule.missing_partition == "ip":
        value = partition(identity, ("ip",))
    return None if value is None else digest(value)
