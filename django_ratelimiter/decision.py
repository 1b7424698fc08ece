"""From the verdicts to the decision on the request. Imports no Django."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import Any, Final, NamedTuple, final

from .engine.base import Verdict, Version, leases
from .engine.call import Answer
from .engine.limits import Limit
from .rules.records import RuleRecord, TierRecord
from .rules.ruleset import NO_VERSION
from .values.access import AccessRecord
from .values.references import reference_of

#: The mode of the results of an exempt caller.
EXEMPT: Final = "exempt"

#: Seconds. During an outage the server is probed about every second at first, so a longer wait would be needless.
UNAVAILABLE_RETRY_SECONDS: Final = 1


class Result(NamedTuple):
    """The result of one limit of a rule that matched the request.

    verdict: `None` if nothing was charged, because the rule's failure policy decided, or the caller is exempt. mode:
    shadow, enforce or exempt. local: counted in the memory of this process, while the engine was out of reach.
    """

    rule: RuleRecord
    tier: TierRecord | None
    limit: Limit
    verdict: Verdict | None
    mode: str
    local: bool = False

    @property
    def passes(self) -> bool:
        """True if the rule would allow the request if it were the only one, and enforced."""
        if self.verdict is None:
            return self.mode == EXEMPT or not self.rule.during_outage.rejects
        return self.verdict.allowed

    @property
    def rejects(self) -> bool:
        """True if this result rejects the request."""
        return self.mode == "enforce" and not self.passes

    @property
    def digest(self) -> str | None:
        """The caller's digest, as in the names of keys, with its tail; `None` if nothing was counted."""
        if self.verdict is None:
            return None
        charge = self.verdict.charge
        return charge.partition or self.rule.digest_in(charge.key)

    @property
    def reference(self) -> str | None:
        """The reference of a rejection by this result, for callers and operators; `None` if nothing was counted."""
        digest = self.digest
        return None if digest is None else reference_of(self.rule.slug, digest)


@dataclass(slots=True, eq=False)
class Owner:
    """Whose limit a charge is. The same for all callers.

    name: of the limit, for callers; `None` until `headers` has found it.
    """

    rule: RuleRecord
    tier: TierRecord | None
    limit: Limit
    name: str | None = None

    def result(self, verdict: Verdict | None, *, local: bool = False) -> Result:
        """Return the result of this limit for one request."""
        return _new(Result, (self.rule, self.tier, self.limit, verdict, self.rule.mode, local))


