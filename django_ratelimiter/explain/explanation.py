"""The answer: what each rule says of a request, and what the caller would get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Literal

from ..limiter.charges import Uncharged
from ..middleware import Exemption
from ..rules.records import Facts, Mismatch, RejectedRule, RuleRecord
from ..values.access import AccessRecord

#: Why no rule is looked at: the limiter is off by its setting, enforcement is stopped, the request is exempt, an access
#: entry decides, no entry point asks, an earlier call has rejected the request, or servers read the path differently.
Bypass = Literal[
    Exemption, "disabled", "stopped", "allowed", "denied", "no middleware", "rejected earlier", "undecided"
]

#: The first condition that does not hold; "" = the rule applies.
Reason = Literal[Bypass, Mismatch, Uncharged, "off"]


@dataclass(frozen=True, slots=True)
class CounterState:
    """One limit of a rule that applies, and its counter now.

    words: the limit. key: its name in the store. digest: of the caller, as in logs and reports. used, left: units now.
    allowed: whether this request would pass this limit. reset_at: the full quota is back; `None` = it is. retry_at:
    this request would pass; `None` = it passes now, or never. The last five are `None` if nobody can be asked.
    """

    words: str
    key: str
    digest: str
    quota: int
    cost: int
    used: int | None = None
    left: int | None = None
    allowed: bool | None = None
    reset_at: datetime | None = None
    retry_at: datetime | None = None
    never: bool = False
    soft_exceeded: bool = False
    delay: float = 0.0

    @property
    def blocked_until(self) -> datetime | None:
        """The time at which a request like this one passes again; `None` = it passes now, or never."""
        return self.retry_at if self.allowed is False else None


@dataclass(frozen=True, slots=True)
class RuleExplanation:
    """What a rule says of the request.

    applies: it is charged, by the call of `door`. reason: else the first condition that does not hold. missing: the
    names that the caller lacks. rows: the tier whose limits count; "" = those of every other tier. value: what its
    counters are split by.
    """

    rule: RuleRecord
    applies: bool
    reason: Reason
    door: str = ""
    missing: tuple[str, ...] = ()
    rows: str = ""
    value: str = ""
    counters: tuple[CounterState, ...] = ()

    @property
    def rejects(self) -> bool:
        """Whether it rejects the request, or would if it were enforced."""
        return any(counter.allowed is False for counter in self.counters)


@dataclass(frozen=True, slots=True)
class TierExplanation:
    """The caller's tier, and why.

    kind: assignment, default, resolver; none = no tier is the caller's; unchecked = nobody has checked the credentials
    yet; "" = there are no tiers, or nothing asks for one. subject: user, group, api_key_hash or partition. assignment:
    its primary key.
    """

    kind: str
    slug: str = ""
    name: str = ""
    multiplier: Decimal = Decimal(1)
    assignment: int | None = None
    subject: str = ""
    whom: str = ""
    starts_at: datetime | None = None
    ends_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ClientResponse:
    """What the caller would get now.

    allowed: then status and body are the view's, and only our fields are known; all is, where a gateway asks. is_ours:
    the body is; else it is that of the framework around the view. binding: the slug of the rule that decides. delay:
    seconds that the request is held. error: what the view's code raised, if nobody here knows how the project answers
    that.
    """

    allowed: bool
    status: int | None
    fields: Mapping[str, str]
    body: str
    is_ours: bool
    binding: str
    delay: float
    degraded: bool
    error: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything about one request.

    doors: the entry points that ask the limiter, in order. bypass: why no rule is looked at. unknown: names of values
    that the question does not give and that matter. unexplained: names of what limits the view by code of its own.
    unchecked: the request has a field Authorization, which only the view could check, and the question names no user.
    with_token: the response if the user comes with a token that the view checks itself, where that is another; `None` =
    it is the same. left_out: rules that are not in force at all. identities: values of the caller by name, of what the
    rules ask for. hidden: what has been taken out, for the reader may not view it.
    """

    facts: Facts
    version: int
    doors: tuple[str, ...]
    bypass: Bypass
    access: AccessRecord | None
    tier: TierExplanation
    rules: tuple[RuleExplanation, ...]
    left_out: tuple[RejectedRule, ...]
    response: ClientResponse
    unknown: tuple[str, ...]
    identities: Mapping[str, str | None]
    unexplained: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    unchecked: bool = False
    problem: str = ""
    with_token: ClientResponse | None = None

    @property
    def undecided(self) -> tuple[RuleExplanation, ...]:
        """The enforced rules that count by a value which is not known here: they may reject the request after all."""
        return tuple(each for each in self.rules if each.rule.mode == "enforce" and self.lacks(each))

    def lacks(self, each: RuleExplanation) -> tuple[str, ...]:
        """Return what a rule would count by, were it known here; empty if that is known, or does not matter."""
        if not (each.applies or each.reason == "missing"):
            return ()
        instead = ("ip",) if each.missing and each.rule.missing_partition == "ip" else ()
        return tuple(name for name in (*each.rule.partition_by, *instead) if name in self.unknown)

    @property
    def applying(self) -> tuple[RuleExplanation, ...]:
        """The rules that apply."""
        return tuple(each for each in self.rules if each.applies)
