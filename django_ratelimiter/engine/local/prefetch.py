"""Units fetched in advance: a process charges some in the call that decides a request, and spends them without a call.

For each counter there is a hand, which is renewed for an interval, the rule's `sync_interval`:

    a first visit in an interval     no hand: the engine decides it, and only the caller is noted, see `store`
    a second one                     a hand: the call wants one more unit
    the interval is over             the next call wants half as much again as was asked for in it, and one
    the units are spent              the next call wants twice as many
    fewer came, much is left         the next call wants as many
    a rejection, or fewer came and   the units are scarce: until the interval is over, this process makes no call for
    not `MUCH` is left               this counter, and rejects what the units in hand do not cover

Units end with a window that resets at its end. What is left goes back with a later call to the same shard, or by
`LocalCounters.give_back`. Times are monotonic seconds of this process; names that end in `_us` are microseconds of the
engine's clock. Everything here is called under the lock of `LocalCounters`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import ceil, inf
from typing import Final, NamedTuple

from ..base import Charge, Verdict, Version
from ..call import Answer, Call, CallTemplate, CounterStates, LocalAnswer
from ..limits import Limit
from ..usage import joined, lines_of

#: Maximum number of receipts that one call gives back.
MAX_RETURNED: Final = 50

#: Units that were not touched for so many seconds are given back, even if their interval is not over.
IDLE_SECONDS: Final = 0.5

#: How many times as much as was wanted must be left for units not to be scarce if fewer came. By less, a flood at a
#: sliding window would make a call for each unit that is free again.
MUCH: Final = 4

#: Microseconds to wait for a rejected caller while another thread is calling the engine: its reply will come soon.
SOON_US: Final = 1_000

_new = tuple.__new__  # what a named tuple calls in the end


class Terms(NamedTuple):
    """The common part of all calls of a template. counted: the field of usage if all of its charges are allowed."""

    counted: str
    costs: list[int]
    limits: list[Limit]


def terms_of(template: CallTemplate) -> Terms:
    """Return the common part of all calls of a template."""
    terms: Terms | None = template.kept.get(Terms)
    if terms is None:
        charges = [each.charge for each in template.templates]
        counted = joined(lines_of(charges), "a" * len(charges), template.so_far)
        terms = Terms(counted, [each.cost for each in charges], [each.limit for each in charges])
        template.kept[Terms] = terms
    return terms


@dataclass(slots=True, eq=False)
class Hand:
    """The units of one counter that this process has in hand, and what the engine's latest reply has said of it.

    charge, version, limit: of the latest call that fetched. at_us: when the units were charged. until: the end of the
    interval. demand: what was asked for in it. want: what the next call in it wants, with its cost.
    least: costs from here on are rejected until the interval is over, unless the units cover them; inf = they are not.
    told_at, told_us: the time of the reply by both clocks. passes_at: when it said that a rejected cost passes.
    """

    charge: Charge
    version: int | Version | None
    limit: Limit
    units: int = 0
    at_us: int = 0
    until: float = -inf
    demand: int = 0
    want: int = 0
    least: float = inf
    is_fetching: bool = False
    touched_at: float = -inf
    remaining: int = 0
    reset_at: float = -inf
    passes_at: float = -inf
    told_at: float = 0.0
    told_us: int = 0

    def is_of(self, limit: Limit, version: int | Version | None) -> bool:
        """Return whether its units may be spent on charges with this limit, by rules of this version."""
        same_version = self.version is version or self.version == version
        return same_version and (self.limit is limit or self.limit == limit)

    def wait(self, cost: int, now: float) -> int:
        """Return the microseconds to wait for a cost that is rejected here; -1 = for ever; 0 = it is not.

        While a call fetches, it is decided as before that.
        """
        if cost > self.limit.capacity:
            return -1
        if cost < self.least or not (now < self.until or self.is_fetching):
            return 0
        return SOON_US if self.is_fetching else ceil((max(self.until, self.passes_at) - now) * 1_000_000)


@dataclass(slots=True, eq=False)
class Hands:
    """All hands of a process.

    most: maximum number. shard_of: returns the shard of a charge; `None` = there is only one. held: those with units,
    the earliest first.
    """

    most: int
    shard_of: Callable[[Charge], int] | None = None
    by_name: dict[str, Hand] = field(default_factory=dict)
    held: dict[str, Hand] = field(default_factory=dict)
    _swept_at: float = -inf

    def decide(
        self, call: Call, version: int | Version | None, now: float, *, rejected: bool, refunds: bool
    ) -> Answer | None:
        """Return the answer if it is decided here; `None` = the engine must be asked.

        rejected: the call is rejected already. refunds: if it is rejected, the engine must refund something.
        """
        _, costs, limits = call.template.kept.get(Terms) or terms_of(call.template)
        hands, waits, is_known = [], [0] * len(costs), True
        for place, hand in enumerate(map(self.by_name.get, call.names())):
            if hand is None or not (hand.told_us and hand.is_of(limits[place], version)):
                return None  # not known, or not yet
            hands.append(hand)
            if costs[place] > hand.units or now >= hand.until:
                waits[place] = wait = hand.wait(costs[place], now)
                if not wait:
                    is_known = False
                elif call.template.gates[place]:
                    rejected = True
        if refunds if rejected else not is_known:
            return None
        at_us = hands[0].told_us + int((now - hands[0].told_at) * 1_000_000)
        remaining, resets, leads = [], [], []
        for hand, cost, wait in zip(hands, costs, waits, strict=True):
            hand.demand += cost
            hand.touched_at = now
            if not (rejected or wait):
                hand.units -= cost
            remaining.append(hand.remaining + hand.units)
            reset = hand.reset_at - now
            resets.append(int(reset * 1_000_000) if reset > 0 else 0)
            leads.append(hand.at_us - at_us)  # a receipt names the time at which the units were charged
        answer = LocalAnswer.of(call, _new(CounterStates, (at_us, remaining, waits, resets, leads)))
        answer.is_rejected = rejected
        return answer

    def fetch(
        self, call: Call, version: int | Version | None, now: float, *, is_current: bool
    ) -> tuple[Call, list[tuple[int, Hand]]]:
        """Return the call for what is not decided here, and the hands that it fetches for, each with its place.

        Afterwards call `settle`, or end `is_fetching` of these. is_current: the version need not be confirmed.
        """
        template, wants, returned = call.template, [0] * len(call), self.due(call, now)
        fetching: list[tuple[int, Hand]] = []
        for place, (name, charge) in enumerate(zip(call.names(), call, strict=True)):
            fetches, hand = template.is_fetched and charge.cost > 0, self.by_name.get(name)
            if hand is None and fetches and self._has_room(now):
                hand = self.by_name[name] = Hand(charge, version, charge.limit)
            if hand is None:
                continue
            is_own, is_over = hand.is_of(charge.limit, version), now >= hand.until or not is_current
            is_over = is_over or hand.version != version
            fetches = fetches and not hand.is_fetching
            fetches = fetches and (is_over or (is_own and hand.units < charge.cost < hand.least))
            if hand.units and (fetches or hand.least < inf):  # else the engine might reject what is in hand
                returned.append(self._receipt(name, hand))
            if fetches and is_over:
                hand.want = -(-3 * hand.demand // 2) + 1 if hand.demand else 2 * charge.cost
                hand.until = now + (charge.sync_interval or 0.0)
                if not is_own:
                    hand.least, hand.told_us = inf, 0
                hand.charge, hand.limit, hand.version, hand.demand = charge, charge.limit, version, 0
            if fetches:
                hand.is_fetching, wants[place] = True, max(hand.want - charge.cost, 0)
                fetching.append((place, hand))
            hand.demand += charge.cost
            hand.touched_at = now
        return call.fetching(wants, returned), fetching

    def settle(
        self, call: Call, fetching: Sequence[tuple[int, Hand]], answer: Answer, began: float, now: float
    ) -> Answer:
        """Store the answer to a call that began then. Return it with what is in hand as remaining."""
        taken, states, names = answer.taken, answer.states, call.names()
        for place, hand in fetching:
            hand.is_fetching, wait = False, states.waits[place]
            if self.by_name.get(names[place]) is not hand:  # it was reset, or the engine was lost
                continue
            if taken is None and call.wants:  # this engine charges nothing in advance
                del self.by_name[names[place]]
                continue
            hand.told_at, hand.told_us, hand.remaining = now, states.at_us, states.remaining[place]
            hand.reset_at = now + states.resets[place] / 1_000_000
            if wait > 0:
                hand.least, hand.passes_at = hand.remaining + 1, now + wait / 1_000_000
            elif answer.is_rejected:
                hand.until = -inf  # by another charge, which says nothing of this one
            else:
                hand.units, hand.at_us = taken[place] if taken else 0, states.at_us + states.leads[place]
                wanted, hand.least = hand.want - hand.charge.cost, inf
                if hand.units >= wanted:
                    hand.want *= 2
                elif hand.remaining < MUCH * wanted:
                    hand.least = 1
                hand.passes_at = -inf
                if hand.limit.traits.resets_at_end:  # never too late, as the reply was made after the call began
                    hand.until = min(hand.until, began + states.resets[place] / 1_000_000)
                self.held.pop(names[place], None)
                if hand.units:
                    self.held[names[place]] = hand
        own = [self.by_name[name].units if name in self.by_name else 0 for name in names]
        remaining = [units + more for units, more in zip(states.remaining, own, strict=True)]
        told = Answer.of(answer.charges, states._replace(remaining=remaining), taken=taken)
        told.is_rejected = answer.is_rejected
        return told

    def _receipt(self, name: str, hand: Hand) -> Verdict:
        """Return the receipt for the units in hand, which are then no longer in it."""
        self.held.pop(name, None)
        units, hand.units = hand.units, 0
        return Verdict(True, 0, 0.0, 0.0, 0.0, False, hand.at_us, hand.charge, units, hand.at_us)

    def due(self, call: Call, now: float) -> list[Verdict]:
        """Return receipts for a call to give back: units of its shards whose interval is over."""
        over = [name for name, hand in islice(self.held.items(), MAX_RETURNED) if now >= hand.until]
        if over and self.shard_of:
            shards = {self.shard_of(charge) for charge in call}
            over = [name for name in over if self.shard_of(self.held[name].charge) in shards]
        receipts = [self._receipt(name, self.held[name]) for name in over]
        return [receipt for receipt in receipts if receipt.spent]

    def idle(self, now: float) -> list[Verdict]:
        """Return receipts for all units that nobody has asked for of late. now: inf = for all units."""
        receipts = []
        for name, hand in [*self.held.items()]:
            if now >= hand.until or now >= hand.touched_at + IDLE_SECONDS:
                receipts.append(self._receipt(name, hand))
                if hand.least == inf:
                    hand.until = -inf
        return receipts

    def refund(self, verdict: Verdict, now: float) -> bool:
        """Put the units of a verdict back into the hand that they came from; return whether it is still there."""
        hand = self._live(verdict, now)
        if hand is None or not verdict.spent or verdict.soft_exceeded or hand.at_us != verdict.spent_at_us:
            return False
        hand.units += verdict.spent
        self.held.setdefault(verdict.charge.key + verdict.charge.limit.tag, hand)
        verdict.mark_refunded()
        return True

    def add_own(self, verdicts: Iterable[Verdict], now: float) -> None:
        """Add the units in hand to what these verdicts of a peek say to be left."""
        for verdict in verdicts:
            if (hand := self._live(verdict, now)) is not None:
                verdict.remaining += hand.units
                if not verdict.allowed and verdict.charge.cost <= hand.units:
                    verdict.allowed, verdict.retry_after = True, 0.0

    def _live(self, verdict: Verdict, now: float) -> Hand | None:
        """Return the hand whose units may be spent on this verdict's charge."""
        hand = self.by_name.get(verdict.charge.key + verdict.charge.limit.tag)
        is_live = hand is not None and now < hand.until and not hand.is_fetching and hand.limit == verdict.charge.limit
        return hand if is_live else None

    def _has_room(self, now: float) -> bool:
        """Return whether a hand can be added; drop those whose intervals are over if there are too many."""
        if len(self.by_name) >= self.most and now >= self._swept_at + 1.0:
            self._swept_at, hands = now, [*self.by_name.items()]
            self.by_name = {name: hand for name, hand in hands if hand.units or hand.is_fetching or now < hand.until}
        return len(self.by_name) < self.most

    def forget(self, name: str) -> None:
        """Drop a hand, if there is one."""
        self.by_name.pop(name, None)
        self.held.pop(name, None)

    def lose(self) -> None:
        """Drop all hands: the engine is lost, and units stay charged until their window is over."""
        self.by_name.clear()
        self.held.clear()
