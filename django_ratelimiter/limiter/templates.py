"""The common parts of charges, made once for all callers with the same rules and tier, and filled for each request."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

from ..conf import settings
from ..decision import Decision, Owner, decide, results_of
from ..engine.base import NEVER, Charge, Verdict, Version
from ..engine.call import Call, CallTemplate, ChargeTemplate
from ..identity import digest, partition, source_digest
from ..rules.inline import identity_of, label_of, usual_cost_of
from ..rules.records import LimitRecord, RuleRecord, TierRecord
from ..rules.tiers import Entitlement
from ..values.digests import are_revealed, keyed_digest
from ..values.partitions import PROVEN, UNREADABLE_BODY, partition_names

#: Maximum number of costs and sets of missing values for which the charges of one kind of requests are kept.
MAX_VARIANTS: Final = 32

#: Seconds that an allowed request may be delayed: `None` = any; "rule" = the rule's maximum for synchronous workers.
MaxDelay = float | str | None


class NamedValue(NamedTuple):
    """The value of one name whose values are short."""

    name: str

    def digest(self, request: Any) -> str | None:
        """Return the digest of the value of a `LimitRequest`; `None` = it has none."""
        if request.identity is None:
            return None if request.partition is None else digest(request.partition)
        value = request.identity.value(self.name)
        return None if value is None else source_digest(settings.HASH_KEY, self.name, value)


class RuleValue(NamedTuple):
    """The value of a rule that is split by another name or by several, or that is written in code.

    has_tail: whatever REVEAL is, so that the collector can read it.
    """

    rule: RuleRecord
    has_tail: bool = False

    def digest(self, request: Any) -> str | None:
        """Return the digest of the value of a `LimitRequest`; `None` = it has none."""
        if (value := value_of(self.rule, request)) is None:
            return None
        return keyed_digest(settings.HASH_KEY, value, partition_names(value)) if self.has_tail else digest(value)


def value_of(rule: RuleRecord, request: Any) -> str | None:
    """Return the value of a `LimitRequest` that splits the counters of a rule; `None` if it is missing."""
    identity = request.identity
    if identity is None:
        return request.partition if rule.partition_by else ""
    for inline in request.inline:
        if inline.rule is rule:
            value: str | None = inline.value
            break
    else:
        value = partition(identity, rule.partition_by)
    if value is None and rule.missing_partition == "ip":
        is_unreadable = rule.counts_unreadable and identity.has_unreadable_body
        value = UNREADABLE_BODY if is_unreadable else partition(identity, ("ip",))
    return value


class RuleTemplate:
    """The charges of a rule for one tier and multiplier that have limits there.

    label: what usage is counted under; `None` = it is not. source: which value tells callers apart; `None` = none does.
    is_inline: it is written in code, and comes with its value. identity: see `identity_of`; not in `counted`.
    """

    source: NamedValue | RuleValue | None

    def __init__(self, rule: RuleRecord, entitlement: Entitlement, is_inline: bool = False, counted: Any = ()) -> None:
        self.rule = rule
        self.tier: TierRecord | None = entitlement.tier
        self.records: tuple[LimitRecord, ...] = rule.limits_for(*entitlement)
        self.label: str | None = label_of(rule, entitlement.tier)
        self.identity: str = "" if (identity := identity_of(rule)) in counted else identity
        names = {*rule.partition_by, *(["ip"] if rule.missing_partition == "ip" else [])}
        has_tail = rule.exact_usage and not are_revealed(names, settings.REVEAL)
        own = RuleValue(rule, has_tail) if rule.partition_by or is_inline else None
        alone = rule.partition_by[0] if len(names) == len(rule.partition_by) == 1 else None
        self.source = NamedValue(alone) if alone in PROVEN and not (has_tail or is_inline) else own

    def charges(self, cost: int | None, max_delay: MaxDelay, *, is_missing: bool = False) -> list[ChargeTemplate]:
        """Return one charge for each limit.

        cost: units; `None` = the rule's. is_missing: the caller lacks the value that the rule is split by. Then there
        are no charges, unless the rule rejects such requests; their partition is `MISSING` then.
        """
        rule = self.rule
        if is_missing:
            if rule.missing_partition != "deny":
                return []
            cost = NEVER
        units, is_split = rule.cost if cost is None else cost, bool(rule.partition_by)
        return [
            ChargeTemplate(
                rule.key_prefix,
                f":{generation}" if generation else "",
                Charge(
                    "",
                    limit,
                    units,
                    gating=rule.mode == "enforce",
                    usage=self.label,
                    count_refusals=rule.count_refusals,
                    max_delay=delay if max_delay == "rule" else max_delay,  # type: ignore[arg-type]
                    sync_interval=rule.sync_interval,
                    usual_cost=usual_cost_of(rule),
                    exact=rule.exact_usage and not is_missing,
                ),
                is_split,
                identity="" if is_missing else self.identity,
            )
            for limit, delay, generation in self.records
        ]


def decision_of(charges: Call, verdicts: Sequence[Verdict], version: Version) -> Decision:
    """Return the decision on these charges by the verdicts of a project's engine."""
    return decide(results_of(charges.template.owners, verdicts), version)  # type: ignore[attr-defined]


