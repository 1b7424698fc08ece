"""A caller's tier, and why: the same for an explanation, a caller's report and the caller's page."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from django.utils.formats import number_format
from django.utils.translation import gettext as _

from ..models import TierAssignment
from ..models.tiers import SUBJECTS
from ..rules.formatting import end_in_words
from ..rules.tiers import Entitlement


@dataclass(frozen=True, slots=True)
class TierExplanation:
    """The caller's tier, and why."""

    #: assignment, resolver or default; failed = the default, because TIER_RESOLVER failed; none = the caller has no
    #: tier; unknown = only the caller's digest is known; empty = there are no tiers, you may not see it, or the caller
    #: is not known.
    kind: str = ""
    slug: str = ""
    name: str = ""
    multiplier: Decimal = Decimal(1)  # times each limit of the caller's own counters
    #: The primary key of the assignment without a tier; `None` = none, or you may not see it.
    multiplied_by: int | None = None
    multiplied_until: datetime | None = None
    #: The primary key of the assignment that gives `anchor_day`; `None` = none, or you may not see it.
    anchored_by: int | None = None
    #: The primary key of the assignment that gives the tier; `None` = none, or you may not see it.
    assignment: int | None = None
    subject: str = ""  # user, group, api_key_hash or partition
    whom: str = ""
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    reason: str = ""
    anchor_day: int | None = None  # the day on which the caller's months begin; `None` = as each limit says
    timezone: str = ""  # the caller's time zone for months; empty = as each limit says
    anchor_time: str = ""  # the time of day at which the caller's months begin; empty = midnight

    @classmethod
    def of(
        cls,
        kind: str,
        granted: Entitlement,
        row: TierAssignment | None = None,
        more: TierAssignment | None = None,
        own: TierAssignment | None = None,
    ) -> TierExplanation:
        """Return the explanation of an entitlement.

        row, more, own: the assignments of its tier, without a tier, and of the first day of months.
        """
        tier = granted.tier
        found = cls(kind, tier.slug if tier else "", tier.name if tier else "", granted.multiplier)
        if granted.anchor is not None:
            day, zone, start = granted.anchor
            start_at = str(start or "").removesuffix(":00")
            found = replace(found, anchor_day=day, timezone=zone or "", anchor_time=start_at)
        if more is not None:
            found = replace(found, multiplied_by=more.pk, multiplied_until=more.ends_at)
        if own is not None:
            found = replace(found, anchored_by=own.pk)
        if row is None:
            return found
        subject = next(name for name in SUBJECTS if getattr(row, f"{name}_id", getattr(row, name, None)))
        return replace(
            found, assignment=row.pk, subject=subject, whom=str(getattr(row, subject)), starts_at=row.starts_at,
            ends_at=row.ends_at, reason=row.reason,
        )  # fmt: skip

    @property
    def without_assignment(self) -> TierExplanation:
        """The same for readers who may not see assignments."""
        return replace(
            self, multiplied_by=None, multiplied_until=None, anchored_by=None, assignment=None, subject="", whom="",
            starts_at=None, ends_at=None, reason="",
        )  # fmt: skip


def as_typed(multiplier: Decimal) -> str:
    """Return a multiplier without the trailing zeros of the database."""
    return f"{multiplier.normalize():f}"


def tier_in_words(tier: TierExplanation) -> str:
    """Return the caller's tier and why; "" if none is needed."""
    texts = {
        "assignment": _("%(tier)s, assigned to the %(kind)s %(whom)s") if tier.subject else _("%(tier)s, assigned"),
        "default": _("%(tier)s, the default, as no tier is assigned to this caller"),
        "resolver": _("%(tier)s, by RATELIMITER['TIER_RESOLVER']"),
        "failed": _("%(tier)s, the default, as RATELIMITER['TIER_RESOLVER'] has failed (see the log)"),
        "none": _("none, as no tier is assigned to this caller, and no tier is the default"),
        "unknown": _(
            "not known, as only the digest of this caller is known: another limit may apply than is shown here"
        ),
    }
    kinds = {"user": _("user"), "group": _("group"), "api_key_hash": _("API key"), "partition": _("partition")}
    whom = tier.whom
    if tier.subject == "api_key_hash":  # as in lists
        whom = f"{tier.reason} ({whom[:8]}…)" if tier.reason and tier.ends_at is None else f"{whom[:8]}…"
    text = texts.get(tier.kind, "") % {"tier": tier.name, "kind": kinds.get(tier.subject, ""), "whom": whom}
    if tier.ends_at and tier.multiplied_by:
        text = _("%(text)s, until %(end)s") % {"text": text, "end": end_in_words(tier.ends_at)}
    if tier.multiplier != 1:
        multiplier = number_format(tier.multiplier.normalize())
        text = _("%(text)s, limits times %(multiplier)s") % {"text": text, "multiplier": multiplier}
    if end := tier.multiplied_until if tier.multiplied_by else tier.ends_at:
        text = _("%(text)s, until %(end)s") % {"text": text, "end": end_in_words(end)}
    by_another = tier.anchored_by not in (None, tier.assignment)
    text_of_day = _("day %(day)s, by an assignment") if by_another else _("day %(day)s")
    day = "" if tier.anchor_day is None else text_of_day % {"day": tier.anchor_day}
    if own := " ".join(filter(None, [day, tier.anchor_time, tier.timezone])):
        text = _("%(text)s; months begin on: %(own)s") % {"text": text, "own": own}
    return text
