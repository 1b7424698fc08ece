"""The stored versions and their changes: the differences between two snapshots, also of different releases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ....engine.base import Version
from ...formatting import limit_in_words, units
from ...ruleset import Snapshot, limit_from
from .. import storage
from ..compiler import columns_of
from ..tables import models

#: Maximum number of changes that a summary lists; the others are counted.
MAX_NAMED = 3

#: Number of versions that are searched at a time for those that changed a rule.
LOOKED_THROUGH: Final = 25
#: Number of latest versions that are searched for the last change of a rule or tier.
RECENT: Final = 10

#: The fields of an access entry that are not its caller.
ACCESS_FIELDS = ("action", "expires_at", "reason")

#: The text for an empty field.
NOTHING = "\N{EN DASH}"

Data = Mapping[str, Any]
Kind = Literal["added", "changed", "removed"]


class Pair(NamedTuple):
    """The same rule or tier in two snapshots; `None` = it is missing in one."""

    before: Data | None
    after: Data | None


class FieldChange(NamedTuple):
    """One field with its old and new value as text. name: of the column, or "limits"."""

    name: str
    label: str
    before: str
    after: str

    @property
    def in_words(self) -> str:
        """Return "mode: shadow → enforce"."""
        return f"{self.label}: {self.before} → {self.after}"


class Change(NamedTuple):
    """A rule, tier or access entry that was added, changed or deleted; or the switch of all enforcement.

    slug: of a rule or tier. name: also that of an access entry.
    """

    kind: Kind
    subject: Literal["rule", "tier", "access", "enforcement"]
    slug: str
    name: str
    fields: tuple[FieldChange, ...]

    @property
    def title(self) -> str:
        """Return the changed object: "Rule Export"."""
        texts = {
            "rule": _("Rule “%(name)s”"),
            "tier": _("Tier “%(name)s”"),
            "access": "%(name)s",
            "enforcement": _("All enforcement"),
        }
        return texts[self.subject] % {"name": self.name or self.slug}

    @property
    def kind_in_words(self) -> str:
        """Return "added", "changed" or "deleted"."""
        return {"added": _("added"), "changed": _("changed"), "removed": _("deleted")}[self.kind]

    @property
    def in_words(self) -> str:
        """Return the change in one sentence: "Rule Export: mode: shadow → enforce"."""
        if self.kind != "changed":
            return f"{self.title} {self.kind_in_words}"
        return f"{self.title}: {'; '.join(field.in_words for field in self.fields)}"


def diff(before: Snapshot, after: Snapshot) -> list[Change]:
    """Return the differences between two snapshots: the switch, then tiers, then rules."""
    changes = [*_of_switch(before, after)]
    for pair in changed_pairs(before["tiers"], after["tiers"], normal_tier):
        changes.append(_change("tier", pair, tuple(_fields(pair, columns_of(models.Tier)))))
    for pair in changed_pairs(before["rules"], after["rules"], normal_rule):
        changes.append(_left_out(pair, before, after) or _change("rule", pair, rule_fields(pair)))
    return changes


def summary(changes: list[Change]) -> str:
    """Return the first of these changes as text, and how many more there are."""
    words = [change.in_words for change in changes[:MAX_NAMED]]
    more = len(changes) - MAX_NAMED
    if more > 0:
        words.append(ngettext("%(count)d more change", "%(count)d more changes", more) % {"count": more})
    return "; ".join(words)


def rule_fields(pair: Pair) -> tuple[FieldChange, ...]:
    """Return the fields of a rule that differ, and its limits."""
    found = (*_fields(pair, columns_of(models.Rule)), *_limits(pair))
    if found or not pair.before or not pair.after:
        return found
    orders = ["; ".join(map(limit_text, data["limits"])) for data in (pair.before, pair.after)]
    return (FieldChange("limits", _("Order of limits"), *orders),)


def access_fields(pair: Pair) -> tuple[FieldChange, ...]:
    """Return the fields of an access entry that differ, but for its caller."""
    return tuple(_fields(pair, [models.AccessEntry._meta.get_field(name) for name in ACCESS_FIELDS]))


def _change(subject: Literal["rule", "tier"], pair: Pair, fields: tuple[FieldChange, ...]) -> Change:
    data: Any = pair.after or pair.before
    kind: Kind = "added" if pair.before is None else "removed" if pair.after is None else "changed"
    return Change(kind, subject, data["slug"], data["name"], fields)


def _of_switch(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    was, now = (_("stopped") if each.get("enforcement") is False else _("on") for each in (before, after))
    if was != now:
        yield Change("changed", "enforcement", "", "", (FieldChange("enforcement", _("enforcement"), was, now),))


def _left_out(pair: Pair, before: Snapshot, after: Snapshot) -> Change | None:
    """Return the change of a rule that could not be enforced in one snapshot; its row existed in both."""
    data: Any = pair.after or pair.before
    without, slug = after if pair.after is None else before, data["slug"]
    reasons = {entry["rule"]: entry["reason"] for entry in without["left_out"]}
    if (pair.before and pair.after) or slug not in reasons:
        return None
    yes, no = _("yes"), _("no: %(reason)s") % {"reason": reasons[slug]}
    states = (yes, no) if pair.after is None else (no, yes)
    return Change("changed", "rule", slug, data["name"], (FieldChange("", _("in force"), *states),))


def _fields(pair: Pair, columns: list[Any]) -> Iterator[FieldChange]:
    """Yield the columns that differ; if the row is in one snapshot only, its columns that are not empty."""
    for column in columns:
        if pair.before and pair.after and pair.before[column.name] == pair.after[column.name]:
            continue  # the common case; comparing texts would be slow
        was, now = (_in_words(column, data) for data in pair)
        if was != now:
            yield FieldChange(column.name, str(capfirst(column.verbose_name)), was, now)


def _in_words(column: Any, data: Data | None) -> str:
    if data is None:
        return NOTHING
    value = data[column.name]
    if column.choices:
        return str(dict(column.flatchoices).get(value, value))
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    return NOTHING if value in (None, "") else str(value)


def _limits(pair: Pair) -> Iterator[FieldChange]:
    """Yield the limits that differ: paired by tier and meaning, then the rest of each tier."""
    before, after = ([*data["limits"]] if data else [] for data in pair)
    has_tiers = any(limit["tier"] for limit in (*before, *after))
    others = _("Limit of every other tier") if has_tiers else _("Limit for everyone")
    was, now = (max((limit["generation"] for limit in limits), default=0) for limits in (before, after))
    for same in (lambda limit: (limit["tier"], meaning_of(limit)), lambda limit: limit["tier"]):
        for old in [*before]:
            new = next((limit for limit in after if same(limit) == same(old)), None)
            if new is not None:
                before.remove(old)
                after.remove(new)
                if old != new:
                    yield from _limit_change(old, new, others)
    for limit in before:
        yield from _limit_change(limit, None, others)
    for limit in after:
        yield from _limit_change(None, limit, others)
    if pair.before and pair.after and was != now:
        text = _("generation %(number)s")
        yield FieldChange("generation", _("Counters"), text % {"number": was}, text % {"number": now})


def _limit_change(before: Data | None, after: Data | None, others: str) -> Iterator[FieldChange]:
    was, now = (limit_text(limit) if limit else NOTHING for limit in (before, after))
    if was != now:
        tier = (after or before or {})["tier"]
        label = _("Limit of %(tier)s") % {"tier": tier} if tier else others
        yield FieldChange("limits", label, was, now)


def limit_text(limit: Data) -> str:
    """Return a limit of a snapshot as text. One that cannot be enforced any more is shown with its numbers."""
    if limit["unlimited"]:
        return _("unlimited")
    try:
        return limit_in_words(limit_from(limit))
    except (ValueError, KeyError, TypeError, ArithmeticError):
        window = limit["calendar"] or f"{limit['window_seconds']} s"
        return f"{units(limit['quota']) if limit['quota'] else NOTHING} / {window}, {limit['algorithm']}"


def meaning_of(limit: Data) -> tuple[Any, ...]:
    """Return the values that distinguish the counters of a rule's limits, as in the names of counters."""
    from ....models.limits import MEANING, MEANT

    return tuple(
        MEANT.get(column) if limit[column] is None and not limit["unlimited"] else limit[column] for column in MEANING
    )


