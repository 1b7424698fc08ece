"""The path of a request: who asks, which rules it meets, what the engine says, and the decision.

Every door calls `check`. A request is decided in one call to the engine, or in two where a REST framework view
knows its user only after authentication; the second call then gives back what the first spent if it is refused.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from django.http import HttpRequest

from .conf import settings
from .connection import get_engine
from .decision import NOTHING_TO_DECIDE, Decision, Result, decide
from .engine.base import Charge, Verdict
from .engine.limits import EXACT
from .engine.resilience import LocalEngine
from .exceptions import EngineUnavailable, RulesUnavailable, StaleRules
from .identity import Identity, digest, identify, partition
from .rules import cache
from .rules.ruleset import Facts, RuleRecord, RuleSet, TierRecord

#: A request whose rules are replaced this often while it is decided is decided by the failure policies.
ATTEMPTS: Final = 5

_local = LocalEngine()


class _Question(NamedTuple):
    """What a door asks: the request's facts and identity, the cost (`None` = each rule's own), what went before."""

    facts: Facts
    identity: Identity
    cost: int | None
    before_authentication: bool
    earlier: Decision


class _Planned(NamedTuple):
    rule: RuleRecord
    tier: TierRecord | None
    charge: Charge

    def result(self, verdict: Verdict | None) -> Result:
        return Result(self.rule, self.tier, self.charge.limit, verdict, self.rule.mode)


def check(
    request: Any, *, scope: str | None = None, cost: int | None = None, before_authentication: bool = False
) -> Decision:
    """Decide a request by all rules that it meets and has not met before; the whole is at `request.ratelimit`.

    request: Django's or the REST framework's. scope: also meet the rules of this scope. cost: units to spend,
    `None` = what each rule says. before_authentication: leave rules that need the user to a later call.
    """
    http: HttpRequest = getattr(request, "_request", request)
    earlier: Decision = getattr(http, "ratelimit", NOTHING_TO_DECIDE)
    if earlier.allowed and settings.ENABLED:
        question = _Question(_facts(http, scope), identify(http), cost, before_authentication, earlier)
        http.ratelimit = _decide(question)  # type: ignore[attr-defined]
        return http.ratelimit  # type: ignore[attr-defined,no-any-return]
    return earlier


def _facts(request: HttpRequest, scope: str | None) -> Facts:
    match = request.resolver_match
    route, view_name = (match.route, match.view_name) if match else ("", "")
    return Facts(request.method or "", request.path, route or "", view_name or "", scope or "")


def _decide(question: _Question) -> Decision:
    earlier = question.earlier  # what it spent in this process's memory is no receipt for the engine
    receipts = [] if earlier.degraded else [result.verdict for result in earlier.results if result.verdict]
    try:
        for _ in range(ATTEMPTS):
            rules = cache.current_rules()
            planned = _plan(rules, question)
            if not planned and not cache.is_time_to_ask():
                return earlier
            charges = [plan.charge for plan in planned]
            try:
                verdicts = get_engine().check(charges, version=rules.version, refund_if_denied=receipts)
            except StaleRules as stale:
                cache.reload(stale, rules)
            else:
                cache.confirm()
                results = [plan.result(verdict) for plan, verdict in zip(planned, verdicts, strict=True)]
                return _merge(earlier, results, rules, degraded=False)
        raise RulesUnavailable(f"The rules were replaced {ATTEMPTS} times during one request.")
    except (EngineUnavailable, RulesUnavailable) as error:
        return _decide_without_engine(question, error)


def _plan(rules: RuleSet, question: _Question) -> list[_Planned]:
    """The charges of a request: one for each limit of each rule that it meets."""
    identity = question.identity
    decided = {result.rule.slug for result in question.earlier.results}
    planned: list[_Planned] = []
    matched = rules.match(question.facts)
    if not matched:
        return planned
    # Before its credentials are checked a request may be anybody's: no tier is named, or counted.
    unknown = question.before_authentication and identity.awaits_authentication
    tier = None if unknown else cache.tier_for(rules, identity.user_id, identity.api_key)
    for rule in matched:
        if rule.slug in decided or (question.before_authentication and _needs_user(rule, identity)):
            continue
        limits = rule.limits_for(tier)
        if not limits:
            continue
        value, cost = partition(identity, rule.partition_by), question.cost
        if value is None and rule.missing_partition == "ip":
            value = partition(identity, ("ip",))
        if value is None:
            if rule.missing_partition != "deny":
                continue
            value, cost = "missing", EXACT  # more than any limit holds: refused for good, and counted
        key = f"{rule.slug}:{digest(value)}"
        usage = f"{rule.slug}|{tier or ''}"
        for record in limits:
            spends = rule.cost if cost is None else cost
            planned.append(_Planned(rule, tier, Charge(key, record.limit, spends, rule.mode == "enforce", usage)))
    return planned


def _needs_user(rule: RuleRecord, identity: Identity) -> bool:
    """Whether a rule must wait for authentication: for its partition, or for a tier that no API key settles."""
    return "user" in rule.partition_by or (rule.depends_on_tier and identity.api_key is None)


def _decide_without_engine(question: _Question, error: Exception) -> Decision:
    """Each rule by its failure policy: local, open or closed. One `closed` rule refuses, and nothing is spent."""
    rules = cache.renewed_by_age()
    planned = _plan(rules, question)
    if not planned:
        return question.earlier
    _local.log_outage(error)
    results = [plan.result(None) for plan in planned]
    local = [index for index, plan in enumerate(planned) if plan.rule.failure_policy == "local"]
    if not any(result.refuses for result in results):
        verdicts = _local.check([planned[index].charge for index in local], settings.LOCAL_SHARE)
        for index, verdict in zip(local, verdicts, strict=True):
            results[index] = planned[index].result(verdict)
    return _merge(question.earlier, results, rules, degraded=True)


def _merge(earlier: Decision, results: list[Result], rules: RuleSet, *, degraded: bool) -> Decision:
    return decide([*earlier.results, *results], rules.version, degraded=degraded or earlier.degraded)
