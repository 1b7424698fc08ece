"""The quota fields of decisions that nobody has taken apart: made of the engine's numbers, by templates."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Final, NamedTuple

from ..decision import Answer
from ..engine.base import NEVER
from ..engine.templates import CallTemplate, CounterStates
from .policies import UntilMore, flow_of, name_of
from .syntax import LARGEST_INTEGER, shown_limit

_new = tuple.__new__  # what a named tuple calls in the end

#: Of how many calls templates are kept; beyond that all are made anew.
MAX_TEMPLATES: Final = 1_000


class LimitTemplate(NamedTuple):
    """The parts of a limit in the fields.

    place: of its charge in the call. state: its item of RateLimit up to what remains. capacity: of its counter. flow:
    how long as much as remains takes to come back, see `flow_of`; `None` = ask `until_more`. is_closed: nothing passes.
    """

    place: int
    state: str
    quota: str
    capacity: int
    flow: tuple[int, int] | None
    until_more: UntilMore
    is_closed: bool
    policy: str
    message: str


class FieldTemplate(NamedTuple):
    """The fields of a call. policy: the whole of RateLimit-Policy; empty = it has no enforced limit."""

    policy: str
    limits: tuple[LimitTemplate, ...]


_templates: Final[dict[CallTemplate, FieldTemplate]] = {}


def quota_fields(answer: Answer, families: tuple[str, ...]) -> dict[str, str]:
    """Return the fields of both families, as far as they are sent, and of a refusal Retry-After.

    For calls of which `is_plain` holds: no limit has a soft quota, or holds requests.
    """
    verdicts = answer.verdicts
    template = _templates.get(verdicts.charges.template) or _template_of(answer)
    fields: dict[str, str] = {}
    if template.limits and "ratelimit" in families:
        fields["RateLimit-Policy"] = template.policy
        fields["RateLimit"] = _states(template.limits, verdicts.states, verdicts.is_denied)
    if template.limits and "x-ratelimit" in families:
        place, quota, is_closed = _binding(template.limits, verdicts.states)
        at_us, remaining, _, resets, _ = verdicts.states
        fields["X-RateLimit-Limit"] = quota
        fields["X-RateLimit-Remaining"] = "0" if is_closed else str(remaining[place])
        fields["X-RateLimit-Reset"] = str(-(-(at_us + resets[place]) // 1_000_000))  # in whole seconds
    if verdicts.is_denied:
        seconds = refusal_facts(answer).seconds
        if seconds is not None:
            fields["Retry-After"] = str(seconds)
    return fields


def _states(limits: Iterable[LimitTemplate], states: CounterStates, is_denied: bool) -> str:
    """Return the value of RateLimit. In one go, for every response waits for it."""
    _, remaining, waits, resets, _ = states
    shown = []
    for place, state, _, _, flow, until_more, is_closed, _, _ in limits:
        left, wait, reset_us, seconds = remaining[place], waits[place], resets[place], None
        if wait:
            seconds = None if wait < 0 else -(-wait // 1_000_000)
        elif is_denied:  # Retry-After might be earlier than the time of a limit that does not refuse
            pass
        elif flow is None or not (left or flow[0] == 0):
            seconds = until_more(left, reset_us / 1_000_000)
        else:
            seconds = -(-left * flow[0] // flow[1]) if flow[0] else -(-reset_us // 1_000_000) or None
        item = f"{state}{0 if is_closed else min(left, LARGEST_INTEGER)}"
        shown.append(item if seconds is None else f"{item};t={seconds}")
    return ",".join(shown)


def _binding(limits: Iterable[LimitTemplate], states: CounterStates) -> tuple[int, str, bool]:
    """Return what is shown of the binding limit, as `decision.decide` finds it."""
    _, remaining, waits, _, _ = states
    least, binding = inf, (0, "", False)
    for place, _, quota, capacity, _, _, is_closed, _, _ in limits:
        wait = waits[place]
        tightness = remaining[place] / capacity if not wait else -inf if wait < 0 else -1.0 - wait / 1_000_000
        if tightness < least:
            least, binding = tightness, (place, quota, is_closed)
    return binding


class RefusalFacts(NamedTuple):
    """The input of the text of a refusal. message: of the binding rule. seconds: to wait; `None` = for ever."""

    status: int
    message: str
    seconds: int | None
    policies: tuple[str, ...]


def refusal_facts(answer: Answer) -> RefusalFacts:
    """Return what is told of a refusal that nobody has taken apart."""
    verdicts = answer.verdicts
    template = _templates.get(verdicts.charges.template) or _template_of(answer)
    waits, policies, message, longest = verdicts.states.waits, [], "", 0.0
    for limit in template.limits:
        wait = waits[limit.place]
        if wait:
            policies.append(limit.policy)
            if (weight := inf if wait < 0 else wait) > longest:
                longest, message = weight, limit.message
    seconds = None if longest == inf else max(1, -(-int(longest) // 1_000_000))
    return _new(RefusalFacts, (429, message, seconds, tuple(dict.fromkeys(policies))))


def _template_of(answer: Answer) -> FieldTemplate:
    """Return the template of a call, to be kept: a name alone may take longer to find than all the rest."""
    items, limits = [], []
    for place, (rule, tier, charge) in enumerate(answer.charges):
        if rule.mode == "enforce":
            limit = charge.limit
            shown = shown_limit(rule, tier, limit)
            items.append(shown.item)
            limits.append(
                LimitTemplate(
                    place,
                    f"{shown.name};r=",
                    shown.quota,
                    limit.quota if limit.burst is None else limit.burst,
                    flow_of(limit),
                    shown.until_more,
                    charge.cost == NEVER,
                    name_of(rule, tier, limit),
                    rule.message,
                )
            )
    if len(_templates) >= MAX_TEMPLATES:
        _templates.clear()
    call = answer.verdicts.charges.template
    template = _templates[call] = FieldTemplate(",".join(items), tuple(limits))
    return template
