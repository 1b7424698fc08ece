"""One call that cannot be decided locally: what is decided here, what is sent to the engine, and how replies are used.

Everything here is called under the lock of `LocalCounters`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from ..base import Charge, Verdict, Version
from ..usage import UsageCarry
from .counter import LocalCounter, is_local, is_unsynced
from .counters import LocalCounters
from .denials import SWEEP_SECONDS, refuses

#: Unused counters are synced with the calls of others, this many at once.
MAX_PIGGYBACKED: Final = 50


class SyncRequest(NamedTuple):
    """The arguments for the engine's `check`."""

    charges: list[Charge]
    version: int | Version | None
    refund_if_denied: list[Verdict]
    refused: bool
    counts: UsageCarry | None

    def send(self, engine: Any) -> Any:
        """Call `check` and return its result. Optional arguments are passed only if they are set."""
        options: dict[str, Any] = {"refused": True} if self.refused else {}
        if self.counts:
            options["counts"] = self.counts
        return engine.check(self.charges, version=self.version, refund_if_denied=self.refund_if_denied, **options)


class SyncItem(NamedTuple):
    """A charge that is sent to the engine.

    counter: the local counter that it syncs, `None` = none; carried: unsent units that it sends for it. reserved_in:
    the local counter that it bypasses.
    """

    charge: Charge
    counter: LocalCounter | None
    carried: int = 0
    reserved_in: LocalCounter | None = None


