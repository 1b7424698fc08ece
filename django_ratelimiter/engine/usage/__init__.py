"""The encoding of usage: one count per minute for each set of labels and the outcomes of their charges.

A field is the labels of a call's charges, one per line, then a line with a letter for each charge: `a` allowed, `s`
allowed beyond its soft quota, `d` rejected by its rule, `o` allowed by its rule, but rejected by another, `x` exempt;
in capitals if a process decided without the engine. A shadow charge's line starts with `~`; that of a charge that is
not counted has no label. An allowed request costs 1 unit, or the number after a tab at the end of its rule's line; an
exempt one 0. Units beyond that are counted under the label and the letter `+`, whatever their number: see `Extra`.

If a charge is `exact`, a vertical tab and the caller follow its label: its partition with the tail. So callers are
counted, corrected and collected as their rules are, and add up to the same. A process and a shard of Redis count up to
a number of callers that wait to be collected, then further ones together, as a caller without a name.

If earlier calls for the same request were counted, their lines and letters come first, each line after `~~`, the number
of minutes since then and a colon. So the field of a later call says what has become of the request: if that call
rejects it, rules that allowed it before are counted as `o` instead, in their minute; if its letters are `x`, rules that
did not allow it are counted as `x`. And the requests can be counted, too, whatever rules match them: see `requests_of`.

A named field also has a line, after a tab, for each counter that rejected the call. It is used for the list of recent
rejections: see `rejections`. A process sends its own decisions in this form; they are counted under the field alone.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from threading import Lock
from typing import Final, NamedTuple
from uuid import uuid4

from ..base import NEVER, Charge, Counted, UsageCount, Verdict, tail_of
from ..call import Call
from ..limits import Limit
from ..partition_stats import MINUTE_US

SHADOW = "~"

#: The letter of a field that counts units.
UNITS: Final = "+"

#: Between a label and the caller.
CALLER: Final = "\v"

#: Callers, one in each minute in which it comes, that a shard counts apart since the latest batch was collected, each
#: with some 250 bytes. check.lua has the same number.
MAX_CALLERS: Final = 500_000
_CALLER_AND: Final = re.compile(f"{CALLER}[^\\t\\n]*")

#: The beginning of the lines of earlier calls for the same request.
CONTINUES: Final = "~~"

#: The outcomes of a request under one rule, each outweighing those before it: `w` = a shadow charge rejects it.
_OF_RULE: Final = "+asowdx"

#: Those of the request itself, which is rejected if any rule rejects it, unless the caller is exempt.
_OF_REQUEST: Final = "aswodx"

#: The counts of `UsageCount` that an outcome adds to.
_COLUMNS: Final = {"a": (0,), "s": (0, 3), "d": (1,), "w": (2,), "o": (5,), "x": (0, 6), UNITS: ()}
_DEGRADED, _EXTRA = 4, 7

#: The prefix of each counter in a named field.
COUNTER: Final = "\n\t"

#: The field that only converts a Redis hash to a table, see check.lua.
FILLER = ""


#: Maximum number of entries that one call carries, so that no call takes the server long.
MAX_CARRIED: Final = 100

#: Maximum number of named fields that are counted before they are sent. Further ones do not reach the list.
MAX_NAMED: Final = 50

#: Seconds after which leased counts without an answer are leased again: their task was cancelled.
LEASE_SECONDS: Final = 60.0

#: Seconds for which counts may wait, if they are added so.
WAITING_SECONDS: Final = 1.0

#: Seconds after which counts are sent again if their own shard was out of reach, but the call itself succeeded.
RESEND_SECONDS: Final = 1.0


#: A minute since the Unix epoch, a field, and the calls or units to add to it.
Entry = tuple[int, str, int]


@dataclass(slots=True)
class UsageCarry:
    """Counts of a process that are sent to the engine, which adds counts with the same id only once.

    id: empty if they are sent only once. shard: the one that they were sent to, if the engine has several, until it is
    known whether they have arrived: they can only be sent there again. `None` = any shard.
    """

    id: str
    entries: tuple[Entry, ...]
    shard: int | None = None


def label_of(charge: Charge) -> str | None:
    """Return the label that a charge is counted under, with its caller if it is exact."""
    label = charge.usage
    if label is None or not charge.exact:
        return label
    return with_caller(label, charge.key if charge.partition is None else charge.partition)


def with_caller(label: str, caller: str) -> str:
    """Return the label that this caller is counted under."""
    if any(mark in caller for mark in ("\t", "\n", CALLER)):
        raise ValueError("partition: of an exact charge, it is one line of text without tabs.")
    return f"{label}{CALLER}{caller}{tail_of(caller)}"


def without_callers(field: str) -> str:
    """Return the field that counts the same for all callers together."""
    return _CALLER_AND.sub(CALLER, field)


def line_of(label: str | None, *, gating: bool, cost: int | None = None) -> str:
    """Return the line of a charge. label: `None` = it is not counted. cost: the usual one."""
    return f"{'' if gating else SHADOW}{label or ''}" + (f"\t{cost}" if label and cost not in (1, None) else "")


def lines_of(charges: Iterable[Charge]) -> list[str]:
    """Return the line of each charge."""
    return [line_of(label_of(charge), gating=charge.gating, cost=charge.usual_cost) for charge in charges]


class Extra(NamedTuple):
    """Units of a label that its charges in a call cost beyond the usual cost. A label with several charges counts once.

    They are counted if all charges of these places are allowed and the call is not rejected; if_rejected: if it is.
    """

    places: tuple[int, ...]
    label: str
    units: int
    if_rejected: bool = False

    @property
    def field(self) -> str:
        """The field that they are counted under."""
        return f"{self.label}\n{UNITS}"

    def applies(self, passed: Sequence[bool], *, is_rejected: bool) -> bool:
        """Return whether they are counted. passed: whether each charge of the call is allowed."""
        return is_rejected is self.if_rejected and all(passed[place] for place in self.places)


def extras_of(call: Call, so_far: Sequence[Counted] | None = None) -> list[Extra]:
    """Return the units to count apart, if the call is allowed or rejected. so_far: `None` = as the call says."""
    template = call.template
    extras: list[Extra] | None = template.extras
    if template.counts_callers:
        extras = _extras_of(call)
    elif extras is None:
        extras = template.extras = _extras_of(template.charges)
    so_far = call.so_far if so_far is None else so_far
    if not (so_far or call.settled):
        return extras
    settled = [Extra((), label, units) for label, units in (call.settled or {}).items()]
    return [*extras, *_corrections_of(so_far), *settled]


def extras_after(
    call: Call, verdicts: Iterable[Verdict], *, is_rejected: bool, so_far: Sequence[Counted] | None = None
) -> list[Extra]:
    """Return those of the same that are counted after this decision on the call."""
    extras = extras_of(call, so_far)
    return [each for each in extras if each.applies([verdict.allowed for verdict in verdicts], is_rejected=is_rejected)]


def _extras_of(charges: Iterable[Charge]) -> list[Extra]:
    places: dict[str, list[int]] = {}
    units: dict[str, int] = {}
    for place, charge in enumerate(charges):
        label = None if charge.usual_cost is None or charge.cost >= NEVER else label_of(charge)
        if label is not None:
            places.setdefault(label, []).append(place)
            units.setdefault(label, charge.cost - (charge.usual_cost or 0))
    return [Extra(tuple(some), label, units[label]) for label, some in places.items() if units[label]]


def _corrections_of(so_far: Iterable[Counted]) -> list[Extra]:
    """Return the units of earlier calls for a request that are taken back if a later one rejects it."""
    if any(each.letter in "doDO" and not each.line.startswith(SHADOW) for each in so_far):
        return []  # it was rejected already
    return [Extra((), label_in(each.line), -each.units, if_rejected=True) for each in so_far if each.units]


def refunded(receipts: Iterable[Verdict], minute: int) -> tuple[Entry, ...]:
    """Return the counts, in this minute, of the units that these receipts refund. A label of a request counts once."""
    first: dict[str, Limit] = {}
    units: dict[str, int] = {}
    for receipt in receipts:
        charge = receipt.charge
        label = label_of(charge) if charge.usual_cost is not None else None
        if label is not None and first.setdefault(label, charge.limit) == charge.limit:
            units[label] = units.get(label, 0) - receipt.spent
    return tuple((minute, Extra((), label, number).field, number) for label, number in units.items() if number)


def carried(receipts: Iterable[Verdict], minute: int) -> UsageCarry | None:
    """Return what `refunded` does, for a call to carry."""
    entries = refunded(receipts, minute)
    return UsageCarry("", entries) if entries else None


def uncounted(receipts: Iterable[Verdict]) -> list[Verdict]:
    """Return these receipts so that usage does not count what they refund."""
    return [replace(each, charge=each.charge._replace(usual_cost=None)) for each in receipts]


def label_in(line: str) -> str:
    """Return the label in a line, with its caller."""
    return line.removeprefix(SHADOW).partition("\t")[0]


def joined(lines: Sequence[str], letters: str, so_far: Iterable[Counted] = (), minute: int = 0) -> str:
    """Return the field of these lines and letters; empty if there is nothing to count. so_far: see `Call`."""
    if not (_counts(lines) or (lines and so_far)):
        return ""
    before = [f"{CONTINUES}{minute - (each.minute or minute)}:{each.line}" for each in so_far]
    return "\n".join((*before, *lines, "".join([each.letter for each in so_far]) + letters))


def _counts(lines: Iterable[str]) -> bool:
    return any(line.removeprefix(SHADOW) for line in lines)


def letter_of(verdict: Verdict, *, is_rejected: bool) -> str:
    """Return the letter of a verdict. is_rejected: its call was rejected, by whatever rule."""
    return "d" if not verdict.allowed else "o" if is_rejected else "s" if verdict.soft_exceeded else "a"


def field_of(
    verdicts: Sequence[Verdict],
    *,
    is_rejected: bool,
    so_far: Iterable[Counted] = (),
    again: Sequence[Counted] = (),
    degraded: bool = False,
) -> str:
    """Return the field that counts the call of these verdicts; empty if there is nothing to count.

    is_rejected: by whatever rule. so_far: see `Call`. again: what else to count, as if it were of this call.
    degraded: they were decided without the engine.
    """
    letters = "".join([letter_of(verdict, is_rejected=is_rejected) for verdict in verdicts])
    letters = letters.upper() if degraded else letters
    letters += "".join([each.letter if each.letter == "d" or not is_rejected else "o" for each in again])
    lines, at = lines_of([verdict.charge for verdict in verdicts]), verdicts[0].at_us if verdicts else 0
    return joined([*lines, *[each.line for each in again]], letters, so_far, at // MINUTE_US)


def continued(so_far: tuple[Counted, ...], verdicts: Sequence[Verdict], *, is_rejected: bool) -> tuple[Counted, ...]:
    """Return how a request was counted so far, after a call with these verdicts; empty if it was not counted."""
    lines = lines_of([verdict.charge for verdict in verdicts])
    if not (so_far or _counts(lines)):
        return ()
    extras, passed = _extras_of([each.charge for each in verdicts]), [each.allowed for each in verdicts]
    extra = {each.places[0]: each.units for each in extras if each.applies(passed, is_rejected=is_rejected)}
    counted = [
        Counted(verdict.at_us // MINUTE_US, line, letter_of(verdict, is_rejected=is_rejected), extra.get(place, 0))
        for place, (line, verdict) in enumerate(zip(lines, verdicts, strict=True))
    ]
    return (*so_far, *counted)


def name_of(field: str, verdicts: Iterable[Verdict]) -> str:
    """Return this field with the names of the counters that reject; the field itself if none does."""
    rejecting = [verdict.charge for verdict in verdicts if not verdict.allowed] if field else ()
    return COUNTER.join((field, *[charge.key + charge.limit.tag for charge in rejecting]))


def without_name(field: str) -> str:
    """Return a field without its names, as it is counted."""
    return field.partition(COUNTER)[0]


def counts_of(minute: int, fields: Mapping[str, int]) -> list[UsageCount]:
    """Return the counts per label of a batch of this minute. A label with several charges counts once per call.

    Those of another minute correct what earlier calls for a request have counted then.
    """
    return _summed([change for field, calls in fields.items() for change in _of_rules(minute, field, calls)])


def requests_of(minute: int, fields: Mapping[str, int]) -> list[UsageCount]:
    """Return the counts of the requests of a batch, each once, whatever rules matched it, in its first minute."""
    return _summed([change for field, calls in fields.items() for change in _of_request(minute, field, calls)])


#: What a field adds to the counts: minute, label, the letter of an outcome, the number of requests, and extra units.
_Change = tuple[int, str, str, int, int]

#: A charge in a field: the minute, the label, the letter of its outcome, and its usual cost.
_Outcome = tuple[int, str, str, int]


def _summed(changes: Iterable[_Change]) -> list[UsageCount]:
    totals: dict[tuple[int, str], list[int]] = {}
    for minute, label, letter, calls, units in changes:
        counts = totals.setdefault((minute, label), [0] * 8)
        for place in (*_COLUMNS[letter.lower()], *[_DEGRADED][: letter.isupper()]):
            counts[place] += calls
        counts[_EXTRA] += units
    return [UsageCount(*key, *counts) for key, counts in totals.items() if any(counts)]


def _of_rules(minute: int, field: str, calls: int) -> Iterator[_Change]:
    earlier, latest = _outcomes(minute, field)
    for at, label, letter, cost in _by_label(latest):
        extra = cost if letter == UNITS else cost - 1 if letter in "asAS" else -1 if letter == "x" else 0
        yield at, label, letter, calls, calls * extra
    is_exempt, was_rejected = any(letter == "x" for _, _, letter, _ in latest), _rejects(earlier)
    for at, label, letter, cost in _by_label(earlier):
        other, exempt = ("o", "x") if letter.islower() else ("O", "X")
        if is_exempt and (was_rejected or letter in "wW"):  # else its charges are refunded, and so are their units
            yield at, label, other if letter in "asAS" else letter, -calls, 0
            yield at, label, exempt, calls, -calls
        elif letter in "asAS" and _rejects(latest) and not was_rejected:
            yield at, label, letter, -calls, -calls * (cost - 1)
            yield at, label, other, calls, 0


def _of_request(minute: int, field: str, calls: int) -> Iterator[_Change]:
    earlier, latest = _outcomes(minute, field)
    at = earlier[0][0] if earlier else minute
    for outcomes, times in ((earlier, -calls), (earlier + latest, calls)):
        if outcomes and outcomes[0][2] != UNITS:
            letter = _worst([letter for _, _, letter, _ in outcomes], _OF_REQUEST)
            yield at, "", {"o": "d", "O": "D"}.get(letter, letter), times, 0


def _outcomes(minute: int, field: str) -> tuple[list[_Outcome], list[_Outcome]]:
    """Return the charges of the earlier calls for a request, and those of the latest."""
    *lines, letters = without_name(field).split("\n")
    earlier, latest = list[_Outcome](), list[_Outcome]()
    for line, letter in zip(lines, letters, strict=True):
        found, at = latest, minute
        if line.startswith(CONTINUES):
            ago, _, line = line.removeprefix(CONTINUES).partition(":")
            found, at = earlier, minute - int(ago)
        if line.startswith(SHADOW):
            letter = {"d": "w", "D": "W"}.get(letter, letter)
        cost = line.partition("\t")[2]
        found.append((at, label_in(line), letter, int(cost) if cost.isdecimal() else 1))
    return earlier, latest


def _by_label(outcomes: Iterable[_Outcome]) -> Iterator[_Outcome]:
    """Yield the outcome of each label that is counted, of all its charges."""
    found: dict[tuple[int, str], list[_Outcome]] = {}
    for each in outcomes:
        if each[1]:
            found.setdefault(each[:2], []).append(each)
    for (at, label), some in found.items():
        yield at, label, _worst([letter for _, _, letter, _ in some], _OF_RULE), some[0][3]


def _worst(letters: Sequence[str], order: str) -> str:
    """Return the letter that outweighs the others; a capital if one of them is."""
    worst = max(map(str.lower, letters), key=order.index)
    return worst.upper() if any(map(str.isupper, letters)) else worst


def _rejects(outcomes: Iterable[_Outcome]) -> bool:
    return any(letter in "doDO" for _, _, letter, _ in outcomes)


def minute_of(batch: str) -> int:
    """Return the minute, since the Unix epoch, at the beginning of a batch's name."""
    return int(batch.partition(":")[0])


