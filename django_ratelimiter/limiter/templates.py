"""The common parts of charges, made once for all callers with the same rules and tier, and filled for each request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import lru_cache
from operator import itemgetter
from typing import Final, NamedTuple

from ..decision import Decision, Result, decide
from ..engine.base import NEVER, Charge, Verdict, Version
from ..engine.limits import Limit
from ..engine.templates import CallTemplate, ChargeTemplate, FilledCharges, FilledVerdicts
from ..identity import digest
from ..rules.inline import is_listed
from ..rules.records import RuleRecord, TierRecord
from ..rules.ruleset import RuleSet
from ..rules.tiers import Entitlement
from ..values.partitions import IDENTITIES, encode_partition

#: Maximum number of kinds of requests with a template; then all are dropped.
MAX_TEMPLATES: Final = 1_000

#: Maximum number of sets of missing values for which the charges of one kind of requests are kept.
MAX_VARIANTS: Final = 32

#: Seconds that an allowed request may be delayed: `None` = any; "rule" = the rule's maximum for synchronous workers.
MaxDelay = float | str | None

#: What distinguishes the templates of a rule set: the `id` of the rules and of the tier, the multiplier, the longest
#: delay, and HASH_KEY.
Kind = tuple[int, int, Decimal, MaxDelay, bytes]

_new = tuple.__new__  # what a named tuple calls in the end


class RuleCharge(NamedTuple):
    """A charge, with its rule and tier."""

    rule: RuleRecord
    tier: TierRecord | None
    charge: Charge

    def result(self, verdict: Verdict | None) -> Result:
        """Return the result of this charge."""
        rule, tier, charge = self
        return _new(Result, (rule, tier, charge.limit, verdict, rule.mode, False))


class RuleTemplate:
    """The charges of a rule for one tier and multiplier that have limits there.

    label: what usage is counted under; `None` = it is not. source: which value distinguishes callers: one name if its
    values are short; `None` if the rule is not split; else the rule itself, which is split by another name or by
    several.
    """

    __slots__ = ("label", "records", "rule", "source", "tier")

    def __init__(self, rule: RuleRecord, entitlement: Entitlement) -> None:
        self.rule, self.tier = rule, entitlement.tier
        self.records = rule.limits_for(*entitlement)
        self.label = f"{rule.slug}|{entitlement.tier or ''}" if is_listed(rule.slug) else None
        alone = rule.partition_by[0] if len(rule.partition_by) == 1 and rule.missing_partition != "ip" else None
        self.source = None if not rule.partition_by else alone if alone in IDENTITIES else rule

    @property
    def needs_body(self) -> bool:
        """True if one of its values is a field of the body."""
        return any(name.startswith("field:") for name in self.rule.partition_by)

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
                f"{rule.slug}:",
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
                ),
                is_split,
            )
            for limit, delay, generation in self.records
        ]


def mixes_body(templates: Sequence[RuleTemplate]) -> bool:
    """Return whether some of these rules need the body, and some do not."""
    return len(templates) > 1 and len({template.needs_body for template in templates if template.records}) > 1


class ChargeList(list[Charge]):
    """The charges of a request with special arguments. owners: the rule and tier of each."""

    __slots__ = ("owners",)

    def __init__(self, charges: Sequence[Charge], owners: Sequence[tuple[RuleRecord, TierRecord | None]]) -> None:
        super().__init__(charges)
        self.owners = owners


#: The charges of a request, for the engine; `owned` adds their rules.
RuleCharges = ChargeList | FilledCharges

#: For a request that no rule matches.
NO_CHARGES: Final = ChargeList((), ())


def owned(charges: RuleCharges) -> list[RuleCharge]:
    """Return the charges, each with its rule and tier."""
    owners = charges.owners if isinstance(charges, ChargeList) else charges.template.owners
    return [RuleCharge(rule, tier, charge) for (rule, tier), charge in zip(owners, charges, strict=True)]


def decision_of(charges: RuleCharges, verdicts: Sequence[Verdict], version: Version) -> Decision:
    """Return the decision on these charges."""
    if isinstance(verdicts, FilledVerdicts):
        return Decision.of(verdicts, version)
    return decide([*map(RuleCharge.result, owned(charges), verdicts)], version)


class RuleCallTemplate(CallTemplate):
    """The charges of one kind of request.

    owners: the rule and tier of each charge. pick: selects the partition of each charge from the one of all callers and
    those of the sources. is_plain: an allowed request has no consequences: no lease, no delay, no soft quota, and no
    refund.
    """

    __slots__ = ("pick",)

    def __init__(self, charges: Sequence[tuple[RuleTemplate, int, ChargeTemplate]]) -> None:
        places = [place for _, place, _ in charges]
        super().__init__([charge for _, _, charge in charges], places)
        self.owners: Sequence[tuple[RuleRecord, TierRecord | None]] = tuple(
            [(template.rule, template.tier) for template, _, _ in charges]
        )
        self.pick = _picking(places)
        limits: list[Limit] = [charge.charge.limit for _, _, charge in charges]
        self.is_plain = not self.takes_leases and all(
            rule.charge_when == "any" and not limit.holds and limit.soft_quota is None
            for (rule, _), limit in zip(self.owners, limits, strict=True)
        )


class RuleTemplates:
    """The templates of some rules for one tier and multiplier, without rules that are unlimited for it.

    sources: the distinct values that distinguish callers, see `RuleTemplate`. kept: references to the rules and the
    tier, so that no other objects get their `id`. mixes_body: some rules need the body, and some do not.
    """

    __slots__ = ("_max_delay", "_of_all", "_variants", "complete", "kept", "mixes_body", "rules", "sources")

    def __init__(self, rules: Sequence[RuleRecord], entitlement: Entitlement, max_delay: MaxDelay = None) -> None:
        self.kept, self._max_delay = (rules, entitlement), max_delay
        self.rules = tuple([made for rule in rules if (made := RuleTemplate(rule, entitlement)).records])
        self.mixes_body = mixes_body(self.rules)
        self.sources = tuple(dict.fromkeys([rule.source for rule in self.rules if rule.source is not None]))
        self._of_all = digest("")
        self._variants: dict[tuple[bool, ...], RuleCallTemplate] = {}
        self.complete = self._lacking((False,) * len(self.sources))

    def fill(self, digests: list[str | None]) -> RuleCharges:
        """Return the charges of one caller. digests: of the value of each source; `None` = it is missing."""
        template, partitions = self.complete, (self._of_all, *digests)
        if None in digests:
            template = self._variant(tuple([each is None for each in digests]))
            partitions = self._of_all, *[missing() if each is None else each for each in digests]
        return FilledCharges(template, template.pick(partitions)) if template.owners else NO_CHARGES  # type: ignore[arg-type]

    def _variant(self, lacking: tuple[bool, ...]) -> RuleCallTemplate:
        """Return the charges without those of callers who lack these of the sources."""
        variant = self._variants.get(lacking)
        if variant is None:
            if len(self._variants) >= MAX_VARIANTS:
                self._variants.clear()
            variant = self._variants[lacking] = self._lacking(lacking)
        return variant

    def _lacking(self, lacking: tuple[bool, ...]) -> RuleCallTemplate:
        places: dict[object, int] = {source: place for place, source in enumerate((None, *self.sources))}
        is_missing = (False, *lacking)
        return RuleCallTemplate(
            [
                (template, place, charge)
                for template in self.rules
                for place in [places[template.source]]
                for charge in template.charges(None, self._max_delay, is_missing=is_missing[place])
            ]
        )


def missing() -> str:
    """Return the digest that stands for a missing partition."""
    return digest("missing")


@lru_cache(maxsize=16_384)
def source_digest(_hash_key: bytes, name: str, value: str) -> str:
    """Return the digest of a partition by one name. The key is the value of the setting."""
    return digest(encode_partition([(name, value)]))


def _picking(places: Sequence[int]) -> Callable[[tuple[str, ...]], tuple[str, ...]]:
    """Return a function that selects these places of a tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    return itemgetter(slice(places[0], places[0] + 1) if places else slice(0))


def add_templates(rules: RuleSet, kind: Kind, matched: Sequence[RuleRecord], entitlement: Entitlement) -> RuleTemplates:
    """Return the templates of these rules, and keep them with the rule set."""
    if len(rules.kept) >= MAX_TEMPLATES:
        rules.kept.clear()
    templates = rules.kept[kind] = RuleTemplates(matched, entitlement, kind[3])
    return templates