class RuleCallTemplate(CallTemplate):
    """The charges of one kind of request.

    owners: of each charge. slugs: of their rules. pick: selects the partition of each charge, from the one of all
    callers and those of the sources. has_consequences: see `Decision`. shown: of each charge, what `headers/fields.py`
    shows; `None` = nothing was shown yet.
    """

    __slots__ = ("has_consequences", "owners", "pick", "shown", "slugs")

    def __init__(
        self, charges: Sequence[tuple[RuleTemplate, int, ChargeTemplate]], like: CallTemplate | None = None
    ) -> None:
        places = [place for _, place, _ in charges]
        super().__init__([charge for _, _, charge in charges], places, like)
        owners = [Owner(rule.rule, rule.tier, charge.charge.limit) for rule, _, charge in charges]
        self.owners: tuple[Owner, ...] = tuple(owners)
        self.slugs: frozenset[str] = frozenset([owner.rule.slug for owner in self.owners])
        self.pick: Callable[[tuple[str, ...]], tuple[str, ...]] = _picking(places)
        self.shown: Any = None
        self.has_consequences: bool = self.takes_leases or any(
            owner.rule.charge_when != "any" or owner.limit.holds or owner.limit.soft_quota is not None
            for owner in self.owners
        )


class RuleTemplates:
    """The templates of some rules for one tier and multiplier, without rules that are unlimited for it.

    inline: those of them that are written in code, in the order in which requests give their values. only_leases: of
    limits that hold leases alone. sources: the distinct values that distinguish callers, see `RuleTemplate`. counted:
    the identities whose callers an earlier call for the request has counted over all rules.
    without_body: of the rules that need no field of the body, if some do and some do not; else `None`. kept: references
    to rules and tier, so that no other objects get their `id`; `matched`: to what the rule set has found.
    """

    def __init__(
        self,
        rules: Sequence[RuleRecord],
        entitlement: Entitlement,
        max_delay: MaxDelay = None,
        *,
        inline: Sequence[RuleRecord] = (),
        only_leases: bool = False,
        counted: Collection[str] = (),
    ) -> None:
        self.kept: object = (rules, entitlement, inline)
        self._max_delay, self._only_leases = max_delay, only_leases
        self.matched = rules
        made = [RuleTemplate(rule, entitlement, any(rule is each for each in inline), counted) for rule in rules]
        self.rules: tuple[RuleTemplate, ...] = tuple([template for template in made if template.records])
        sources = dict.fromkeys([rule.source for rule in self.rules if rule.source is not None])
        self.sources: tuple[NamedValue | RuleValue, ...] = tuple(sources)
        self._of_all = digest("")
        #: By the cost of a call, `None` = the rules' own; and which sources are missing.
        self._variants: dict[tuple[int | None, tuple[bool, ...]], RuleCallTemplate] = {}
        self.complete: RuleCallTemplate = self._make(None, (False,) * len(self.sources))
        others = [template.rule for template in self.rules if not template.rule.reads_body]
        self.without_body: RuleTemplates | None = None
        if 0 < len(others) < len(self.rules):
            given = {"inline": inline, "only_leases": only_leases, "counted": counted}
            self.without_body = RuleTemplates(others, entitlement, max_delay, **given)  # type: ignore[arg-type]

    def fill(self, digests: list[str | None], cost: int | None = None) -> Call:
        """Return the charges of one caller. digests: of the value of each source; `None` = it is missing."""
        template, partitions = self.complete, (self._of_all, *digests)
        if cost is not None or None in digests:
            template = self._variant(cost, tuple([each is None for each in digests]))
            partitions = self._of_all, *[missing() if each is None else each for each in digests]
        return Call(template, template.pick(partitions)) if template.owners else NO_RULES  # type: ignore[arg-type]

    def _variant(self, cost: int | None, lacking: tuple[bool, ...]) -> RuleCallTemplate:
        """Return the charges of this cost, without those of callers who lack these of the sources."""
        variant = self._variants.get((cost, lacking))
        if variant is None:
            like = None if cost is None else self._variant(None, lacking)
            if len(self._variants) >= MAX_VARIANTS:
                self._variants.clear()
            variant = self._variants[cost, lacking] = self._make(cost, lacking, like)
        return variant

    def _make(
        self, cost: int | None, lacking: tuple[bool, ...], like: RuleCallTemplate | None = None
    ) -> RuleCallTemplate:
        places: dict[object, int] = {source: place for place, source in enumerate((None, *self.sources))}
        is_missing = (False, *lacking)
        return RuleCallTemplate(
            [
                (template, place, charge)
                for template in self.rules
                for place in [places[template.source]]
                for charge in template.charges(cost, self._max_delay, is_missing=is_missing[place])
                if charge.charge.limit.holds_leases or not self._only_leases
            ],
            like,
        )


def missing() -> str:
    """Return the digest that stands for a missing partition."""
    return digest("missing")


def _picking(places: Sequence[int]) -> Callable[[tuple[str, ...]], tuple[str, ...]]:
    """Return a function that selects these places of a tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    return itemgetter(slice(places[0], places[0] + 1) if places else slice(0))


#: For a request that no rule matches.
NO_RULES: Final = Call(RuleCallTemplate(()), ())
