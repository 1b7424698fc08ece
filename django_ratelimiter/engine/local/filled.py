"""Synced charges from a template: counted locally without creating the charges, as long as they are allowed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..base import Charge
from ..templates import CallTemplate, FilledCharges, is_synced
from ..usage import labels_of, lines_of

_new = tuple.__new__  # what a named tuple calls in the end


class SyncCharges(NamedTuple):
    """What local counters need of the charges of a call, all of which are synced.

    names: of the counters. terms: the quota, the cost and the interval of each charge.
    """

    names: list[str]
    terms: Sequence[tuple[int, int, float]]


def synced_charges(charges: Sequence[Charge]) -> SyncCharges | None:
    """Return this data; `None` if a charge is exact, purely local, or unusual in another way."""
    if type(charges) is FilledCharges:
        template = synced_template(charges.template)
        return None if template is None else SyncCharges(template.names(charges.partitions), template.terms)
    for charge in charges:
        if not is_synced(charge):
            return None
    names = [charge.key + charge.limit.tag for charge in charges]
    return SyncCharges(names, [(each.limit.quota, each.cost, each.sync_interval or 0.0) for each in charges])


class SyncTemplate:
    """The common part of the calls of one template.

    shared: the counters that all callers share: place, name and terms of each; `None` = not computed yet.
    terms: see `SyncCharges`. is_simple: an allowed request is counted without reading its charges. field:
    the label of its usage; empty = it is not counted.
    """

    __slots__ = ("_parts", "field", "is_simple", "shared", "terms")

    def __init__(self, template: CallTemplate) -> None:
        charges = [each.charge for each in template.templates]
        self._parts = [(each.before, each.after + each.charge.limit.tag) for each in template.templates]
        self.terms = tuple([(each.limit.quota, each.cost, each.sync_interval or 0.0) for each in charges])
        self.shared: list[tuple[int, str, tuple[int, int, float]]] | None = None
        self.is_simple = all(each.cost > 0 and each.limit.soft_quota is None for each in charges)
        labels = labels_of(lines_of(charges))
        self.field = f"{labels}\n{'a' * len(charges)}" if labels else ""

    def names(self, partitions: Sequence[str]) -> list[str]:
        """Return the names of one caller's counters."""
        return [before + partition + after for (before, after), partition in zip(self._parts, partitions, strict=True)]


def synced_template(template: CallTemplate) -> SyncTemplate | None:
    """Return the common part of a template's calls; `None` if a charge is not synced."""
    if not template.sync_interval:
        return None
    found: SyncTemplate | None = template.kept.get(SyncTemplate)
    if found is None:
        found = template.kept[SyncTemplate] = SyncTemplate(template)
    return found


def shared_counters(charges: FilledCharges) -> list[tuple[int, str, tuple[int, int, float]]]:
    """Return place, name and terms of each counter that all callers of the template share."""
    template = synced_template(charges.template)
    assert template is not None
    if template.shared is None:
        split = [each.is_split for each in charges.template.templates]
        named = enumerate(zip(template.names(charges.partitions), template.terms, strict=True))
        template.shared = [(place, *each) for place, each in named if not split[place]]
    return template.shared
