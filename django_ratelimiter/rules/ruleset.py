"""The rule set: frozen records built from one snapshot, and the rules that a request meets. No ORM, no HTTP."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, NamedTuple

from ..engine.base import Version
from ..engine.limits import Limit
from ..values.failure_policies import FAILURE_POLICIES, FailurePolicy
from ..values.multiplier import multiply_limit
from ..values.partitions import IDENTITIES, NAMED, is_identity
from ..values.sync_interval import check_sync_interval, to_seconds
from .index import RuleIndex

Snapshot = Mapping[str, Any]

#: What a database holds before its first version.
NO_VERSION: Final = Version(0)

MODES: Final = ("off", "shadow", "enforce")
PATH_KINDS: Final = ("any", "exact", "prefix", "route")
MISSING_PARTITION: Final = ("skip", "ip", "deny")
CHARGE_WHEN: Final = ("any", "success", "failure")
DEFAULT_FOR: Final = ("none", "anonymous", "authenticated")

#: What a limit may be given beside quota, window and algorithm; absent or empty = the engine's default.
OPTIONS: Final = ("burst", "soft_quota", "slots", "anchor", "refill", "calendar", "timezone", "anchor_day")


class Facts(NamedTuple):
    """What rules match on. `route` is the URL pattern's text, `scope` what the calling door named; empty = none."""

    method: str
    path: str
    route: str = ""
    view_name: str = ""
    scope: str = ""


class RejectedRule(NamedTuple):
    """A rule that is not in force, and why."""

    rule: str
    reason: str


@dataclass(frozen=True, slots=True)
class TierRecord:
    """A tier. default_for: who has it without an assignment: none, anonymous or authenticated."""

    slug: str
    name: str
    rank: int
    default_for: str

    def __str__(self) -> str:
        return self.slug


class LimitRecord(NamedTuple):
    """A limit as a rule has it.

    max_delay: seconds that a synchronous worker may hold an admitted request; for leaky buckets only.
    generation: part of the counters' names; a higher one leaves what was spent behind.
    """

    limit: Limit
    max_delay: float = 0.0
    generation: int = 0


