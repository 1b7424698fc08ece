"""What to decide for a request, and its charges: one for each limit of each rule that matches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, NamedTuple

from django.http import HttpRequest

from ..conf import settings
from ..decision import EXEMPT, NOTHING_TO_DECIDE, Decision, Result
from ..engine.base import Counted
from ..engine.call import OVER_ALL_RULES, Call
from ..engine.limits import whole_units
from ..engine.partition_stats import MINUTE_US
from ..engine.usage import line_of, with_caller
from ..exceptions import AccessDenied
from ..identity import BodyNotRead, Identity, access_entry_for
from ..rules.inline import identity_of, label_of, usual_cost_of
from ..rules.records import Facts, RuleRecord
from ..rules.ruleset import RuleSet
from ..rules.tiers import Entitlement, Note, callers_differ
from ..values.access import NOBODY, AccessList
from ..values.partitions import may_need_user
from .templates import NO_RULES, MaxDelay, RuleTemplate, RuleTemplates, value_of

#: Which rules to decide: those that match the request; of them only those of exactly its scope; or all.
Reach = Literal["request", "scope", "all"]

#: What to do with rules by a field of a body that is not read yet, if other rules match, too: raise BodyNotRead, to
#: decide the others first; leave these rules to the next call; or read the body.
Body = Literal["first_the_others", "leave", "read"]

#: Why nothing is charged for a rule that matches: it waits for authentication, the tier has no limit there, or the
#: caller lacks the value that the rule is split by.
Uncharged = Literal["", "authentication", "tier", "missing"]

#: Maximum number of kinds of requests with templates, of about 5 KB each; then all are dropped.
MAX_TEMPLATES: Final = 4_000

#: What distinguishes the templates of a rule set: the `id` of the rules that match and of the tier, the multiplier,
#: when the caller's months begin, the longest delay, HASH_KEY, the `id` of rules in code, the rules decided earlier,
#: the scope if only its rules apply, whether only leases are charged, the stage before authentication.
Kind = tuple[object, ...]

_new = tuple.__new__  # what a named tuple calls in the end

#: Used if callers do not differ. Then the session is not read, and responses need not vary by cookie.
NO_ENTITLEMENT: Final = Entitlement(None)


class Only(str):
    """The scope if only rules of this scope apply."""

    __slots__ = ()


class InlineRule(NamedTuple):
    """A rule written in code, and the value that its counters are split by; `None` = the request has no such value.

    now_us: the time of the decision, in microseconds since the Unix epoch, for a custom clock; `None` = the engine's
    time.
    """

    rule: RuleRecord
    value: str | None
    now_us: int | None = None


class LimitRequest(NamedTuple):
    """What an entry point or a slot asks the limiter to decide.

    http: Django's request; `None` for a slot. identity: `None` for a slot: only the rules of its scope apply, split by
    `partition`. cost: units; `None` = each rule's own. earlier: what other entry points decided for this request.
    before_authentication: leave rules that need the user to a later call. inline: rules written in code, decided with
    those of the rule set. reach: which rules of the rule set to decide. only_leases: an earlier call has charged all
    else. body: see `Body`.
    """

    facts: Facts
    http: HttpRequest | None = None
    identity: Identity | None = None
    cost: int | None = None
    max_delay: MaxDelay = None
    earlier: Decision = NOTHING_TO_DECIDE
    before_authentication: bool = False
    inline: tuple[InlineRule, ...] = ()
    reach: Reach = "request"
    partition: str | None = None
    only_leases: bool = False
    body: Body = "read"


def limit_request(
    request: Any,
    scope: str | None = None,
    cost: int | None = None,
    max_delay: MaxDelay = "rule",
    earlier: Decision | None = None,
    before_authentication: bool = False,
    inline: tuple[InlineRule, ...] = (),
    reach: Reach = "request",
) -> LimitRequest:
    """Return what to decide for a request of Django or DRF.

    earlier: what was decided before; `None` = read it from the request.
    """
    http: HttpRequest = getattr(request, "_request", request)
    if earlier is None:
        earlier = getattr(http, "ratelimit", NOTHING_TO_DECIDE)
    if scope is None:
        scope = ""
    elif isinstance(scope, Only):
        reach = "scope"
    elif not isinstance(scope, str):  # no rule would match it
        raise TypeError(f"scope: must be a text, not {scope!r}.")
    cost = None if cost is None else whole_units(cost)
    match = http.resolver_match  # a test's stand-in may lack some
    route, view_name = getattr(match, "route", "") or "", getattr(match, "view_name", "") or ""
    # Without the prefix, as in urls.py: some servers let callers choose it. Under ASGI, a mounted site's root is empty.
    facts = _new(Facts, (http.method or "", http.path_info or "/", route, view_name, scope))
    who, body = Identity(http), "first_the_others"
    asked = facts, http, who, cost, max_delay, earlier, before_authentication, inline, reach, None, False, body
    return _new(LimitRequest, asked)


def slot_request(scope: str, cost: int | None, partition: str | None) -> LimitRequest:
    """Return what to decide for a slot, which has no request."""
    cost = None if cost is None else whole_units(cost)
    return LimitRequest(Facts("", "", scope=scope), cost=cost, reach="scope", partition=partition)


def build_charges(rules: RuleSet, entries: AccessList, request: LimitRequest) -> Call:
    """Return the charges: one for each limit of each rule that matches and was not decided before.

    No rule applies while enforcement is stopped, or to a caller whom an access entry or EXEMPT exempts: such a call has
    no partitions. Raises AccessDenied for a caller that an entry denies, and BodyNotRead as `request.body` says.
    """
    if not rules.enforced:
        return NO_RULES
    facts, _, identity, cost, max_delay, earlier, is_early, inline, reach, _, only_leases, body = request
    access, is_first = None if entries is NOBODY else access_entry_for(entries, identity), earlier is NOTHING_TO_DECIDE
    if access is not None and access.action == "deny":
        raise AccessDenied(access)
    is_exempt = access is not None or (not is_first and earlier.is_exempt)
    matched = rules.rules if reach == "all" else rules.match(facts)
    if not (matched or inline):
        return NO_RULES
    entitlement = entitlement_of(rules, request) if callers_differ(rules) and not is_exempt else NO_ENTITLEMENT
    tier, multiplier, anchor = entitlement
    if anchor is not None and not any(rule.has_months for rule in matched):
        anchor, entitlement = None, entitlement._replace(anchor=None)
    kind: Kind = (
        id(matched),
        id(tier),
        multiplier,
        anchor,
        max_delay,
        settings.HASH_KEY,
        tuple([id(each.rule) for each in inline]) if inline else (),
        () if is_first else earlier.slugs,
        facts.scope if reach == "scope" else None,
        only_leases,
        # Whether the API key is known. Without tiers no rule asks for it.
        bool(rules.tiers and identity and identity.api_key is not None) if is_early else None,
    )
    templates: RuleTemplates = rules.kept.get(kind) or _add_templates(rules, kind, matched, entitlement, request)
    if is_exempt:
        return Call(templates.complete, ())
    if templates.without_body is not None and body != "read" and identity and identity.has_unread_body:
        if body == "first_the_others":
            raise BodyNotRead
        templates = templates.without_body
    charges = templates.fill([source.digest(request) for source in templates.sources], cost)
    if settings.EXEMPT is not None and identity and identity.is_exempt(reads=False):
        return Call(charges.template, ())
    if is_first:
        return charges
    return charges.continuing(counted_as(earlier.results, request), noted_as(earlier.results))


def counted_as(results: Iterable[Result], request: LimitRequest) -> tuple[Counted, ...]:
    """Return how the charges with these results of an allowed request were counted, for a later call for it."""
    found: dict[Counted, None] = {}
    labels = set[str]()
    for result in results:
        verdict, cost = result.verdict, usual_cost_of(result.rule)
        label = label_of(result.rule, result.tier)
        if label is not None and result.rule.exact_usage:
            source: Any = RuleTemplate(result.rule, NO_ENTITLEMENT).source
            caller = source.digest(request) if verdict is None else verdict.charge.partition
            label = label if caller is None else with_caller(label, caller)
        line = line_of(label, gating=result.mode != "shadow", cost=cost)
        letter = "d" if not result.passes else "s" if verdict and verdict.soft_exceeded else "a"
        minute = None if verdict is None else verdict.at_us // MINUTE_US
        units = 0 if verdict is None or letter == "d" or not label or label in labels else verdict.spent - cost
        labels.add(label or "")
        letter = "x" if result.mode == EXEMPT else letter.upper() if verdict is None or result.local else letter
        found[Counted(minute, line, letter, units)] = None
    return tuple(found)


def noted_as(results: Iterable[Result]) -> tuple[tuple[str, str], ...]:
    """Return the labels and partitions that calls with these results have noted as allowed, for the top callers."""
    passed: dict[tuple[str, str], bool] = {}
    for rule, tier, _, verdict, _, local in results:
        label, identity = label_of(rule, tier), identity_of(rule)
        if verdict is None or local or label is None or rule.sync_interval is not None:
            continue  # the engine has noted nothing, or perhaps nothing
        partition = verdict.charge.partition or ""
        passed[label, partition] = passed.get((label, partition), True) and verdict.allowed
        if identity:
            passed[OVER_ALL_RULES + identity, partition] = True
    return tuple([what for what, allowed in passed.items() if allowed])


def _add_templates(
    rules: RuleSet, kind: Kind, matched: tuple[RuleRecord, ...], entitlement: Entitlement, request: LimitRequest
) -> RuleTemplates:
    """Return the templates of the rules that such calls decide, and keep them with the rule set.

    Rules written in code are sorted among the others. If two have one slug, the rule set's wins: they share their
    counters.
    """
    inline, decided = [each.rule for each in request.inline], request.earlier.slugs
    due = {rule.slug: rule for rule in reversed(inline)}
    due.update({rule.slug: rule for rule in matched if request.reach != "scope" or rule.scope == request.facts.scope})
    called = [
        rule for rule in due.values() if rule.mode != "off" and rule.slug not in decided and _meets(rule, request)
    ]
    if len(rules.kept) >= MAX_TEMPLATES:
        rules.kept.clear()
    called.sort(key=lambda rule: (rule.priority, rule.slug))
    counted = {identity_of(each) for each in rules.rules if each.slug in decided}
    given: Any = {"inline": inline, "only_leases": request.only_leases, "counted": counted}
    templates = rules.kept[kind] = RuleTemplates(called, entitlement, request.max_delay, **given)
    templates.matched = matched
    return templates


def why_uncharged(rule: RuleRecord, entitlement: Entitlement, request: LimitRequest) -> Uncharged:
    """Return why `build_charges` charges nothing for a rule that matches and was not decided earlier; "" = it does."""
    if not _meets(rule, request):
        return "authentication"
    template = RuleTemplate(rule, entitlement)
    if not template.records:
        return "tier"
    is_missing = value_of(rule, request) is None
    return "" if template.charges(request.cost, request.max_delay, is_missing=is_missing) else "missing"


def entitlement_of(rules: RuleSet, request: LimitRequest, note: Note | None = None) -> Entitlement:
    """Return what the caller may have. note: see `rules.tiers.entitlement_for`."""
    identity = request.identity
    # Before authentication the caller is unknown: no tier applies or is counted.
    if identity is None or (request.before_authentication and identity.awaits_authentication):
        return Entitlement(None)
    return identity.entitlement(rules, note)


def _meets(rule: RuleRecord, request: LimitRequest) -> bool:
    """Return whether a rule is decided by this call: it does not wait for authentication, or for another scope."""
    if request.identity is None:
        return rule.scope == request.facts.scope
    if not request.before_authentication:
        return True
    if "user" in rule.partition_by or (rule.depends_on_tier and request.identity.api_key is None):
        return False
    is_inline = any(inline.rule is rule for inline in request.inline)  # its value comes with it
    return is_inline or not any(map(may_need_user, rule.partition_by))
