"""The quota fields of decisions whose results were not read: made from the engine's numbers, by templates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import inf
from operator import itemgetter, truediv
from typing import Final, NamedTuple

from ..engine.base import NEVER
from ..engine.templates import CounterStates, FilledVerdicts
from ..values.references import DIGITS
from .policies import UntilMore, flow_of, name_of
from .syntax import LARGEST_INTEGER, MAX_LENGTH, joined, shown_limit

_new = tuple.__new__  # what a named tuple calls in the end

#: A field's name and value as Django's headers store it under the lower-case name.
Field = tuple[str, str]

#: More than the characters of the numbers of a limit in RateLimit, of ";t=", and of two commas.
_DIGITS: Final = 32

#: For no limit.
NO_FIELD: Field = "", ""


class LimitTemplate(NamedTuple):
    """The parts of the fields for a limit.

    place: of its charge in the call. state: the start of its item in RateLimit, before the remaining units. quota:
    X-RateLimit-Limit. capacity: of its counter. flow: parameters of the time, see `flow_of`; `None` = call
    `until_more`. is_closed: nothing is allowed. policies: its name, alone.
    """

    place: int
    state: str
    quota: Field
    capacity: int
    flow: tuple[int, int] | None
    until_more: UntilMore
    is_closed: bool
    policies: tuple[str, ...]
    message: str
    rule: str


class UsualStates(NamedTuple):
    """Format strings for RateLimit if each limit allows the request and has a time.

    text: takes the remaining units and the seconds of each limit. refused: the same for a rejected request, by the
    place of the only limit that rejects it. It alone has seconds, which come after that number of remaining units.
    limits: of each the place of its charge, its capacity, its flow, see `flow_of`, and its X-RateLimit-Limit.
    """

    text: str
    refused: dict[int, tuple[int, str]]
    limits: tuple[tuple[int, int, int, int, Field], ...]


class FieldTemplate(NamedTuple):
    """The fields of a call. policy: RateLimit-Policy. limits: the enforced ones.

    usual: `None` = a limit needs more than its flow, or not all may fit. capacities: of the limits. pick: selects the
    limits' values from those of all charges. by_place: the limits by the places of their charges. items: of
    RateLimit-Policy, if not all may fit; else empty.
    """

    policy: Field
    limits: tuple[LimitTemplate, ...]
    usual: UsualStates | None
    capacities: tuple[int, ...]
    pick: Callable[[Sequence[int]], Sequence[int]]
    by_place: dict[int, LimitTemplate]
    items: tuple[str, ...]


class RefusalFacts(NamedTuple):
    """The facts of a rejection.

    message: of the binding rule. seconds: to wait; `None` = for ever. reference: `None` = nothing was counted.
    binding: the limit with the longest wait; `None` = the results were read.
    """

    status: int
    message: str
    seconds: int | None
    policies: tuple[str, ...]
    reference: str | None
    binding: LimitTemplate | None = None


def allowed_fields(answer: FilledVerdicts, families: tuple[str, ...]) -> dict[str, Field]:
    """Return the fields of both families that are sent with an allowed request, by their lower-case names.

    For decisions with `is_plain`: no limit has a soft quota or delays requests. One loop, because every response waits
    for it: between two requests the CPU caches are replaced, and then each function call costs more than the steps
    that it saves, even if it is written in C.
    """
    template = answer.charges.template.kept.get(FieldTemplate) or _template_of(answer)
    usual = template.usual
    if usual is None:
        return _unusual_fields(template, answer.states, families)
    at_us, remaining, _, resets, _ = answer.states
    numbers: list[int] = []
    least, quota, tightest, have_seconds = inf, NO_FIELD, 0, True
    for place, capacity, by, per, shown in usual.limits:
        left = remaining[place]
        seconds = -(-left * by // per) if by else -(-resets[place] // 1_000_000)
        if not seconds:  # no units come back, or all are there
            have_seconds = False
        numbers += left, seconds
        if (share := left / capacity) < least:
            least, quota, tightest = share, shown, place
    fields: dict[str, Field] = {}
    if "ratelimit" in families:
        text = usual.text % tuple(numbers) if have_seconds else ",".join(_states(template.limits, answer.states, False))
        fields["ratelimit-policy"], fields["ratelimit"] = template.policy, ("RateLimit", text)
    if "x-ratelimit" in families:  # as in `_add_older_family`
        fields["x-ratelimit-limit"] = quota
        fields["x-ratelimit-remaining"] = "X-RateLimit-Remaining", f"{remaining[tightest]}"
        fields["x-ratelimit-reset"] = "X-RateLimit-Reset", f"{-(-(at_us + resets[tightest]) // 1_000_000)}"
    return fields


def _unusual_fields(template: FieldTemplate, states: CounterStates, families: tuple[str, ...]) -> dict[str, Field]:
    """Return the fields of `allowed_fields` if there is no limit, or one needs more than its flow."""
    if not template.limits:
        return {}
    tightness = [*map(truediv, template.pick(states.remaining), template.capacities)]
    place, _, quota, *_ = template.limits[tightness.index(min(tightness))]
    fields: dict[str, Field] = {}
    if "ratelimit" in families:
        fields |= _unusual_family(template, states)
    if "x-ratelimit" in families:
        _add_older_family(fields, quota, states.remaining[place], states.at_us + states.resets[place])
    return fields


def rejection_fields(
    answer: FilledVerdicts, families: tuple[str, ...], facts: RefusalFacts | None = None
) -> dict[str, Field]:
    """Return the fields of a rejection as `allowed_fields` does, and Retry-After.

    facts: of the rejection, if they are known.
    """
    template = answer.charges.template.kept.get(FieldTemplate) or _template_of(answer)
    _, _, seconds, _, reference, binding = facts or refusal_facts(answer)
    assert binding is not None
    assert reference is not None
    fields: dict[str, Field] = {}
    if seconds is not None:
        fields["retry-after"] = "Retry-After", str(seconds)
    at_us, remaining, waits, resets, _ = answer.states
    if "ratelimit" in families:
        usual = template.usual
        if usual is not None and seconds is not None and waits.count(0) == len(waits) - 1:
            # Retry-After might be earlier than the time of a limit that does not reject, so that limit has no time.
            until, text = usual.refused[binding.place]
            left = template.pick(remaining)
            fields["ratelimit-policy"] = template.policy
            fields["ratelimit"] = "RateLimit", text % (*left[:until], seconds, *left[until:])
        else:
            fields |= _unusual_family(template, answer.states, is_denied=True)
    if "x-ratelimit" in families:
        left = 0 if binding.is_closed else remaining[binding.place]
        _add_older_family(fields, binding.quota, left, at_us + resets[binding.place])
        fields["x-ratelimit-reference"] = "X-RateLimit-Reference", reference
    return fields


def _add_older_family(fields: dict[str, Field], quota: Field, remaining: int, reset_us: int) -> None:
    """Add the fields whose names begin with X-RateLimit-. quota: the first of them. reset_us: since the epoch."""
    fields["x-ratelimit-limit"] = quota
    fields["x-ratelimit-remaining"] = "X-RateLimit-Remaining", f"{remaining}"
    # A time in whole seconds.
    fields["x-ratelimit-reset"] = "X-RateLimit-Reset", f"{-(-reset_us // 1_000_000)}"


def _unusual_family(template: FieldTemplate, states: CounterStates, *, is_denied: bool = False) -> dict[str, Field]:
    """Return RateLimit and RateLimit-Policy; if they would be too long, only of the tightest limits."""
    shown = _states(template.limits, states, is_denied)
    if not template.items:
        return {"ratelimit-policy": template.policy, "ratelimit": ("RateLimit", ",".join(shown))}
    fields = joined(template.items, shown, partial(_tightness, template, states))
    return {name.lower(): (name, text) for name, text in fields.items()}


def _tightness(template: FieldTemplate, states: CounterStates) -> list[float]:
    """Return the `decision.tightness_of` each limit."""
    shares = map(truediv, template.pick(states.remaining), template.capacities)
    return [
        -1.0 - wait / 1_000_000 if wait > 0 else -inf if wait else share
        for wait, share in zip(template.pick(states.waits), shares, strict=True)
    ]


def _states(limits: Iterable[LimitTemplate], states: CounterStates, is_denied: bool) -> list[str]:
    """Return the items of RateLimit."""
    _, remaining, waits, resets, _ = states
    shown = []
    for place, state, _, _, flow, until_more, is_closed, *_ in limits:
        left, wait, reset_us, seconds = remaining[place], waits[place], resets[place], None
        if wait:
            seconds = None if wait < 0 else -(-wait // 1_000_000)
        elif is_denied:  # Retry-After might be earlier than the time of a limit that does not reject
            pass
        elif flow is None or not (left or flow[0] == 0):
            seconds = until_more(left, reset_us / 1_000_000)
        else:
            seconds = -(-left * flow[0] // flow[1]) if flow[0] else -(-reset_us // 1_000_000) or None
        item = f"{state}{0 if is_closed else min(left, LARGEST_INTEGER)}"
        shown.append(item if seconds is None else f"{item};t={seconds}")
    return shown


def refusal_facts(answer: FilledVerdicts) -> RefusalFacts:
    """Return the facts of a rejection whose results were not read."""
    template, place = answer.charges.template.kept.get(FieldTemplate) or _template_of(answer), answer.binding
    assert place is not None
    binding, waits = template.by_place[place], answer.states.waits
    wait, policies = waits[place], binding.policies
    if waits.count(0) != len(waits) - 1:  # perhaps several reject
        shown = zip(template.limits, template.pick(waits), strict=True)
        policies = tuple(dict.fromkeys([limit.policies[0] for limit, each in shown if each]))
    seconds = None if wait < 0 else -(-wait // 1_000_000)
    reference = f"{binding.rule}#{answer.charges.partitions[place][:DIGITS]}"
    return _new(RefusalFacts, (429, binding.message, seconds, policies, reference, binding))


def _template_of(answer: FilledVerdicts) -> FieldTemplate:
    """Return the template of a call, to be cached: finding a name may take longer than all the rest."""
    call = answer.charges.template
    items, limits = [], []
    for place, ((rule, tier), charge) in enumerate(zip(call.owners, answer.charges, strict=True)):
        if rule.mode == "enforce":
            limit = charge.limit
            shown = shown_limit(rule, tier, limit)
            items.append(shown.item)
            limits.append(
                LimitTemplate(
                    place,
                    f"{shown.name};r=",
                    ("X-RateLimit-Limit", shown.quota),
                    limit.quota if limit.burst is None else limit.burst,
                    flow_of(limit),
                    shown.until_more,
                    charge.cost == NEVER,
                    (name_of(rule, tier, limit),),
                    rule.message,
                    rule.slug,
                )
            )
    longest = sum([len(item) + len(limit.state) + _DIGITS for item, limit in zip(items, limits, strict=True)])
    fits = longest <= MAX_LENGTH
    template = call.kept[FieldTemplate] = FieldTemplate(
        ("RateLimit-Policy", ",".join(items)),
        tuple(limits),
        _usual_of(limits) if fits else None,
        tuple([limit.capacity for limit in limits]),
        _picking([limit.place for limit in limits]),
        {limit.place: limit for limit in limits},
        () if fits else tuple(items),
    )
    return template


def _usual_of(limits: Sequence[LimitTemplate]) -> UsualStates | None:
    """Return the format strings; `None` unless all limits have a flow.

    The remaining units must not exceed the maximum of the field.
    """
    parts = []
    for limit in limits:
        if not limit.flow or limit.is_closed or limit.capacity > LARGEST_INTEGER:
            return None
        by, per = limit.flow
        parts.append((limit.place, limit.capacity, by, per, limit.quota))
    if not parts:
        return None
    states = [limit.state.replace("%", "%%") for limit in limits]
    text = ",".join([f"{state}%d;t=%d" for state in states])
    refused = {
        limit.place: (
            at,
            ",".join([f"{state}%d" for state in states[:at]])
            + ",".join([";t=%d", *[f"{state}%d" for state in states[at:]]]),
        )
        for at, limit in enumerate(limits, 1)
    }
    return UsualStates(text, refused, tuple(parts))


def _picking(places: Sequence[int]) -> Callable[[Sequence[int]], Sequence[int]]:
    """Return a function that selects these places of a sequence."""
    if len(places) > 1:
        return itemgetter(*places)
    return itemgetter(slice(places[0], places[0] + 1) if places else slice(0))