def normal_rule(data: Data) -> dict[str, Any]:
    """Return a rule of a snapshot with all its columns. Those that an older release lacked get their meaning then."""
    found, columns = _with_defaults(data, columns_of(models.Rule)), columns_of(models.RuleLimit)
    return found | {"limits": [{"tier": limit["tier"], **_with_defaults(limit, columns)} for limit in data["limits"]]}


def normal_tier(data: Data) -> dict[str, Any]:
    """Return a tier of a snapshot with all its columns."""
    return _with_defaults(data, columns_of(models.Tier))


def by_slug(snapshot: Snapshot) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return the tiers and the rules of a snapshot by slug, with all their columns."""
    tiers = {data["slug"]: normal_tier(data) for data in snapshot["tiers"]}
    return tiers, {data["slug"]: normal_rule(data) for data in snapshot["rules"]}


def _with_defaults(data: Data, fields: Iterable[Any]) -> dict[str, Any]:
    return {field.name: data[field.name] if field.name in data else default_of(field) for field in fields}


def default_of(column: Any) -> Any:
    """Return the value of a column that was not given."""
    default = None if column.null and not column.has_default() else column.get_default()
    return getattr(default, "value", default)  # the plain value of an enum


def pairs(before: Sequence[Data], after: Sequence[Data]) -> list[Pair]:
    """Return rules or tiers with the same slug in pairs, and of the others those with the same name: renamed ones.

    In the order of `after`, then the deleted ones.
    """
    old, new = ({data["slug"]: data for data in rows} for rows in (before, after))
    gone = _by_unique_name(data for data in before if data["slug"] not in new)
    come = _by_unique_name(data for data in after if data["slug"] not in old)
    renamed = {data["slug"]: gone[name] for name, data in come.items() if name in gone}
    found = [Pair(old.get(data["slug"]) or renamed.get(data["slug"]), data) for data in after]
    seen = {pair.before["slug"] for pair in found if pair.before}
    return found + [Pair(data, None) for data in before if data["slug"] not in seen]


def _by_unique_name(rows: Iterable[Data]) -> dict[str, Data]:
    found: dict[str, list[Data]] = {}
    for data in rows:
        found.setdefault(data["name"], []).append(data)
    return {name: several[0] for name, several in found.items() if len(several) == 1 and name}


def changed_pairs(before: Sequence[Data], after: Sequence[Data], normal: Callable[[Data], Data]) -> list[Pair]:
    """Return the pairs of rules or tiers that differ. Most are identical and need no normalizing."""
    differing = [pair for pair in pairs(before, after) if pair.before != pair.after]
    looked_into = [Pair(*(data and normal(data) for data in pair)) for pair in differing]
    return [pair for pair in looked_into if pair.before != pair.after]


class VersionEntry(NamedTuple):
    """A stored version. changes: `None` = not known, because it is the oldest one."""

    row: Any
    changes: list[Change] | None

    @property
    def in_words(self) -> str:
        """Return the changes as a sentence."""
        return summary(self.changes or [])


class RuleEntry(NamedTuple):
    """A version that changed a rule, and the change. before: the previous version."""

    row: Any
    before: Any
    change: Change


def version_of(row: Any) -> Version:
    """Return the number and epoch of a stored version."""
    return Version(row.number, row.epoch)


def version_rows() -> Any:
    """Return the stored versions, the latest first, with their authors but without their snapshots."""
    return storage.snapshots().defer("snapshot")


def entries_of(page: Sequence[Any]) -> Iterator[VersionEntry]:
    """Yield entries for these consecutive versions, the latest first, in one query.

    The changes of a version are computed only when it is reached.
    """
    if not page:
        return
    snapshots = storage.in_chunks(storage.snapshots_until(version_of(page[0])), len(page) + 1)
    after = next(snapshots, None)
    for row in page:
        before = next(snapshots, None)
        yield VersionEntry(row, None if before is None or after is None else diff(before, after))
        after = before


def row_before(version: Version) -> Any:
    """Return the stored version before this one; `None` = there is none."""
    earlier = [*storage.snapshots_until(version).defer("snapshot")[:2]]
    return earlier[1] if len(earlier) == 2 else None


def past_of_rule(slug: str, start: Version | None) -> tuple[list[RuleEntry], str, Version | None]:
    """Return the versions that changed this rule: among the latest, or among those from `start` back.

    Also returns the slug of the rule before them, and where to continue the search; `None` = there are no more. A
    renamed rule is followed, unless another one has had its name as well.
    """
    first = start or Version(*(storage.snapshots().values_list("number", "epoch").first() or (0,)))
    page = [*storage.snapshots_until(first).defer("snapshot")[: LOOKED_THROUGH + 1]]
    entries: list[RuleEntry] = []
    for entry, before in zip(entries_of(page[:LOOKED_THROUGH]), page[1:], strict=False):
        for change in entry.changes or ():
            former = [field.before for field in change.fields if field.name == "slug"]
            if change.subject == "rule" and slug in (change.slug, *former):
                entries.append(RuleEntry(entry.row, before, change))
                slug = former[0] if former and change.kind == "changed" else slug
                break
    return entries, slug, version_of(page[-1]) if len(page) > LOOKED_THROUGH else None


def latest_change_of(subject: str, slug: str) -> Any:
    """Return the version that changed this rule or tier last, among the latest few; `None` = none of them did."""
    for entry in entries_of(version_rows()[:RECENT]):
        if any((change.subject, change.slug) == (subject, slug) for change in entry.changes or ()):
            return entry.row
    return None
