"""Charges made ready: what all who meet the same rules have in common is found once; a request fills in who it is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from django.utils.functional import cached_property

from ..decision import Result
from ..engine.base import Charge, Verdict
from ..engine.limits import EXACT
from ..identity import digest
from ..rules.records import RuleRecord, TierRecord
from ..rules.ruleset import NO_VERSION, RuleSet
from ..rules.tiers import Entitlement
from ..values.partitions import IDENTITIES, encode_partition

#: More than any limit holds: refused for good, and counted.
NEVER: Final = EXACT

#: Of how many kinds of requests sheets are kept; beyond that all are made anew.
MOST_SHEETS: Final = 1_000


_new = tuple.__new__  # what a named tuple calls in the end; several are made for each request


class Planned(NamedTuple):
    """A charge, and the rule and tier that it is for."""

    rule: RuleRecord
    tier: TierRecord | None
    charge: Charge

    def result(self, verdict: Verdict | None) -> Result:
        """The result of this charge."""
        rule, tier, charge = self
        return _new(Result, (rule, tier, charge.limit, verdict, rule.mode, False))


class Plan(tuple[Planned, ...]):
    """What is charged to those who come again, as the same object each time."""

    @cached_property
    def charges(self) -> tuple[Charge, ...]:
        """The charges alone; a tuple, by which an engine knows them again."""
        return tuple([planned.charge for planned in self])


class Stencil:
    """What a rule charges callers of one entitlement, who have some limit there.

    name: the one that the rule is split by, of those whose values are short; empty where it is split by none, `None`
    where by another or by several.
    """

    __slots__ = ("label", "name", "records", "rule", "tier")

    def __init__(self, rule: RuleRecord, entitlement: Entitlement) -> None:
        self.rule, self.tier = rule, entitlement.tier
        #: Of each limit: the limit, its longest delay, and how its counters' names end.
        self.records = tuple(
            (limit, delay, f":{generation}" if generation else "")
            for limit, delay, generation in rule.limits_for(*entitlement)
        )
        self.label = f"{rule.slug}|{entitlement.tier or ''}"
        alone = rule.partition_by[0] if len(rule.partition_by) == 1 and rule.missing_partition != "ip" else None
        self.name = "" if not rule.partition_by else alone if alone in IDENTITIES else None

    def charges(self, partition: str | None, cost: int | None, max_delay: float | str | None) -> list[Planned]:
        """One for each limit.

        partition: the digest of its value; `None` = it is missing, so there are none unless the rule denies that.
        cost: units; `None` = the rule's. max_delay: seconds that an admitted request may be held, `None` = any,
        "rule" = what the rule grants synchronous workers.
        """
        rule = self.rule
        if partition is None:
            if rule.missing_partition != "deny":
                return []
            partition, cost = digest("missing"), NEVER
        tier, label, refusals = self.tier, self.label, rule.count_refusals
        key, units, gating = f"{rule.slug}:{partition}", rule.cost if cost is None else cost, rule.mode == "enforce"
        by_rule, interval, planned = isinstance(max_delay, str), rule.sync_interval, []
        for limit, delay, ending in self.records:
            longest = delay if by_rule else max_delay
            parts = (key + ending, limit, units, gating, label, refusals, longest, partition, interval, 0)
            planned.append(_new(Planned, (rule, tier, _new(Charge, parts))))
        return planned


class Sheet:
    """The stencils of some rules for one entitlement, but for those that do not apply to it, or grant it everything.

    Compared by identity, as a key of a cache on the hot path should be. asked: each stencil's rule and name. kept: the
    rules and the tier, so that no others have their `id`.
    """

    __slots__ = ("asked", "kept", "stencils")

    def __init__(self, rules: Sequence[RuleRecord], entitlement: Entitlement) -> None:
        self.stencils = tuple([stencil for rule in rules if (stencil := Stencil(rule, entitlement)).records])
        self.asked = tuple([(stencil.rule, stencil.name) for stencil in self.stencils])
        self.kept = rules, entitlement


class _Latest:
    """The sheets of one rule set, by the `id` of the rules and the tier, and the multiplier."""

    def __init__(self, rules: RuleSet) -> None:
        self.rules = rules
        self.sheets: dict[tuple[object, ...], Sheet] = {}


_latest = _Latest(RuleSet(NO_VERSION))


def sheet_of(rules: RuleSet, met: Sequence[RuleRecord], entitlement: Entitlement) -> Sheet:
    """The sheet of the rules that are met. Those of the latest rule set are kept."""
    global _latest
    latest = _latest
    if latest.rules is not rules:
        latest = _latest = _Latest(rules)
    tier, multiplier = entitlement
    key = (*map(id, met), id(tier), multiplier)
    sheet = latest.sheets.get(key)
    if sheet is None:
        if len(latest.sheets) >= MOST_SHEETS:
            latest.sheets.clear()
        sheet = latest.sheets[key] = Sheet(met, entitlement)
    return sheet


@lru_cache(maxsize=2_048)
def filled_in(sheet: Sheet, values: tuple[str | None, ...], max_delay: str | None, _hash_key: bytes) -> Plan:
    """The charges of the whole sheet, as the rules have it: one for each limit.

    values: of each stencil, what the caller has under its name; without a name the partition. `None` = it is missing.
    """
    planned: list[Planned] = []
    latest = hashed = None
    for stencil, value in zip(sheet.stencils, values, strict=True):
        name = stencil.name
        if value is None:
            planned += stencil.charges(None, None, max_delay)
            continue
        if latest != (name, value):  # most rules are split by the same
            latest, hashed = (name, value), digest(encode_partition([(name, value)]) if name else value)
        planned += stencil.charges(hashed, None, max_delay)
    return Plan(planned)


def charges_of(planned: Sequence[Planned]) -> Sequence[Charge]:
    """The charges of a plan, alone."""
    return planned.charges if type(planned) is Plan else [each.charge for each in planned]
