"""One call that cannot be decided in the process alone: what is decided here, what is asked, and what follows.

Everything here is done under the ledger's lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..base import Charge, Verdict, Version
from ..usage import Held
from .counter import Budget, LocalVerdict
from .denials import SWEEP_SECONDS, refuses

if TYPE_CHECKING:
    from .counters import Ledger

#: Counters that nobody uses are told of with the calls of others, so many at once.
MOST_RIDERS: Final = 50


class Question(NamedTuple):
    """A call to make of the engine's `check`."""

    charges: list[Charge]
    version: int | Version | None
    refund_if_denied: list[Verdict]
    refused: bool
    counts: Held | None

    def put(self, engine: Any) -> Any:
        """Make it; what the engine returns. An engine that is owed nothing need not know how to be told."""
        options: dict[str, Any] = {"refused": True} if self.refused else {}
        if self.counts:
            options["counts"] = self.counts
        return engine.check(self.charges, version=self.version, refund_if_denied=self.refund_if_denied, **options)


class _Sent(NamedTuple):
    """A charge on its way.

    budget: the one that it renews, `None` = none; carried: what it tells for that. passed: the one that it passes by.
    """

    charge: Charge
    budget: Budget | None
    carried: int = 0
    passed: Budget | None = None


class Settlement:
    """The charges of one call. now: when it began."""

    def __init__(
        self,
        ledger: Ledger,
        charges: Sequence[Charge],
        version: int | Version | None,
        receipts: Sequence[Verdict],
        now: float,
    ) -> None:
        self._ledger, self._charges, self._version, self._began = ledger, charges, version, now
        self._receipts = [receipt for receipt in receipts if receipt.spent]
        self._own: dict[int, Budget] = {}
        self._sent: dict[int, _Sent] = {}
        self._riders: list[tuple[str, _Sent]] = []
        self._passing: set[int] = set()
        self._refused = self._asked = False

    def plan(self) -> None:
        """Find out what is decided here, and spend it, lest another thread does while the engine is asked."""
        for index, charge in enumerate(self._charges):
            if charge.sync_interval is None or charge.carried:
                self._sent[index] = _Sent(charge, None)
            else:
                self._place(index, charge, charge.key + charge.limit.tag, charge.sync_interval)
        if self._own:  # counted here as a whole, with what is asked of the same rules
            for index, sent in self._sent.items():
                if sent.charge.sync_interval is not None:
                    self._sent[index] = sent._replace(charge=sent.charge._replace(usage=None))
        self._passing = {index for index, budget in self._own.items() if self._passes(index, budget)}
        self._refused = any(self._charges[index].gating and index not in self._passing for index in self._own)
        if not self._refused:
            for index in self._passing:
                self._own[index].spend(self._charges[index], self._began)

    def _passes(self, index: int, budget: Budget) -> bool:
        return self._charges[index].cost <= budget.left(self._charges[index])

    def _place(self, index: int, charge: Charge, name: str, interval: float) -> None:
        budget = self._ledger.budgets.get(name)
        if budget is None:
            budget = Budget(charge)
            if self._has_room():
                self._ledger.budgets[name] = budget
            elif interval >= 0:
                self._sent[index] = _Sent(charge, None)
                return
        if interval < 0:
            if not budget.knows(charge, self._began) or charge.cost > budget.left(charge):
                self._ledger.look(budget, charge, self._began)
            self._own[index] = budget
        elif budget.knows(charge, self._began) or self._can_wait(budget, charge):
            self._own[index] = budget
        elif budget.asked_by is not None or self._is_too_narrow(charge, budget):  # others carry what there is
            budget.pass_by(charge.cost)
            self._sent[index] = _Sent(charge, None, passed=budget)
        else:
            budget.asked_by, carried = self, budget.carried(self._began)
            budget.used += charge.cost  # so that other threads do not spend it before the engine has answered
            self._sent[index] = _Sent(charge._replace(carried=carried), budget, carried)

    def _is_too_narrow(self, charge: Charge, budget: Budget) -> bool:
        """Whether this charge cannot carry what the budget owes; another thread has spent that just now."""
        return charge.limit.quota < budget.widest and budget.carried(self._began) > 0

    def _can_wait(self, budget: Budget, charge: Charge) -> bool:
        """Whether another thread is asking, so that what was known before will do until it has an answer."""
        return budget.asked_by is not None and charge.limit.quota <= budget.at_most

    def _has_room(self) -> bool:
        ledger, now = self._ledger, self._began
        if len(ledger.budgets) < ledger.most:
            return True
        if now >= ledger.sweep_at:
            ledger.sweep_at = now + SWEEP_SECONDS
            for name, budget in list(ledger.budgets.items()):
                if now >= budget.due_at and budget.asked_by is None:
                    if (budget.charge.sync_interval or 0) < 0:
                        ledger.look(budget, budget.charge._replace(cost=0), now)
                    if not budget.carried(now):
                        del ledger.budgets[name]
            if len(ledger.budgets) >= ledger.most:
                self.take_riders(due=True)
        return len(ledger.budgets) < ledger.most

    def take_riders(self, *, due: bool) -> None:
        """Take along what counters owe that are due, or any: these are forgotten once they have told.

        Those that the call charges are asked for anyway.
        """
        charged = {charge.key + charge.limit.tag for charge in self._charges}
        for name, budget in self._ledger.budgets.items():
            if len(self._riders) >= MOST_RIDERS:
                break
            if name in charged:
                continue
            if self._began >= budget.due_at or not due:
                self._tell(name, budget)

    def take_wider(self, charges: Sequence[Charge]) -> bool:
        """Take along what callers of a wider limit have spent of these charges' counters, if any.

        The engine takes no more of it than the limit that it comes with holds, so that it comes with its own.
        """
        for charge in charges:
            name = charge.key + charge.limit.tag
            budget = self._ledger.budgets.get(name)
            if budget is not None and budget.charge.limit.quota > charge.limit.quota and self._began >= budget.due_at:
                self._tell(name, budget)
        return bool(self._riders)

    def _tell(self, name: str, budget: Budget) -> None:
        """Take along what it owes, unless another thread does."""
        charge, carried = budget.charge, 0 if budget.asked_by is not None else budget.carried(self._began)
        if carried and (charge.sync_interval or 0) > 0:
            budget.asked_by = self
            silent = charge._replace(cost=0, carried=carried, gating=False, usage=None, count_refusals=False)
            self._riders.append((name, _Sent(silent, budget, carried)))

    def question(self, *, always: bool = True) -> Question | None:
        """What to ask; `None` = nothing. always: also for the version alone, if that was not asked for a while.

        A call without charges is made for nothing but the version.
        """
        ledger, theirs = self._ledger, self._theirs()
        known = self._version is None or (self._charges and ledger.is_current(self._version, self._began))
        anew = always and not known
        counts = ledger.take_counts()
        asks = self._sent or self._riders or (self._refused and theirs) or anew or (counts and not always)
        if not asks:
            ledger.counted(counts, done=False)
            return None
        if self._version is not None:
            ledger.claim(self._version, self._began)
        self._asked = True
        charges = [sent.charge for sent in (*self._sent.values(), *(sent for _, sent in self._riders))]
        return Question(charges, self._version, theirs, self._refused, counts)

    def _theirs(self) -> list[Verdict]:
        """Receipts that only the engine can give back."""
        return [receipt for receipt in self._receipts if not is_unsent(receipt)]

    def abandon(self) -> None:
        """The engine has not answered: nothing is spent here. What was carried is kept: better told twice than not."""
        if not self._refused:
            for index in self._passing:
                self._own[index].give_back(self._charges[index].cost)
        for sent in (*self._sent.values(), *(sent for _, sent in self._riders)):
            if sent.passed is not None:
                sent.passed.passed(sent.charge.cost, 0, 0)
            if sent.budget is not None and sent.budget.asked_by is self:
                sent.budget.asked_by = None
                sent.budget.used = max(sent.budget.used - sent.charge.cost, 0)

    def settle(self, replies: Sequence[Verdict], now: float) -> list[Verdict]:
        """Take the engine's answers to the question: all verdicts, in the order of the charges."""
        answers = dict(zip(self._sent, replies, strict=False))
        if self._asked and self._version is not None:
            self._ledger.confirm(self._version, self._began)
        denied = self._refused or any(answer.charge.gating and not answer.allowed for answer in answers.values())
        for index, answer in answers.items():
            answer.charge = self._charges[index]
            self._learn(self._sent[index], answer, now)
        for name, sent in self._riders:
            if sent.budget is not None and sent.budget.told(sent.carried):
                self._ledger.budgets.pop(name, None)
        verdicts = {**answers, **{index: self._settled(index, now, denied) for index in self._own}}
        if denied:
            for receipt in self._receipts:
                if is_unsent(receipt):
                    receipt.budget.give_back(receipt.spent)  # type: ignore[attr-defined]
                    receipt.mark_refunded()
            self._remember(answers.values(), now)
        return [verdicts[index] for index in range(len(self._charges))]

    def _learn(self, sent: _Sent, answer: Verdict, now: float) -> None:
        budget = sent.budget
        if sent.passed is not None:
            sent.passed.passed(sent.charge.cost, answer.spent, answer.at_us)
        elif budget is None:
            return
        elif budget.asked_by is self:
            budget.learn(answer, sent.carried, self._began, now, answer.charge.sync_interval or 0.0)
            if answer.retry_after:  # nobody here asks before
                answer.retry_after = max(answer.retry_after, budget.due_at - now)

    def _settled(self, index: int, now: float, denied: bool) -> Verdict:
        charge, budget = self._charges[index], self._own[index]
        passes = index in self._passing
        spent = charge.cost if passes and not self._refused else 0
        if denied:
            budget.give_back(spent)
            spent = 0
        if not passes and charge.count_refusals:
            budget.punish(charge, now)
        verdict = budget.verdict(charge, now, allowed=passes, spent=spent, denied=denied)
        if is_local(charge) and self._ledger.budgets.get(charge.key + charge.limit.tag) is not budget:  # no room for it
            self._ledger.look(budget, charge._replace(cost=0), now)
        return verdict

    def _remember(self, answers: Any, now: float) -> None:
        """Remember the refusal of what the engine was asked exactly, if it is one that holds for a while."""
        exact = [answer for answer in answers if answer.charge.sync_interval is None]
        if self._refused or any(map(refuses, exact)):
            self._ledger.refusals.keep(exact, self._version, now)

    def counted_here(self, verdicts: Sequence[Verdict]) -> list[Verdict]:
        """Those that the engine did not count."""
        return [verdict for verdict in verdicts if verdict.charge.sync_interval is not None] if self._own else []


