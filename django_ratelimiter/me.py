"""What is left for a caller: a page, what the tag `my_limits` shows, and the figures of `api`. Nothing is charged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf
from typing import NamedTuple

from django.db.models import F
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import cache_control

from .conf import settings
from .customers import Customer
from .decision import NOTHING_TO_DECIDE, Result
from .engine.base import NEVER, Charge
from .engine.coroutines import run_sync
from .headers.responses import stylesheet
from .identity import Identity, access_entry_for
from .inspection.counters import Counter
from .limiter.charges import limit_request
from .limiter.io import THREAD
from .limiter.path import peek_decision
from .models import UsageBucket
from .rules import cache
from .rules.records import UNREAD, LimitRecord, RuleRecord, TierRecord
from .rules.routes import matched_with
from .usage.times import Granularity, now, stored
from .values.partitions import PROVEN, is_address


class _ProvenIdentity(Identity):
    """The identity of a request without the values that a caller can choose: they do not prove who it is."""

    __slots__ = ()

    def value(self, name: str) -> str | None:
        return super().value(name) if _is_proof(name) else None


@dataclass
class OwnRule:
    """A rule that limits the caller.

    counters: one for each limit; without a verdict if its state is not known. rejected_by: the counters that reject all
    requests that the rule matches, also of other rules; the longest wait first. has_units: some cost more than one.
    """

    rule: RuleRecord
    counters: list[Counter] = field(default_factory=list)
    rejected_by: Sequence[Counter] = ()
    has_units: bool = False

    @property
    def remaining(self) -> int | None:
        """The most that the next request can cost under this rule: the least that is left; `None` = not known."""
        if any(each.rule is not self.rule for each in self.rejected_by):
            return 0
        left = [each.left for each in self.counters if each.left is not None]
        return min(left) if len(left) == len(self.counters) else None


class OwnLimits(NamedTuple):
    """The limits of a caller by all enforced rules, whatever requests these match; none if nothing limits it.

    rules: those that reject now first. others: those that count by a value that callers can choose. is_known: False if
    Redis cannot be read, or who the caller is. is_denied: by an access entry.
    """

    customer: Customer | None
    tier: TierRecord | None
    rules: Sequence[OwnRule] = ()
    others: Sequence[OwnRule] = ()
    is_known: bool = True
    is_denied: bool = False


@cache_control(private=True, no_store=True)
def page(request: HttpRequest) -> HttpResponse:
    """Show the caller's limits. Rules apply to the request as to any other."""
    return render(request, "django_ratelimiter/me.html", {"stylesheet": stylesheet()})


def own_limits(request: HttpRequest) -> OwnLimits:
    """Return the limits of the caller of a request."""
    rules, identity = cache.current_rules(), _ProvenIdentity(request)
    granted, customer = identity.entitlement(rules), identity.customer
    is_off = not (rules.enforced and settings.ENABLED)
    access = None if is_off else access_entry_for(cache.access_list(), identity)
    if is_off or access is not None or identity.is_exempt():
        return OwnLimits(customer, granted.tier, is_denied=access is not None and access.action == "deny")
    asked = limit_request(request, earlier=NOTHING_TO_DECIDE, reach="all")._replace(identity=identity)
    decision, held = run_sync(peek_decision(THREAD, asked)), _held(request)
    is_known = not (decision.degraded or identity.has_failed or UNREAD in decision.slugs)
    chosen = {rule.slug for rule in rules.rules if not all(map(_is_proof, rule.partition_by))}
    found, others = dict[str, OwnRule](), list[OwnRule]()
    for result in decision.results:
        if result.mode == "enforce" and result.rule.slug not in chosen:
            own = found.setdefault(result.rule.slug, OwnRule(result.rule))
            own.counters.append(_counter(result if is_known else result._replace(verdict=None), held))
    for rule in rules.rules:
        if rule.mode == "enforce" and rule.slug in chosen and (records := rule.limits_for(*granted)):
            results = [Result(rule, granted.tier, record.limit, None, rule.mode) for record in records]
            others.append(OwnRule(rule, [_counter(result, held) for result in results]))
    blocked = [each for own in found.values() for each in own.counters if each.blocked]
    rejecting = sorted(blocked, key=lambda each: -each.blocked_until.timestamp() if each.blocked_until else -inf)
    lately = UsageBucket.objects.filter(granularity=Granularity.DAY, start__gte=stored(now() - timedelta(days=30)))
    costly = set(lately.filter(rule_slug__in=found, units__gt=F("allowed")).values_list("rule_slug", flat=True))
    for slug, own in found.items():
        own.has_units = own.rule.cost > 1 or slug in costly
        always = {slug, *(matched_with(own.rule, [each.rule for each in rejecting]) if rejecting else ())}
        own.rejected_by = [each for each in rejecting if each.rule.slug in always]
    first = sorted(found.values(), key=lambda own: not own.rejected_by)
    return OwnLimits(customer, granted.tier, first, others, is_known)


def _held(request: HttpRequest) -> dict[str, int]:
    """Return the units that this request uses only until it is answered, by counter."""
    results: Sequence[Result] = getattr(request, "ratelimit", NOTHING_TO_DECIDE).results
    brief = [each for each in results if each.limit.holds_leases or each.rule.charge_when == "failure"]
    verdicts = [each.verdict for each in brief if each.verdict and not each.local]
    return {each.charge.key + each.charge.limit.tag: each.spent for each in verdicts}


def _counter(result: Result, held: Mapping[str, int]) -> Counter:
    """Return the counter of a result of a peek. held: units that are left for the next request."""
    rule, tier, limit, verdict, *_ = result
    charge = Charge("", limit, rule.cost) if verdict is None else verdict.charge
    if verdict is not None:
        back = held.get(charge.key + limit.tag, 0)
        # If the caller lacks the value that the rule is split by, everything is rejected, whatever it costs.
        verdict.remaining = 0 if charge.cost == NEVER else min(verdict.remaining + back, limit.capacity)
        if back and verdict.remaining >= charge.cost:
            verdict.allowed, verdict.retry_after = True, 0.0
    known = None if charge.is_local else verdict  # the next request may go to another process
    return Counter(rule, str(tier or ""), LimitRecord(limit), charge, result.digest or "", known)


def _is_proof(name: str) -> bool:
    return name in PROVEN or is_address(name) or name in settings.TRUSTED_IDENTITIES