@dataclass(frozen=True, slots=True)
class RuleRecord:
    """A rule with its limits by tier slug; under `None` those of every other tier; an empty tuple = unlimited.

    methods: empty = all; GET brings HEAD with it. partition_by: empty = one counter for everybody. cost: units
    that one request spends. count_refusals: whether refused requests spend, too. charge_when: of which responses
    what was spent is kept: any, success (a status below 400) or failure. sync_interval: seconds for which a process
    counts by itself; negative = for ever, `None` = never.
    """

    slug: str
    name: str
    mode: str
    methods: frozenset[str]
    path: str
    path_kind: str
    view_name: str
    scope: str
    partition_by: tuple[str, ...]
    missing_partition: str
    failure_policy: str
    cost: int
    priority: int
    message: str
    count_refusals: bool
    limits: Mapping[str | None, tuple[LimitRecord, ...]] = field(hash=False)
    charge_when: str = CHARGE_WHEN[0]
    sync_interval: float | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for an unknown failure policy: found during an outage, it would be found too late."""
        if self.failure_policy not in FAILURE_POLICIES:
            raise ValueError(f"failure_policy: {self.failure_policy!r} is unknown.")

    def __str__(self) -> str:
        return self.slug

    @property
    def during_outage(self) -> FailurePolicy:
        """What the rule does while the engine is out of reach."""
        return FAILURE_POLICIES[self.failure_policy]

    @property
    def depends_on_tier(self) -> bool:
        """Whether some tier has limits of its own here."""
        return any(tier is not None for tier in self.limits)

    def limits_for(self, tier: TierRecord | None, multiplier: Decimal = Decimal(1)) -> tuple[LimitRecord, ...]:
        """The limits of this tier, else those of every other tier, else none: the rule does not apply to it.

        multiplier: what their numbers are multiplied by. What a request of this rule's cost could pass it still can,
        and what none could pass stays closed.
        """
        slug = tier.slug if tier else None
        records = self.limits[slug] if slug in self.limits else self.limits.get(None, ())
        if multiplier == 1:
            return records
        return tuple(
            record._replace(limit=multiply_limit(record.limit, multiplier, self.cost))
            if self.cost <= record.limit.capacity
            else record
            for record in records
        )

    def matches(self, facts: Facts) -> bool:
        """Whether a request of these facts meets this rule."""
        return (
            (not self.methods or facts.method in self.methods)
            and (not self.scope or self.scope == facts.scope)
            and (not self.view_name or self.view_name == facts.view_name)
            and self._matches_path(facts)
        )

    def _matches_path(self, facts: Facts) -> bool:
        if self.path_kind == "exact":
            return facts.path == self.path
        if self.path_kind == "prefix":
            return facts.path.startswith(self.path)
        if self.path_kind == "route":
            return facts.route == self.path
        return True


class RuleSet:
    """All rules in force at one version.

    enforced: False = an operator has stopped all enforcement; no request meets any rule, then, or an access entry.
    compared_as: the version that calls of the engine carry, to be compared with the one in force; `None` = these rules
    are not committed, or there are no tables that could hold others, and no version is compared.
    """

    def __init__(
        self,
        version: Version,
        tiers: Iterable[TierRecord] = (),
        rules: Iterable[RuleRecord] = (),
        left_out: Iterable[RejectedRule] = (),
        *,
        enforced: bool = True,
        is_versioned: bool = True,
    ) -> None:
        self.version = version
        self.compared_as = version if is_versioned else None
        self.enforced = enforced
        self.tiers = {tier.slug: tier for tier in tiers}
        self.rules = tuple(sorted(rules, key=lambda rule: (rule.priority, rule.slug)))
        self.left_out = tuple(left_out)
        self._default_tiers = {tier.default_for: tier for tier in self.tiers.values()}
        self._index = RuleIndex(self.rules)

    @classmethod
    def from_snapshot(cls, snapshot: Snapshot, version: Version = NO_VERSION) -> RuleSet:
        """Build from what the compiler wrote. A rule that this code cannot enforce is left out with its reason."""
        tiers = [
            TierRecord(tier["slug"], tier["name"], tier["rank"], tier["default_for"]) for tier in snapshot["tiers"]
        ]
        left_out = [RejectedRule(entry["rule"], entry["reason"]) for entry in snapshot["left_out"]]
        rules = []
        for data in snapshot["rules"]:
            try:
                rules.append(rule_from(data))
            except (ValueError, KeyError, TypeError) as error:
                left_out.append(RejectedRule(str(data.get("slug")), str(error)))
        enforced = snapshot.get("enforcement", True) is not False  # versions before it was known lack it
        return cls(version, tiers, rules, left_out, enforced=enforced)

    def match(self, facts: Facts) -> tuple[RuleRecord, ...]:
        """The rules that a request meets, in ascending priority, then slug."""
        return self._index.match(facts)

    def default_tier(self, kind: str) -> TierRecord | None:
        """The tier that `anonymous` or `authenticated` requests have without an assignment."""
        return self._default_tiers.get(kind)


def rule_from(data: Mapping[str, Any]) -> RuleRecord:
    """One rule of a snapshot. Raises ValueError saying what cannot be enforced."""
    _choice(data, "mode", MODES)
    _choice(data, "path_kind", PATH_KINDS)
    _choice(data, "missing_partition", MISSING_PARTITION)
    _choice(data, "failure_policy", FAILURE_POLICIES)
    data = {"charge_when": CHARGE_WHEN[0], **data}  # versions before it was known lack it
    _choice(data, "charge_when", CHARGE_WHEN)
    methods, partition_by = _texts(data, "methods"), _texts(data, "partition_by")
    for name in partition_by:
        if not is_identity(name):
            raise ValueError(f"partition_by: {name!r} is unknown; choose from {', '.join((*IDENTITIES, *NAMED))}.")
    cost = data["cost"]
    if type(cost) is not int or cost < 1:
        raise ValueError(f"cost: must be a whole number from 1, not {cost!r}.")
    count_refusals = data.get("count_refusals", False)  # versions before it was known lack it
    if not isinstance(count_refusals, bool):
        raise ValueError(f"count_refusals: must be true or false, not {count_refusals!r}.")
    limits: dict[str | None, tuple[LimitRecord, ...]] = {}
    unlimited = {entry["tier"] for entry in data["limits"] if entry["unlimited"]}
    for entry in data["limits"]:
        tier = entry["tier"]
        limits[tier] = () if tier in unlimited else (*limits.get(tier, ()), limit_from(entry))
    sync_interval = to_seconds(data.get("sync_interval_ms"))  # versions before it was known lack it
    for record in [record for several in limits.values() for record in several]:
        check_sync_interval(record.limit, sync_interval)
    tags = [(tier, record.limit.tag) for tier, several in limits.items() for record in several]
    if len(set(tags)) != len(tags):
        raise ValueError("limits: a tier has two limits that would share one counter; keep the lower one.")
    return RuleRecord(
        slug=data["slug"],
        name=data["name"],
        mode=data["mode"],
        methods=frozenset(methods) | ({"HEAD"} if "GET" in methods else set()),  # the same view answers both
        path=data["path"],
        path_kind=data["path_kind"],
        view_name=data["view_name"],
        scope=data["scope"],
        partition_by=tuple(partition_by),
        missing_partition=data["missing_partition"],
        failure_policy=data["failure_policy"],
        cost=cost,
        priority=data["priority"],
        message=data["message"],
        count_refusals=count_refusals,
        limits=limits,
        charge_when=data["charge_when"],
        sync_interval=sync_interval,
    )


def limit_from(entry: Mapping[str, Any]) -> LimitRecord:
    """One limit of a snapshot, of an earlier version's too. Raises ValueError saying what cannot be enforced."""
    options = {name: entry[name] for name in OPTIONS if entry.get(name) not in (None, "")}
    limit = Limit(entry["quota"], _window(entry), entry["algorithm"], **options)
    return LimitRecord(limit, _count(entry, "max_delay_ms") / 1000, _count(entry, "generation"))


def _window(entry: Mapping[str, Any]) -> Any:
    """The window of a limit in seconds; `None` = a unit of the calendar."""
    text = entry["window_seconds"]
    if text is None and entry.get("calendar"):
        return None
    try:
        window = Decimal(text)
        whole = int(window)
    except (ArithmeticError, TypeError, ValueError):
        raise ValueError(f"window: must be a number of seconds, not {text!r}.") from None
    return whole if whole == window else window


def _count(entry: Mapping[str, Any], name: str) -> int:
    count = entry.get(name, 0)
    if type(count) is not int or count < 0:
        raise ValueError(f"{name}: must be a whole number from 0, not {count!r}.")
    return count


def _choice(data: Mapping[str, Any], name: str, choices: Collection[str]) -> None:
    if data[name] not in choices:
        raise ValueError(f"{name}: {data[name]!r} is unknown; choose one of {', '.join(choices)}.")


def _texts(data: Mapping[str, Any], name: str) -> list[str]:
    texts = data[name]
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{name}: must be a list of texts, not {texts!r}.")
    return texts
