"""Both engines and the reference, asked the same and compared answer by answer.

Where no server runs, `MemoryEngine` and the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from django_ratelimiter.engine import Charge, Limit, MemoryEngine, Verdict
from django_ratelimiter.engine.call import Call
from tests.reference import Answer, Reference, differences

if TYPE_CHECKING:
    from django_ratelimiter.engine.redis import RedisEngine

#: A whole hour in 2037, at which the examples begin: in the past, recent rejections would be a day old and gone.
HOUR = 590_000 * 3_600_000_000

_numbers = count()


class Receipt(NamedTuple):
    """The equal answers to one charge."""

    memory: Verdict
    redis: Verdict | None
    reference: Answer


class Trio:
    """A MemoryEngine, a RedisEngine and the Reference, over keys that nobody else has used.

    now: the time of the next call, in microseconds since the Unix epoch.
    """

    def __init__(self, redis: RedisEngine | None) -> None:
        self.now = HOUR
        self.memory = MemoryEngine()
        self.redis = redis
        self.reference = Reference()
        self._mark = f"{next(_numbers)}/"

    def check(
        self,
        charges: Sequence[Charge],
        refund_if_denied: Sequence[Receipt] = (),
        *,
        reject: bool = False,
        wants: Sequence[int] = (),
        returned: Sequence[Receipt] = (),
    ) -> list[Receipt]:
        """Check on all three; the equal answers to each charge."""
        charges = self.own(charges)
        memory, redis, reference = _of_each(refund_if_denied)
        back, back_to_redis, back_to_reference = _of_each(returned)
        # What is refunded changes the counters that the reference's answers are still to be held against.
        answers = self.reference.check(charges, self.now, reject=reject, wants=wants, returned=back_to_reference)
        options = {"now_us": self.now, "reject": reject}
        ours = self.memory.check(Call.of(charges).fetching(wants, back), refund_if_denied=memory, **options)
        theirs = None
        if self.redis:
            call = Call.of(charges).fetching(wants, back_to_redis)
            theirs = self.redis.check(call, refund_if_denied=redis, **options)
        taken = tuple(answer.taken for answer in answers) if any(wants) else None
        for answer in filter(None, (ours, theirs)):
            assert (answer.taken and tuple(answer.taken)) == taken
        receipts = self._compared([*ours], theirs and [*theirs], answers)
        self._compare_spent(returned)
        if reject or any(answer.charge.gating and not answer.allowed for answer in answers):
            self.reference.refund(reference)
        self._compare_spent(refund_if_denied)
        return receipts

    def peek(self, charges: Sequence[Charge]) -> list[Receipt]:
        """Peek on all three; the equal answers to each charge."""
        charges = self.own(charges)
        return self._compared(
            self.memory.peek(charges, self.now),
            self.redis and self.redis.peek(charges, self.now),
            self.reference.peek(charges, self.now),
        )

    def refund(self, receipts: Sequence[Receipt]) -> None:
        """Give the receipts back to all three."""
        self._end("refund", receipts)

    def release(self, receipts: Sequence[Receipt]) -> None:
        """End the leases of these receipts on all three."""
        self._end("release", receipts)

    def _end(self, method: str, receipts: Sequence[Receipt]) -> None:
        for name in ("memory", "redis", "reference"):
            if engine := getattr(self, name):
                getattr(engine, method)([getattr(receipt, name) for receipt in receipts])
        self._compare_spent(receipts)

    def reset(self, charges: Sequence[Charge]) -> None:
        """Forget these keys on all three."""
        charges = self.own(charges)
        for engine in filter(None, (self.memory, self.redis, self.reference)):
            engine.reset(charges)

    def one(self, limit: Limit, cost: int = 1, *, key: str = "key") -> Verdict:
        """Check a single charge; the verdict on it."""
        return self.check([Charge(key, limit, cost)])[0].memory

    def own(self, charges: Sequence[Charge]) -> list[Charge]:
        """These charges over keys of this trio's own."""
        return [charge._replace(key=self._mark + charge.key) for charge in charges]

    def _compared(self, memory: list[Verdict], redis: list[Verdict] | None, answers: list[Answer]) -> list[Receipt]:
        receipts = [Receipt(*three) for three in zip(memory, redis or [None] * len(memory), answers, strict=True)]
        for receipt in receipts:
            wrong = differences(receipt.memory, receipt.reference)
            assert not wrong, f"MemoryEngine differs at {self.now} in {wrong}: {receipt.memory}"
            if self.redis:
                assert receipt.redis == receipt.memory, f"RedisEngine differs at {self.now} from MemoryEngine"
            assert receipt.memory.at_us == self.now
        return receipts

    def _compare_spent(self, receipts: Sequence[Receipt]) -> None:
        for receipt in receipts:
            assert receipt.memory.spent == receipt.reference.spent
            if receipt.redis:
                assert receipt.redis.spent == receipt.memory.spent


def _of_each(receipts: Sequence[Receipt]) -> tuple[tuple[Any, ...], ...]:
    return tuple(zip(*receipts, strict=True)) or ((), (), ())
