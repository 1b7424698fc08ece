"""A caller's own limits; reading them uses no quota."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple

from django.http import HttpRequest

from ..conf import settings
from ..decision import NOTHING_TO_DECIDE
from ..engine.base import NEVER, Verdict
from ..engine.coroutines import run_sync
from ..engine.limits import Limit
from ..exceptions import AccessDenied
from ..headers import Quota, name_of, quota_of
from ..identity import Identity, digest, partition
from ..limiter.charges import access_entry_for, limit_request
from ..limiter.io import THREAD
from ..limiter.path import peek_decision
from ..rules import cache
from ..rules.records import RuleRecord, TierRecord
from ..values.partitions import IDENTITIES, is_address


class OwnLimit(NamedTuple):
    """A limit of the caller. verdict: of a request now; `None` = not known."""

    rule: RuleRecord
    tier: TierRecord | None
    limit: Limit
    verdict: Verdict | None

    @property
    def policy(self) -> str:
        return name_of(self.rule, self.tier, self.limit)

    @property
    def quota(self) -> Quota:
        return quota_of(self.limit)

    @property
    def remaining(self) -> int | None:
        if self.verdict is None:
            return None
        # If the caller lacks the value that the rule is split by, everything is rejected, whatever it costs.
        return 0 if self.verdict.charge.cost == NEVER else self.verdict.remaining

    @property
    def resets_in(self) -> float | None:
        return self.verdict.reset_after if self.verdict else None

    @property
    def resets_at(self) -> datetime | None:
        if self.verdict is None:
            return None
        return datetime.fromtimestamp(self.verdict.at_us / 1e6, UTC) + timedelta(seconds=self.verdict.reset_after)

    @property
    def retry_in(self) -> float | None:
        if self.verdict is None:
            return None
        return 0.0 if self.verdict.allowed else self.verdict.retry_after


class _ProvenIdentity(Identity):
    """The identity of a request without the values that a caller can choose: they do not prove who it is."""

    __slots__ = ()

    def value(self, name: str) -> str | None:
        return super().value(name) if _is_proof(name) else None


class OwnStatus(NamedTuple):
    """A caller's tier and limits, and its digest in each rule's counters."""

    tier: TierRecord | None
    limits: list[OwnLimit]
    digests: dict[str, str]


def own_status(request: HttpRequest) -> OwnStatus:
    """Return the caller's limits under all enforced rules, whatever requests these match. Uses no quota.

    Raises AccessDenied if an access entry denies the caller. The result is empty for a caller that an entry allows, and
    while enforcement is stopped.
    """
    rules, identity = cache.current_rules(), _ProvenIdentity(request)
    granted = cache.entitlement_for(
        rules, identity.user_id, identity.api_key, partial(partition, identity), identity.resolve_tier
    )
    access = access_entry_for(cache.access_list(), identity)
    if access is not None and access.action == "deny":
        raise AccessDenied(access)
    if access is not None or not rules.enforced or not settings.ENABLED:
        return OwnStatus(granted.tier, [], {})
    asked = limit_request(request, earlier=NOTHING_TO_DECIDE, reach="all")._replace(identity=identity)
    decision = run_sync(peek_decision(THREAD, asked))
    limits = [
        OwnLimit(result.rule, result.tier, result.limit, result.verdict)
        for result in decision.results
        if result.mode == "enforce" and not _depends_on_request(result.rule)
    ]
    for rule in rules.rules:
        if rule.mode == "enforce" and _depends_on_request(rule):
            limits += [OwnLimit(rule, granted.tier, record.limit, None) for record in rule.limits_for(*granted)]
    digests = {own.rule.slug: _digest(own.rule, identity) for own in limits}
    return OwnStatus(granted.tier, limits, {slug: found for slug, found in digests.items() if found})


def _is_proof(name: str) -> bool:
    return name in IDENTITIES or is_address(name) or name in settings.TRUSTED_IDENTITIES


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