def shard_of(batch: str) -> int:
    """Return the shard of a batch: the third part of its name, which shard 0 omits."""
    shard = batch.split(":")[2:]
    return int(shard[0]) if shard else 0


def in_order(batches: Iterable[str]) -> list[str]:
    """Return batches from the oldest minute to the latest."""
    return sorted(batches, key=lambda batch: (minute_of(batch), batch))


class UsageBuffer:
    """Counts of this process that the engine does not have yet. Later calls carry them; see their argument `counts`.

    For all threads of a process; after a fork they stay with the parent.
    max_fields: fields of a minute to keep, half of them with callers; further callers are counted together. Above that,
    calls are counted in the latest minute that has their field, or not at all if there is none. clock: seconds.
    is_empty: nothing to send. due_at: when to send it.
    """

    def __init__(self, max_fields: int = 10_000, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_fields = max_fields
        self._clock = clock
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._lock = Lock()
        self.is_empty: bool = True
        self.due_at: float = inf
        self._counts: dict[tuple[int, str], int] = {}
        self._leased: dict[str, tuple[UsageCarry, float]] = {}  # with the time after which it can be leased again

    def _locked(self) -> Lock:
        """The lock; after a fork a new one: in the parent another thread may have held the old one."""
        if self._pid != os.getpid():
            self._forget()
        return self._lock

    def __bool__(self) -> bool:
        """Return whether there is anything to send."""
        return not self.is_empty

    def add(self, minute: int, field: str, calls: int = 1, *, waits: bool = False) -> None:
        """Add a number of calls. field: see `field_of`; it may be a named one. waits: they may be sent later."""
        with self._locked():
            if not waits:
                self.due_at = -inf
            elif self.is_empty:
                self.due_at = self._clock() + WAITING_SECONDS
            key = (minute, field)
            if COUNTER in field and key not in self._counts and self._named() >= MAX_NAMED:
                key = minute, without_name(field)
            if 2 * len(self._counts) >= self._max_fields and CALLER in field and key not in self._counts:
                key = minute, without_callers(key[1])
            if key not in self._counts and len(self._counts) >= self._max_fields:
                alike = [kept for kept in self._counts if kept[1] == key[1]]
                if not alike:
                    return
                key = max(alike)
            self._counts[key] = self._counts.get(key, 0) + calls
            self.is_empty = False

    def _named(self) -> int:
        return sum(COUNTER in field for _, field in self._counts)

    def lease(self) -> UsageCarry | None:
        """Return counts for a call to carry; `None` if none wait. Then call `acknowledge` or `return_lease`."""
        if not self._counts and not self._leased:
            return None
        now = self._clock()
        with self._locked():
            carry = next((carry for carry, free_at in self._leased.values() if free_at <= now), None)
            if carry is None:
                keys = list(self._counts)[:MAX_CARRIED]
                if not keys:
                    return None
                carry = UsageCarry(uuid4().hex, tuple((*key, self._counts.pop(key)) for key in keys))
                self.due_at = -inf if self._counts else now + WAITING_SECONDS
            self._leased[carry.id] = carry, now + LEASE_SECONDS
            return carry

    @contextmanager
    def sending(self, carry: UsageCarry | None) -> Iterator[None]:
        """Record how a call ends that carries these counts."""
        try:
            yield
        except BaseException:
            if carry:
                self.return_lease(carry)
            raise
        if carry:
            self.acknowledge(carry)

    def acknowledge(self, carry: UsageCarry) -> None:
        """Record that the call has returned: the counts have arrived, or wait for their own shard."""
        with self._locked():
            if carry.shard is None:
                self._leased.pop(carry.id, None)
                self.is_empty = not (self._counts or self._leased)
            elif carry.id in self._leased:
                self._leased[carry.id] = carry, self._clock() + RESEND_SECONDS

    def return_lease(self, carry: UsageCarry) -> None:
        """Record that the call has failed: the counts may have arrived, so they are sent again with the same id."""
        with self._locked():
            if carry.id in self._leased:
                self._leased[carry.id], self.due_at = (carry, -inf), -inf
