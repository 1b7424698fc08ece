"""The counters of a caller: one for each limit of each rule, with what it allows now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, ClassVar, NamedTuple

from ..engine.base import Charge, Verdict
from ..engine.usage.refusals import CounterRefusals
from ..rules.formatting import limit_in_words
from ..rules.records import LimitRecord, RuleRecord
from ..rules.routes import for_no_view
from .caller import Caller


@dataclass(frozen=True)
class Counter:
    """One counter of a caller, in its current state.

    verdict: of a request with the rule's cost now; `None` = not known. digest: of the caller, in its name. stands_in:
    it counts requests from the address that lack the value that the rule is split by. is_assumed: the caller's tier is
    not known, so this may not be its limit.
    """

    MEMBERS: ClassVar = (
        *("name", "rule", "mode", "limit", "capacity", "used", "left", "full_in", "blocked", "blocked_until"),
        *("shared", "leases"),
    )

    rule: RuleRecord
    tier: str
    record: LimitRecord
    charge: Charge
    digest: str
    verdict: Verdict | None = None
    stands_in: bool = False
    is_assumed: bool = False

    @property
    def name(self) -> Annotated[str, "The name of the counter in acts."]:
        return f"{self.rule.slug}{self.charge.limit.tag}"

    @property
    def mode(self) -> str:
        return self.rule.mode

    @property
    def limit(self) -> Annotated[str, "In words."]:
        return limit_in_words(self.record)

    @property
    def shared(self) -> Annotated[bool, "All callers share this counter."]:
        return not self.rule.partition_by

    @property
    def leases(self) -> Annotated[bool, "It counts requests in progress."]:
        return self.charge.limit.holds_leases

    @property
    def is_local(self) -> bool:
        """True if each process counts alone, without sync: the sum is not known."""
        return self.charge.sync_interval is not None and self.charge.sync_interval < 0

    @property
    def capacity(self) -> Annotated[int, "Units."]:
        return self.charge.limit.capacity

    @property
    def left(self) -> int | None:
        return None if self.verdict is None else self.verdict.remaining

    @property
    def used(self) -> Annotated[int | None, "Units; null = not known."]:
        return None if self.verdict is None else max(self.capacity - self.verdict.remaining, 0)

    @property
    def is_limited(self) -> bool:
        """True if the rule would now reject a request, or, in shadow, count it as rejected."""
        return self.verdict is not None and not self.verdict.allowed

    @property
    def is_blocked(self) -> bool:
        """True if the rule rejects the caller now."""
        return self.is_limited and self.rule.mode == "enforce"

    @property
    def blocked(
        self,
    ) -> Annotated[bool | None, "null = not known, because the limits of a digest are not."]:
        return None if self.is_assumed else self.is_blocked

    @property
    def blocked_until(self) -> Annotated[datetime | None, "null = not blocked, or blocked without an end."]:
        if self.verdict is None or self.verdict.allowed or self.verdict.retry_after is None:
            return None
        return _moment(self.verdict, self.verdict.retry_after)

    @property
    def full_in(self) -> Annotated[float | None, "Seconds until the full quota is back."]:
        return None if self.verdict is None else self.verdict.reset_after


class Unread(NamedTuple):
    """A rule whose counters need more values of the caller."""

    rule: RuleRecord
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Counters:
    """All of a caller's counters. unread: the rules with missing values. unlimited: those without a limit for
    the caller's tier. problem: why the engine did not answer; then the counters have no verdicts.
    before_login: the counters of rules while the user is not known, as before a DRF view has checked a
    token; only of rules that have other limits then.
    peeked: what the engine has returned in the same calls, with the rejections of all callers; `None` = not read.
    """

    counters: Sequence[Counter]
    unread: Sequence[Unread] = ()
    unlimited: Sequence[RuleRecord] = ()
    problem: str = ""
    before_login: Sequence[Counter] = ()
    peeked: CounterRefusals | None = None

    @property
    def own(self) -> list[Counter]:
        """The counters that can be reset for this caller alone."""
        return [each for each in self.counters if not each.shared and not each.is_local]

    @property
    def blocked(self) -> list[Counter]:
        return [each for each in self.counters if each.is_blocked]

    @property
    def blocked_scopes(self) -> list[Counter]:
        """Those of `blocked` that reject no request, but only code that names a scope that no view has."""
        slugs = for_no_view(each.rule for each in self.blocked)
        return [each for each in self.blocked if each.rule.slug in slugs]

    @property
    def blocked_views(self) -> list[Counter]:
        """The rest of `blocked`."""
        slugs = for_no_view(each.rule for each in self.blocked)
        return [each for each in self.blocked if each.rule.slug not in slugs]

    @property
    def blocked_before_login(self) -> list[Counter]:
        """The counters that reject a request of this caller with a token that only the view can check, and no other."""
        return [each for each in self._before_login_alone() if each.is_blocked]

    @property
    def unknown_before_login(self) -> list[Counter]:
        """The counters for which it is not known whether they would reject such a request."""
        return [each for each in self._before_login_alone() if each.verdict is None and each.rule.mode == "enforce"]

    def _before_login_alone(self) -> list[Counter]:
        slugs = {each.rule.slug for each in self.blocked}
        return [each for each in self.before_login if each.rule.slug not in slugs]

    def before_login_of(self, rule: RuleRecord) -> list[Counter]:
        """Return this rule's counters while the user is not known; empty = the same as usual."""
        return [each for each in self.before_login if each.rule is rule]

    def of(self, caller: Caller) -> Counters:
        """Return the counters that concern the caller: if only a key is known, its own counters that are in use."""
        if caller.is_everybody:
            return Counters([each for each in self.counters if each.shared], problem=self.problem)
        if caller.is_nobody:
            return Counters((), problem=self.problem)
        if caller.kind != "digest" and not caller.is_unknown_user:
            return self
        shown = [each for each in self.counters if not each.shared and (each.used or self.problem)]
        return Counters(shown, self.unread, self.unlimited, self.problem)

    def named(self, names: Iterable[str]) -> list[Counter]:
        """Return the caller's own counters with these names."""
        wanted = set(names)
        return [each for each in self.own if each.name in wanted]


def _moment(verdict: Verdict, seconds: float) -> datetime:
    return datetime.fromtimestamp(verdict.at_us / 1_000_000, UTC) + timedelta(seconds=seconds)