class SyncCall:
    """The charges of one call. now: when it began."""

    def __init__(
        self,
        counters: LocalCounters,
        charges: Sequence[Charge],
        version: int | Version | None,
        receipts: Sequence[Verdict],
        now: float,
    ) -> None:
        self._counters, self._charges, self._version, self._began = counters, charges, version, now
        self._receipts = [receipt for receipt in receipts if receipt.spent]
        self._local: dict[int, LocalCounter] = {}
        self._sent: dict[int, SyncItem] = {}
        self._piggybacked: list[tuple[str, SyncItem]] = []
        self._passing: set[int] = set()
        self._refused = self._asked = False

    def place_charges(self) -> None:
        """Decide which charges are local, and charge these, so that no other thread uses their units meanwhile."""
        for index, charge in enumerate(self._charges):
            if charge.sync_interval is None or charge.carried:
                self._sent[index] = SyncItem(charge, None)
            else:
                self._place(index, charge, charge.key + charge.limit.tag, charge.sync_interval)
        if self._local:  # the call is counted locally as a whole, including charges of its rules that are sent
            for index, sent in self._sent.items():
                if sent.charge.sync_interval is not None:
                    self._sent[index] = sent._replace(charge=sent.charge._replace(usage=None))
        self._passing = {index for index, counter in self._local.items() if self._passes(index, counter)}
        self._refused = any(self._charges[index].gating and index not in self._passing for index in self._local)
        if not self._refused:
            for index in self._passing:
                self._local[index].spend(self._charges[index], self._began)

    def _passes(self, index: int, counter: LocalCounter) -> bool:
        return self._charges[index].cost <= counter.left(self._charges[index])

    def _place(self, index: int, charge: Charge, name: str, interval: float) -> None:
        counters = self._counters
        counter = counters.by_name.get(name)
        if counter is None:
            counter = LocalCounter(charge)
            if self._has_room():
                self._counters.by_name[name] = counter
            elif interval >= 0:
                self._sent[index] = SyncItem(charge, None)
                counters.first_calls.forget(charge)  # its stored reply will lack what is charged now
                return
        if interval < 0:
            if not counter.covers(charge, self._began) or charge.cost > counter.left(charge):
                self._counters.refresh(counter, charge, self._began)
            self._local[index] = counter
        elif counter.covers(charge, self._began) or self._can_wait(counter, charge):
            self._local[index] = counter
        elif counter.asked_by is not None or self._is_too_narrow(charge, counter):  # another call carries its units
            counter.reserve(charge.cost)
            self._sent[index] = SyncItem(charge, None, reserved_in=counter)
        else:
            counter.asked_by, carried = self, counter.unsynced(self._began)
            counter.used += charge.cost  # so that no other thread uses these units before the engine has answered
            self._sent[index] = SyncItem(charge._replace(carried=carried), counter, carried)

    def _is_too_narrow(self, charge: Charge, counter: LocalCounter) -> bool:
        """Return whether this charge's limit is too narrow to carry the unsent units, because of another thread."""
        return charge.limit.quota < counter.widest and counter.unsynced(self._began) > 0

    def _can_wait(self, counter: LocalCounter, charge: Charge) -> bool:
        """Return whether another thread is syncing the counter, so that its old data is good enough until the reply."""
        return counter.asked_by is not None and charge.limit.quota <= counter.at_most

    def _has_room(self) -> bool:
        counters, now = self._counters, self._began
        if len(counters.by_name) < counters.max_counters:
            return True
        if now >= counters.sweep_at:
            counters.sweep_at = now + SWEEP_SECONDS
            for name, counter in list(counters.by_name.items()):
                if now >= counter.due_at and counter.asked_by is None:
                    if (counter.charge.sync_interval or 0) < 0:
                        counters.refresh(counter, counter.charge._replace(cost=0), now)
                    if not counter.unsynced(now):
                        del counters.by_name[name]
            if len(counters.by_name) >= counters.max_counters:
                self.add_piggybacked(due=True)
        return len(counters.by_name) < counters.max_counters

    def add_piggybacked(self, *, due: bool) -> None:
        """Add unsent units of counters that are due. due: False = of any counter; these are dropped after the sync.

        Counters that the call charges anyway are left out.
        """
        charged = {charge.key + charge.limit.tag for charge in self._charges}
        for name, counter in self._counters.by_name.items():
            if len(self._piggybacked) >= MAX_PIGGYBACKED:
                break
            if name in charged:
                continue
            if self._began >= counter.due_at or not due:
                self._add_unsynced(name, counter)

    def add_wider(self, charges: Sequence[Charge]) -> bool:
        """Add units of these charges' counters that were charged under a wider limit, if any.

        The engine accepts units only up to the quota of the limit that they come with, so they are sent with their own.
        """
        for charge in charges:
            name = charge.key + charge.limit.tag
            counter = self._counters.by_name.get(name)
            if (
                counter is not None
                and counter.charge.limit.quota > charge.limit.quota
                and self._began >= counter.due_at
            ):
                self._add_unsynced(name, counter)
        return bool(self._piggybacked)

    def _add_unsynced(self, name: str, counter: LocalCounter) -> None:
        """Add the counter's unsent units, unless another thread is sending them."""
        charge, carried = counter.charge, 0 if counter.asked_by is not None else counter.unsynced(self._began)
        if carried and (charge.sync_interval or 0) > 0:
            counter.asked_by = self
            silent = charge._replace(cost=0, carried=carried, gating=False, usage=None, count_refusals=False)
            self._piggybacked.append((name, SyncItem(silent, counter, carried)))

    def build_request(self, *, always: bool = True) -> SyncRequest | None:
        """Return the arguments of the call; `None` = no call. always: also call for the version alone, if it is due.

        A call without charges is made only for the version.
        """
        counters, theirs = self._counters, self._engine_receipts()
        known = self._version is None or (
            self._charges and counters.version_state.is_current(self._version, self._began)
        )
        is_first = always and not known
        counts = counters.usage.lease()
        asks = self._sent or self._piggybacked or (self._refused and theirs) or is_first or (counts and not always)
        if not asks:
            counters.usage.acknowledge(counts, done=False)
            return None
        if self._version is not None:
            counters.version_state.claim(self._version, self._began)
        self._asked = True
        charges = [sent.charge for sent in (*self._sent.values(), *(sent for _, sent in self._piggybacked))]
        return SyncRequest(charges, self._version, theirs, self._refused, counts)

    def _engine_receipts(self) -> list[Verdict]:
        """Return the receipts that only the engine can refund."""
        return [receipt for receipt in self._receipts if not is_unsynced(receipt)]

    def fail(self) -> None:
        """Record that there was no reply: nothing is charged locally. Carried units are kept: better sent twice."""
        if not self._refused:
            for index in self._passing:
                self._local[index].refund(self._charges[index].cost)
        for sent in (*self._sent.values(), *(sent for _, sent in self._piggybacked)):
            if sent.reserved_in is not None:
                sent.reserved_in.resolve_reservation(sent.charge.cost, 0, 0)
            if sent.counter is not None and sent.counter.asked_by is self:
                sent.counter.asked_by = None
                sent.counter.used = max(sent.counter.used - sent.charge.cost, 0)

    def apply_replies(self, replies: Sequence[Verdict], now: float) -> list[Verdict]:
        """Store the engine's replies to the request. Return all verdicts, in the order of the charges."""
        answers = dict(zip(self._sent, replies, strict=False))
        if self._asked and self._version is not None:
            self._counters.version_state.confirm(self._version, self._began)
        denied = self._refused or any(answer.charge.gating and not answer.allowed for answer in answers.values())
        for index, answer in answers.items():
            answer.charge = self._charges[index]
            self._learn(self._sent[index], answer, now)
        for name, sent in self._piggybacked:
            done = sent.counter is not None and sent.counter.acknowledge_synced(sent.carried)
            if done and name in self._counters.by_name:
                del self._counters.by_name[name]
        verdicts = {**answers, **{index: self._settled(index, now, denied) for index in self._local}}
        if denied:
            for receipt in self._receipts:
                if is_unsynced(receipt):
                    receipt.counter.refund(receipt.spent)  # type: ignore[attr-defined]
                    receipt.mark_refunded()
            self._remember(answers.values(), now)
        return [verdicts[index] for index in range(len(self._charges))]

    def _learn(self, sent: SyncItem, answer: Verdict, now: float) -> None:
        counter = sent.counter
        if sent.reserved_in is not None:
            sent.reserved_in.resolve_reservation(sent.charge.cost, answer.spent, answer.at_us)
        elif counter is None:
            return
        elif counter.asked_by is self:
            counter.apply_reply(answer, sent.carried, self._began, now, answer.charge.sync_interval or 0.0)
            if answer.retry_after:  # no call is made before that
                answer.retry_after = max(answer.retry_after, counter.due_at - now)

    def _settled(self, index: int, now: float, denied: bool) -> Verdict:
        charge, counter = self._charges[index], self._local[index]
        passes = index in self._passing
        spent = charge.cost if passes and not self._refused else 0
        if denied:
            counter.refund(spent)
            spent = 0
        if not passes and charge.count_refusals:
            counter.spend_refusal(charge, now)
        verdict = counter.verdict(charge, now, allowed=passes, spent=spent, denied=denied)
        if (
            is_local(charge) and self._counters.by_name.get(charge.key + charge.limit.tag) is not counter
        ):  # no room for it
            self._counters.refresh(counter, charge._replace(cost=0), now)
        return verdict

    def _remember(self, answers: Any, now: float) -> None:
        """Remember denials of exact charges that hold for a while."""
        exact = [answer for answer in answers if answer.charge.sync_interval is None]
        if self._refused or any(map(refuses, exact)):
            self._counters.denials.store(exact, self._version, now)

    def counted_locally(self, verdicts: Sequence[Verdict]) -> list[Verdict]:
        """Return the verdicts that the engine did not count."""
        return [verdict for verdict in verdicts if verdict.charge.sync_interval is not None] if self._local else []
