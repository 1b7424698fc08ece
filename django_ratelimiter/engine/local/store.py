"""What a process knows by itself: units in hand, remembered rejections, callers seen lately, and usage to send.

One `LocalCounters` serves all threads and event loops of a process. `engine` decides by it, and keeps it up to date.

A process charges some units in advance, in the call that decides a request, and spends them without a call. For each
counter there is a hand, which is renewed for an interval, the rule's `sync_interval`:

    a first visit in an interval     no hand: the engine decides it, and only the caller is noted
    a second one                     a hand: the call wants one more unit
    the interval is over             the next call wants half as much again as was asked for in it, and one
    the units are spent              the next call wants twice as many
    fewer came, much is left         the next call wants as many
    a rejection, or fewer came and   the units are scarce: until the interval is over, this process makes no call for
    not `MUCH` is left               this counter, and rejects what the units in hand do not cover

Units end with a window that resets at its end. What is left goes back with a later call to the same shard, or by
`give_back`. A remembered rejection is a hand without units that is scarce for as long. Times are monotonic seconds of
this process; names that end in `_us` are microseconds of the engine's clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from math import ceil, inf
from threading import Lock, Thread, current_thread
from typing import Any, Final

from ..base import Charge, Counted, Verdict, Version
from ..call import NO_CHARGES, Answer, Call, CounterStates, LocalAnswer
from ..locks import freed_by_fork
from ..memory import MemoryEngine
from ..usage import UsageBuffer, extras_after, field_of, joined, lines_of, name_of, uncounted

#: Units that were not touched for so many seconds are given back, even if their interval is not over. A thread looks
#: for them twice as often.
IDLE_SECONDS: Final = 0.5

#: Maximum number of receipts that one call gives back.
MAX_RETURNED: Final = 50

#: For how many intervals a caller counts as seen after a request that was decided here.
KEPT_INTERVALS: Final = 8

#: How many times as much as was wanted must be left for units not to be scarce if fewer came. By less, a flood at a
#: sliding window would make a call for each unit that is free again.
MUCH: Final = 4


@dataclass(slots=True, eq=False)
class Hand:
    """The units of one counter that this process has in hand, and what the engine's latest reply has said of it.

    charge, version: of the latest call that fetched. until: the end of the interval. at_us: when the units were
    charged. demand: what was asked for in the interval. want: what the next call in it wants, with its cost.
    least: costs from here on are rejected until the interval is over, unless the units cover them; inf = they are not.
    ahead_us: by how much the engine's clock is ahead of this process's; 0 = it has not replied yet. passes_at: when a
    rejected cost passes, as the engine said.
    """

    charge: Charge
    version: int | Version | None
    until: float = -inf
    units: int = 0
    at_us: int = 0
    demand: int = 0
    want: int = 0
    least: float = inf
    is_fetching: bool = False
    touched_at: float = -inf
    remaining: int = 0
    reset_at: float = -inf
    passes_at: float = -inf
    ahead_us: int = 0

    def is_of(self, charge: Charge, version: int | Version | None) -> bool:
        """Return whether its units may be spent on this charge, by rules of this version."""
        own, same_version = self.charge, self.version is version or self.version == version
        return same_version and (own[1] is charge[1] or own[1] == charge[1]) and own[6] == charge[6]  # limit, max_delay

    def is_idle(self, now: float) -> bool:
        """Return whether it holds nothing, and its interval is over."""
        return not (self.units or self.is_fetching or now < self.until)

    def wait(self, cost: int, now: float) -> int:
        """Return the microseconds to wait for a cost that is rejected here; -1 = for ever; 0 = it is not.

        While a call fetches, it is decided as before that, but a rejected caller is to wait only until its reply.
        """
        if cost > self.charge.limit.capacity:
            return -1
        if cost < self.least or not (now < self.until or self.is_fetching):
            return 0
        return 1_000 if self.is_fetching else ceil((max(self.until, self.passes_at) - now) * 1_000_000)


class LocalCounters:
    """What one process decides by, without the engine. Whoever calls its methods holds `lock`, unless they say so.

    denial_memory: maximum seconds for which a rejection is remembered; 0 = not at all. ask_interval: seconds after
    which the engine is called in any case, to notice new rules. max_counters: maximum number of each: hands, and
    callers seen. clock: monotonic seconds; with another than the default, no thread gives back what is in hand.
    memory: decides what is purely local. usage_buffer: usage that the engine has not counted.
    """

    def __init__(
        self,
        denial_memory: float = 0.0,
        ask_interval: float = 1.0,
        max_counters: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
        memory: MemoryEngine | None = None,
        usage_buffer: UsageBuffer | None = None,
    ) -> None:
        self.denial_memory, self.ask_interval = denial_memory, ask_interval
        self.max_counters, self.now = max_counters, clock
        self.memory: MemoryEngine = memory or MemoryEngine(max_counters=max_counters, counts_usage=False)
        self.usage: UsageBuffer = UsageBuffer(clock=clock) if usage_buffer is None else usage_buffer
        #: The engine for threads to which units are given back.
        self.engine: Any = None
        self.clear()
        freed_by_fork(self)

    def clear(self) -> None:
        """Drop everything, also units in hand: in a forked process they belong to the parent. Call it without lock."""
        self.lock: Lock = Lock()
        self.memory = self.memory.fresh_copy()
        #: By the names of the counters: all hands, and those with units, the earliest first.
        self.hands: dict[str, Hand] = {}
        self.held: dict[str, Hand] = {}
        #: The partitions of callers of rules with units in advance, and until when they "come again".
        self.seen: dict[str, float] = {}
        #: When to ask the engine whether the rules are new.
        self.due_at: float = -inf
        #: Gives back what is in hand once the process is idle.
        self.thread: Thread | None = None

    _at_fork_reinit = clear

    def comes_again(self, call: Call, now: float) -> bool:
        """Return whether a caller was seen lately; else note that all of the call are seen now. Needs no lock."""
        seen, partitions, comes_again = self.seen, call.partitions, False
        terms = call.template.local
        for place in terms.callers:
            comes_again |= seen.get(partitions[place], now) > now
        if not comes_again:
            for place in terms.callers:
                seen[partitions[place]] = now + terms.interval
        if len(seen) > self.max_counters:
            seen.clear()
        return comes_again

    def decide(
        self, call: Call, version: int | Version | None, now: float, *, rejected: bool, refunds: bool
    ) -> Answer | None:
        """Return the answer if it is decided here, and count it; `None` = the engine must be asked.

        rejected: the call is rejected already. refunds: if it is rejected, the engine must refund something.
        """
        charges, terms = call.template.charges, call.template.local
        hands, waits, is_known = [], [0] * len(charges), terms.is_fetched
        for place, hand in enumerate(map(self.hands.get, call.names())):
            charge = charges[place]
            if hand is None or not (hand.ahead_us and hand.is_of(charge, version)):
                return None  # not known, or not yet
            hands.append(hand)
            if charge[2] > hand.units or now >= hand.until:  # [2] = its cost; by name takes longer
                waits[place] = wait = hand.wait(charge.cost, now)
                if not wait:
                    is_known = False
                elif charge.gating:
                    rejected = True
        if refunds if rejected else not is_known:
            return None
        at_us = hands[0].ahead_us + int(now * 1_000_000)
        remaining, resets, leads = [], [], []
        for hand, charge, wait in zip(hands, charges, waits, strict=True):
            hand.demand += charge[2]
            hand.touched_at = now
            if not (rejected or wait):
                hand.units -= charge[2]
            remaining.append(hand.remaining + hand.units)
            reset = hand.reset_at - now
            resets.append(int(reset * 1_000_000) if reset > 0 else 0)
            leads.append(hand.at_us - at_us)  # a receipt names the time at which the units were charged
        answer = LocalAnswer.of(call, CounterStates(at_us, remaining, waits, resets, leads))
        answer.is_rejected = rejected
        for place in terms.callers:
            self.seen[call.partitions[place]] = now + terms.interval * KEPT_INTERVALS
        self.count(answer)
        return answer

    def count(self, answer: Answer, so_far: tuple[Counted, ...] = ()) -> None:
        """Count a call that was decided here. so_far: as in `Call`, if not as its call says."""
        template, so_far = answer.charges.template, so_far or answer.charges.so_far
        if template.is_counted or so_far or answer.charges.settled:
            counted = template.local.counted
            if counted is None:
                counted = joined(lines_of(answer.charges), "a" * len(template.charges))
                template.local.counted = None if template.counts_callers else counted
            if so_far or answer.is_rejected or not answer.is_local or any(answer.states.waits):
                counted = name_of(field_of(answer, is_rejected=answer.is_rejected, so_far=so_far), answer)
            for extra in extras_after(answer.charges, answer, is_rejected=answer.is_rejected, so_far=so_far):
                self.usage.add(answer.states.at_us // 60_000_000, extra.field, extra.units, waits=True)
            if counted:
                self.usage.add(answer.states.at_us // 60_000_000, counted, waits=True)

    def fetch(
        self, call: Call, version: int | Version | None, now: float, *, comes_again: bool
    ) -> tuple[Call, dict[int, Hand]]:
        """Return the call for what is not decided here, and the hands that it fetches for, by their places.

        Afterwards call `settle`, or `forget` these. comes_again: else it only gives back.
        """
        template, fetching, wants, returned = call.template, {}, [0] * len(call), self._due(call, now)
        for place, name in enumerate(call.names() if comes_again or not template.local.is_exact else ()):
            cost, hand = template.charges[place].cost, self.hands.get(name)
            fetches = comes_again and cost > 0
            if hand is None and fetches and self._has_room(now):
                hand = self.hands[name] = Hand(call[place], version)
            if hand is None:
                continue
            is_own, is_over = hand.is_of(call[place], version), now >= hand.until or hand.version != version
            fetches = fetches and not hand.is_fetching and (is_over or (is_own and hand.units < cost < hand.least))
            if fetches or hand.least < inf:  # else the engine might reject what is in hand
                returned += self._receipts([name])
            if fetches and is_over:
                hand.want = -(-3 * hand.demand // 2) + 1 if hand.demand else 2 * cost
                hand.until = now + (call[place].sync_interval or 0.0)
                hand.charge, hand.version, hand.demand = call[place], version, 0
                hand.ahead_us = hand.ahead_us if is_own else 0
            if fetches:
                hand.is_fetching, wants[place], fetching[place] = True, max(hand.want - cost, 0), hand
            hand.demand += cost
            hand.touched_at = now
        return (call.fetching(wants, returned) if fetching or returned else call), fetching

    def settle(self, fetching: dict[int, Hand], version: int | Version | None, answer: Answer, began: float) -> Answer:
        """Store the answer to a call that began then. Return it with what is in hand as remaining."""
        now, call, states, remaining = self.now(), answer.charges, answer.states, [*answer.states.remaining]
        # A rejection that is charged must reach the engine each time, and so must that of a lease.
        repeats = self.denial_memory and answer.retry_after and not any(each.count_refusals for each in call)
        for place, name in enumerate(call.names()):
            hand, wait, reset = self.hands.get(name), states.waits[place], states.resets[place] / 1_000_000
            if repeats and (hand.is_idle(now) if hand else self._has_room(now)):
                holds = 0.0 if call[place].limit.holds_leases else min(self.denial_memory, wait / 1_000_000)
                hand = self.hands[name] = fetching[place] = Hand(call[place], version, now + holds)
            if hand and hand is fetching.get(place):  # else it was reset, or fetches nothing
                hand.is_fetching, hand.ahead_us = False, states.at_us - int(now * 1_000_000)
                hand.remaining, hand.reset_at, hand.passes_at = remaining[place], now + reset, now + wait / 1_000_000
                if wait > 0:
                    hand.least = min(hand.remaining + 1, hand.charge.cost)
                elif answer.is_rejected:
                    hand.until = -inf  # by another charge, which says nothing of this one
                else:
                    hand.units, hand.least = answer.taken[place] if answer.taken else 0, inf
                    hand.at_us, wanted = states.at_us + states.leads[place], hand.want - hand.charge.cost
                    if hand.units >= wanted:
                        hand.want *= 2
                    elif hand.remaining < MUCH * wanted:
                        hand.least = 1
                    if hand.charge.limit.traits.resets_at_end:  # never too late: the reply came after the call began
                        hand.until = min(hand.until, began + reset)
                    self.held[name] = hand
            remaining[place] += hand.units if hand else 0
        self._watch()
        told = Answer.of(call, states._replace(remaining=remaining), taken=answer.taken)
        told.is_rejected = answer.is_rejected
        return told

    def _due(self, call: Call, now: float) -> list[Verdict]:
        """Return receipts for a call to give back: units of its shards whose interval is over."""
        over = [name for name, hand in islice(self.held.items(), MAX_RETURNED) if now >= hand.until]
        if over and getattr(self.engine, "shards", 1) > 1:
            shards = {self.engine.shard_of(charge) for charge in call}
            over = [name for name in over if self.engine.shard_of(self.held[name].charge) in shards]
        return self._receipts(over)

    def _receipts(self, names: Iterable[str]) -> list[Verdict]:
        """Return receipts for the units of these hands, which are then no longer in them."""
        receipts = []
        for hand in [self.held.pop(name) for name in names if name in self.held]:
            if hand.units:
                at_us, charge = hand.at_us, hand.charge
                receipts.append(Verdict(True, 0, 0.0, 0.0, 0.0, False, at_us, charge, hand.units, at_us))
                hand.units = 0
        return receipts

    def put_back(self, verdicts: Iterable[Verdict]) -> None:
        """Put the units of these verdicts back into the hands that they came from, where these are still there."""
        for verdict in verdicts:
            hand = self.hands.get(name := verdict.charge.key + verdict.charge.limit.tag)
            if hand and hand.at_us == verdict.spent_at_us and not (hand.is_fetching or verdict.soft_exceeded):
                hand.units += verdict.spent
                self.held.setdefault(name, hand)
                verdict.mark_refunded()

    def add_own(self, verdicts: Iterable[Verdict]) -> None:
        """Add the units in hand to what these verdicts of a peek say to be left."""
        for verdict in verdicts:
            hand = self.hands.get(verdict.charge.key + verdict.charge.limit.tag)
            if hand is not None and self.now() < hand.until:
                verdict.remaining += hand.units
                if not verdict.allowed and verdict.charge.cost <= hand.units:
                    verdict.allowed, verdict.retry_after = True, 0.0

    def _has_room(self, now: float) -> bool:
        """Return whether a hand can be added. If there are too many, the oldest makes room, once it is idle."""
        if len(self.hands) >= self.max_counters:
            name = next(iter(self.hands))
            hand = self.hands.pop(name)
            if not hand.is_idle(now):
                self.hands[name] = hand  # behind the others
        return len(self.hands) < self.max_counters

    def forget(self, names: Iterable[str]) -> None:
        """Drop these hands, if there are any. Their units stay charged."""
        for name in names:
            self.hands.pop(name, None)
            self.held.pop(name, None)

    def give_back(self, now: float) -> None:
        """Give back what nobody has asked for of late, and send usage that is due. Raises as the engine does.

        now: inf = all. Units that cannot be given back stay charged. Call it without lock.
        """
        with self.lock:
            idle = [name for name, hand in self.held.items() if now >= min(hand.until, hand.touched_at + IDLE_SECONDS)]
            for hand in [self.held[name] for name in idle]:
                hand.until = -inf if hand.least == inf else hand.until
            receipts = self._receipts(idle)
        for start in range(0, len(receipts), MAX_RETURNED):
            self.engine.refund(uncounted(receipts[start : start + MAX_RETURNED]))
        while now >= self.usage.due_at and (counts := self.usage.lease()):
            with self.usage.sending(counts):
                self.engine.check(NO_CHARGES, counts=counts)

    def _watch(self) -> None:
        """Let a thread give back what is in hand once the process is idle."""
        if self.held and self.thread is None and self.now is time.monotonic and self.engine is not None:
            thread = Thread(target=self._give_back_when_idle, name="ratelimiter-units", daemon=True)
            with suppress(RuntimeError):  # there can be no more threads, or the process ends
                thread.start()
                self.thread = thread

    def _give_back_when_idle(self) -> None:
        while True:
            time.sleep(IDLE_SECONDS / 2)
            if self.thread is not current_thread():
                return  # all was dropped, and another thread may have begun
            with suppress(Exception):  # the engine is out of reach
                self.give_back(self.now())
            with self.lock:
                if self.thread is current_thread() and not (self.held or self.usage):
                    self.thread = None
                    return
