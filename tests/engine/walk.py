"""A walk: calls of all kinds at random moments, made from one `Random`, on a trio that compares each answer."""

from __future__ import annotations

from random import Random

from django_ratelimiter.engine import Algorithm, Charge, Limit, Verdict
from tests.engine.strategies import changed_by, cost_by, limit_by, pause_by
from tests.engine.trio import HOUR, Receipt, Trio
from tests.reference import period_of

#: Times stay between 2001 and 2096, so that what takes 100 years more is still exact in Redis.
EARLIEST, LATEST = 10**15, 4 * 10**15

#: Around these moments (Unix seconds) the clocks of one of the zones are changed.
CHANGES = (
    *(1_498_867_200, 1_508_029_200, 1_518_919_200, 1_553_378_400, 1_572_138_000, 1_289_095_200),  # 2010 to 2019
    *(1_325_239_200, 1_711_846_800, 1_729_990_800, 1_740_782_400, 1_762_063_200, 1_775_314_800, 1_792_890_000),
)


class Walk:
    """Calls on keys k0, k1, … of which k0 has a limit of the algorithm asked for and is part of every call.

    random: makes every choice. steps: the checks and peeks made so far.
    """

    def __init__(self, trio: Trio, random: Random, limits: list[Limit]) -> None:
        self.trio, self.random, self.steps = trio, random, 0
        self._limits = {f"k{number}": limit for number, limit in enumerate(limits)}
        self._left: dict[str, int] = {}
        self._receipts: list[Receipt] = []
        if any(limit.calendar for limit in limits) and random.randrange(4):
            trio.now = random.choice(CHANGES) * 1_000_000 + random.randint(-(2**38), 2**38)
        else:
            trio.now = HOUR + random.randint(0, 2 * period_of(limits[0]))

    def go(self, steps: int, *, editing: bool = False) -> None:
        """So many checks and peeks, with changes of all kinds between them. editing: change a limit after each."""
        while self.steps < steps:
            if editing:
                self._edit()
            match self.random.randrange(40):
                case 0 | 1 | 2:
                    receipts = self._some_receipts()
                    if self.random.randrange(2):
                        self._lower(receipts[:1])
                    self.trio.refund(receipts)
                case 3 | 4:
                    self.trio.release(self._some_receipts())
                case 5:
                    self._edit()
                case 6 if self.random.randrange(4) == 0:
                    self.trio.reset(self._charges())
                case _:
                    self._ask()

    def _ask(self) -> None:
        """One check or peek, and on to the next moment."""
        charges = self._charges()
        if self.random.randrange(8):
            given = self._some_receipts() if self.random.randrange(4) == 0 else []
            options = {"reject": self.random.randrange(12) == 0}
            if self.random.randrange(3) == 0:
                left = [(charge.limit, self._left.get(charge.key)) for charge in charges]
                options["wants"] = [self.random.choice((0, 1, cost_by(self.random, *each))) for each in left]
            if self.random.randrange(6) == 0:
                returned = {id(each): each for each in self._some_receipts() if each not in given}
                options["returned"] = [*returned.values()]
            receipts = self.trio.check(charges, given, **options)
            self._receipts = (self._receipts + receipts)[-12:]
        else:
            receipts = self.trio.peek(charges)
        self.steps += 1
        for charge, receipt in zip(charges, receipts, strict=True):
            self._left[charge.key] = receipt.memory.remaining
        asked = self.random.randrange(len(charges))
        self._wait(charges[asked].limit, receipts[asked].memory)

    def _wait(self, limit: Limit, verdict: Verdict) -> None:
        promised = [seconds for seconds in (verdict.retry_after, verdict.reset_after, verdict.delay) if seconds]
        match self.random.randrange(3):
            case 0:
                pause = 0
            case 1 if promised:
                pause = round(self.random.choice(promised) * 1_000_000) - self.random.randrange(2)
            case _:
                pause = pause_by(self.random, self.trio.now, limit)
        if not EARLIEST < self.trio.now + pause < LATEST:
            pause = self.random.randint(-10, 10)
        self.trio.now += pause

    def _charges(self) -> list[Charge]:
        others = [key for key in self._limits if key != "k0" and self.random.randrange(2)]
        return [self._charge(key) for key in ("k0", *others)]

    def _charge(self, key: str) -> Charge:
        random, limit = self.random, self._limits[key]
        return Charge(
            key,
            limit,
            cost_by(random, limit, self._left.get(key)),
            gating=random.randrange(4) > 0,
            count_refusals=random.randrange(4) == 0,
            max_delay=self._max_delay(limit) if random.randrange(2) else None,
        )

    def _max_delay(self, limit: Limit) -> float:
        """Seconds, in whole milliseconds: what a few units take to drain, or the whole bucket."""
        capacity = limit.burst or limit.quota
        unit = period_of(limit) // 1_000 / limit.quota
        most = int(self.random.choice((0, 3 * unit, capacity * unit)))
        return self.random.randint(0, most) / 1_000

    def _some_receipts(self) -> list[Receipt]:
        return self.random.choices(self._receipts, k=self.random.randint(1, 3)) if self._receipts else []

    def _lower(self, receipts: list[Receipt]) -> None:
        """Let these refund only a part of what they spent."""
        for receipt in receipts:
            spent = self.random.randint(0, receipt.memory.spent)
            for each in filter(None, receipt):
                each.spent = spent

    def _edit(self) -> None:
        """Change a limit: mostly what keeps its counters, sometimes what starts from zero."""
        key = self.random.choice(list(self._limits))
        before = self._limits[key]
        if self.random.randrange(4):
            self._limits[key] = changed_by(self.random, before)
        else:
            self._limits[key] = limit_by(self.random, Algorithm(before.algorithm))