def is_unsent(receipt: Verdict) -> bool:
    """Whether what it spent is known here alone."""
    if not isinstance(receipt, LocalVerdict):
        return False
    return receipt.sent == receipt.budget.sent and receipt.budget.asked_by is None


def is_twice(charges: Sequence[Charge]) -> bool:
    """Whether two of the charges are for one counter."""
    return len({charge.key + charge.limit.tag for charge in charges}) != len(charges)


def is_local(charge: Charge) -> bool:
    """Whether it is purely local: the engine is never asked."""
    return charge.sync_interval is not None and charge.sync_interval < 0


def peeked(ledger: Ledger, charges: Sequence[Charge], replies: Sequence[Verdict], now: float) -> list[Verdict]:
    """What the charges would be told. replies: the engine's verdicts on those that are not purely local."""
    answers = iter(replies)
    return [
        _looked_at(ledger, charge, now) if is_local(charge) else _less_unsent(ledger, charge, next(answers), now)
        for charge in charges
    ]


def _looked_at(ledger: Ledger, charge: Charge, now: float) -> Verdict:
    budget = ledger.budgets.get(charge.key + charge.limit.tag) or Budget(charge)
    ledger.look(budget, charge, now)
    return budget.verdict(charge, now, allowed=charge.cost <= budget.left(charge), spent=0, denied=False)


def _less_unsent(ledger: Ledger, charge: Charge, verdict: Verdict, now: float) -> Verdict:
    budget = None if charge.sync_interval is None else ledger.budgets.get(charge.key + charge.limit.tag)
    if budget is not None:
        verdict.remaining = max(verdict.remaining - budget.carried(now), 0)
        if verdict.allowed and charge.cost > verdict.remaining:
            verdict.allowed, verdict.soft_exceeded, verdict.retry_after = False, False, budget.wait(charge, now)
    return verdict