@final
@dataclass(slots=True)
class Rejection:
    """What rejects a request.

    by: the limits that do. binding: the one with the longest wait; `None` = an access entry denies the caller.
    digest: of the caller, as in `Result`, by the binding limit. reference: of the rejection, for callers and operators.
    Both are `None` if nothing was counted.
    status: of the response: 429, 403 if the caller is denied, or 503 if a failure policy `closed` rejects the request.
    seconds: whole ones until the request would be allowed, at least 1; `None` = never.
    """

    by: Sequence[Owner]
    binding: Owner | None
    digest: str | None
    reference: str | None
    status: int
    seconds: int | None


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision on a request.

    degraded: made without the engine, by the failure policy of each rule, or without a value that a store or the
    project's code failed to give. unavailable: rejected because such a policy is `closed`, so the response is 503 and
    not 429. delay: seconds to delay the allowed request from now on, by the rules that the latest call decided; the
    delays of earlier calls are over. binding: the result that rejected the request (if there are several, the one with
    the longest wait), else the one with the smallest remaining share; `None` if no enforced rule matched. results: by
    ascending priority of their rules, rules in shadow included. access: the access entry that denies the caller (403);
    `None` = there is none.
    """

    allowed: bool
    degraded: bool
    delay: float
    binding: Result | None
    results: tuple[Result, ...]
    version: Version
    access: AccessRecord | None = None
    #: The engine's verdicts until the results are read. Results can be changed, so they are dropped then.
    answer: Answer | None = field(default=None, init=False, repr=False, compare=False)
    #: False if nothing follows an allowed request: no lease to end, no delay, no soft quota, no refund by its response.
    has_consequences: bool = field(default=True, init=False, repr=False, compare=False)

    _rejection: Rejection | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, answer: Answer, version: Version) -> Decision:
        """Return the decision for an answer. Its results are computed when they are read."""
        draft: Any = _Draft()
        draft.allowed, draft.version, draft.answer = not answer.is_rejected, version, answer
        draft.degraded, draft.access = False, None
        draft._rejection = _rejection_by(answer) if answer.is_rejected else None
        call: Any = answer.charges.template  # a `RuleCallTemplate`, here and below
        has_consequences = draft.has_consequences = call.has_consequences
        if not has_consequences:
            draft.delay = 0.0
        draft.__class__ = cls
        return draft  # type: ignore[no-any-return]

    @property
    def unavailable(self) -> bool:
        """True if a failure policy `closed` rejected the request."""
        if self.answer is not None:
            return False
        return any(result.verdict is None and result.rejects for result in self.results)

    @property
    def is_exempt(self) -> bool:
        """True if rules matched, and the caller is exempt from them, by an access entry or EXEMPT."""
        return self.answer is None and any(result.mode == EXEMPT for result in self.results)

    @property
    def slugs(self) -> frozenset[str]:
        """The slugs of the rules that were decided."""
        if self.answer is not None:
            call: Any = self.answer.charges.template
            return call.slugs  # type: ignore[no-any-return]
        return frozenset([result.rule.slug for result in self.results])

    @property
    def rejection(self) -> Rejection:
        """What rejects the request. The results need not be computed for it."""
        if self._rejection is None:
            _set(self, "_rejection", self._rejection_by_results())
        return self._rejection  # type: ignore[return-value]

    def _rejection_by_results(self) -> Rejection:
        rejecting, seconds = self.rejected_by, self.retry_after
        by = [Owner(each.rule, each.tier, each.limit) for each in rejecting]
        status = 403 if self.access else 503 if self.unavailable else 429
        whole = None if seconds is None else max(1, ceil(seconds))
        if self.access is not None or self.binding not in rejecting:
            return Rejection(by, None, None, None, status, whole)
        binding = self.binding
        return Rejection(by, by[rejecting.index(binding)], binding.digest, binding.reference, status, whole)

    @property
    def rejected_by(self) -> tuple[Result, ...]:
        """The results that reject the request."""
        return tuple(result for result in self.results if result.rejects)

    @property
    def retry_after(self) -> float | None:
        """Seconds until a rejected request would be allowed, 0 if it was not rejected; `None` = never."""
        if self.access is not None:
            return None
        if self.answer is not None:
            return self.answer.retry_after
        if self.unavailable:
            return UNAVAILABLE_RETRY_SECONDS
        waits = [result.verdict.retry_after for result in self.rejected_by if result.verdict]
        known = [wait for wait in waits if wait is not None]
        return max(known, default=0.0) if len(known) == len(waits) else None

    @property
    def leases(self) -> list[Verdict]:
        """The verdicts that hold leases, which count until they are released."""
        return leases([each.verdict for each in self.results if each.verdict]) if self.has_consequences else []

    @property
    def soft_exceeded(self) -> list[Result]:
        """The enforced limits whose soft quota this request, which is allowed, has exceeded."""
        results = self.results if self.has_consequences else ()
        return [each for each in results if each.verdict and each.verdict.soft_exceeded and each.mode == "enforce"]


class _Draft:
    """A decision while its attributes are set, which takes longer if the class is frozen. Then its class is changed."""

    __slots__ = Decision.__slots__


def _computed(part: str) -> property:
    """Return the property of a part of a decision that is computed when one of them is read first.

    Not by `__getattr__`: with it, Python reads all attributes of an object slowly.
    """
    slot = vars(Decision)[part]
    get = slot.__get__

    def read(self: Decision) -> Any:
        try:
            return get(self)
        except AttributeError:
            if self.answer is None:
                raise
        call: Any = self.answer.charges.template
        results = results_of(call.owners, self.answer)
        allowed, delay, binding = _judged(results)
        _set(self, "delay", delay if allowed else 0.0)
        _set(self, "binding", binding)
        _set(self, "results", tuple(results))
        _set(self, "answer", None)
        return get(self)

    return property(read, slot.__set__)


for _part in ("delay", "binding", "results"):
    setattr(Decision, _part, _computed(_part))

_set: Final = object.__setattr__
_new = tuple.__new__  # what a named tuple calls in the end


def _rejection_by(answer: Answer) -> Rejection:
    """Return what rejects the call of this answer."""
    call: Any = answer.charges.template
    by, waits, binding = [], answer.states.waits, answer.binding
    for place, wait in enumerate(waits):
        if wait and wait >= -1 and call.gates[place]:  # below, it is a delay
            by.append(call.owners[place])
    if binding is None:
        return Rejection(by, None, None, None, 429, None)
    owner, digest, wait = call.owners[binding], answer.charges.partitions[binding], waits[binding]
    seconds = ceil(wait / 1_000_000) if wait > 0 else None
    return Rejection(by, owner, digest, reference_of(owner.rule.slug, digest), 429, seconds)


def results_of(owners: Iterable[Owner], verdicts: Iterable[Verdict]) -> list[Result]:
    """Return the results of these limits."""
    return [owner.result(verdict) for owner, verdict in zip(owners, verdicts, strict=True)]


#: For a request that no rule matches, or while enforcement is stopped.
NOTHING_TO_DECIDE = Decision(True, False, 0.0, None, (), NO_VERSION)
_set(NOTHING_TO_DECIDE, "has_consequences", False)


def decide(
    results: Sequence[Result], version: Version, *, degraded: bool = False, delay: float | None = None
) -> Decision:
    """Return one decision from the results of all rules that match the request.

    delay: if the request is allowed; `None` = the longest delay of the results.
    """
    allowed, longest, binding = _judged(results)
    lasts = longest if delay is None else delay
    return Decision(allowed, degraded, lasts if allowed else 0.0, binding, tuple(results), version)


#: The tightness of a result without a verdict that does not reject: above any remaining share.
_UNKNOWN: Final = 2.0


def _judged(results: Sequence[Result]) -> tuple[bool, float, Result | None]:
    """Return whether these results allow the request, their longest delay, and the binding one.

    That is the tightest: one that is never allowed, then the longest wait, then the smallest remaining share.
    """
    allowed, delay, least = True, 0.0, inf
    binding: Result | None = None
    for result in results:
        _, _, limit, verdict, mode, _ = result
        if mode != "enforce":
            continue
        if verdict is not None and verdict.allowed:  # the common case
            tightness = verdict.remaining / (limit.quota if limit.burst is None else limit.burst)
            if verdict.delay > delay:
                delay = verdict.delay
        elif verdict is None and not result.rejects:
            tightness = _UNKNOWN
        else:
            wait = None if verdict is None else verdict.retry_after
            allowed, tightness = False, -inf if wait is None else -1.0 - wait
        if tightness < least:
            binding, least = result, tightness
    return allowed, delay, binding


def merge(earlier: Decision, latest: Decision) -> Decision:
    """Return one decision from two calls for a request. The delays of the earlier call are over."""
    if not (before := earlier.results):
        return replace(latest, degraded=True) if earlier.degraded else latest
    degraded = earlier.degraded or latest.degraded
    before = exempted(before, latest.version).results if latest.is_exempt else before
    return decide([*before, *latest.results], latest.version, degraded=degraded, delay=latest.delay)


def exempted(results: Iterable[Result], version: Version, *, degraded: bool = False) -> Decision:
    """Return the decision on an exempt caller. results: of the rules that do not apply."""
    return decide([each._replace(verdict=None, mode=EXEMPT) for each in results], version, degraded=degraded)


def without(decision: Decision, slugs: Collection[str]) -> Decision:
    """Return the decision as if the rules with these slugs did not match. The delay is 0."""
    others = [result for result in decision.results if result.rule.slug not in slugs]
    return decide(others, decision.version, degraded=decision.degraded, delay=0.0)
