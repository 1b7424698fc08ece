"""Limits of each tier under a rule."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any, ClassVar, Final

from django.core.exceptions import NON_FIELD_ERRORS, ObjectDoesNotExist, ValidationError
from django.db import models
from django.db.models import F, Field, ForeignKey, Q
from django.db.models.functions import Coalesce
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..engine.calendars import CALENDARS
from ..engine.limits import MAX_SLOTS, OPTIONS, Limit, check_sync_interval, options_from, sync_seconds
from ..engine.registry import ANCHORS, DEFAULT, REFILLS, Algorithm
from ..values.windows import window_in_short
from .rules import Rule
from .tiers import Tier
from .validation import LazyText

#: The columns with the engine's options, and the value of each that means "not set".
NOT_GIVEN: Final[Mapping[str, Any]] = {
    "quota": None,
    "window_seconds": None,
    **OPTIONS,
    "calendar": "",
    "timezone": "",
    "max_delay_ms": 0,
}

#: Columns with another name than the engine's option.
COLUMNS: Final = {"window": "window_seconds", "max_delay": "max_delay_ms"}

#: The possible values of columns with a choice of words.
WORDS: Final[Mapping[str, Iterable[str]]] = {
    "algorithm": tuple(Algorithm),
    "anchor": ANCHORS,
    "refill": REFILLS,
    "calendar": ("", *CALENDARS),
}

_LABELS: Final[Mapping[str, Any]] = {
    **{algorithm.value: _(algorithm.traits.label) for algorithm in Algorithm if algorithm.traits.label},
    "clock": _("by the clock"),
    "first_request": _("with the first request"),
    "continuous": _("continuously"),
    "interval": _("all at once"),
    "": _("none"),
    "day": _("day"),
    "week": _("week, from Monday"),
    "month": _("month"),
    "year": _("year"),
}

#: The columns that distinguish a tier's limits under a rule: changing one starts new counters.
MEANING: Final = ("algorithm", "window_seconds", "calendar", "timezone", "anchor_day", "anchor", "refill", "slots")

#: What empty means in them. In an index, nulls are never equal.
MEANT: Final[Mapping[str, Any]] = {"window_seconds": Decimal(0), "anchor_day": 1, "slots": 10}
_EXPRESSIONS: Final = [Coalesce(column, MEANT[column]) if column in MEANT else F(column) for column in MEANING]


@lru_cache(maxsize=256)
def columns_used(algorithm: str, calendar: str = "") -> frozenset[str]:
    """Return the columns out of NOT_GIVEN that an algorithm uses; all of them if it is unknown."""
    if algorithm not in set(Algorithm):
        return frozenset(NOT_GIVEN)
    options = {COLUMNS.get(option, option) for option in Algorithm(algorithm).options}
    of_some = {COLUMNS.get(option, option) for each in Algorithm for option in each.options}
    used = NOT_GIVEN.keys() - (of_some - options)
    if not calendar or "calendar" not in options:
        return frozenset(used - {"timezone", "anchor_day"})
    return frozenset(used - {"window_seconds", "anchor"} - ({"anchor_day"} if calendar != "month" else set()))


def choices_of(column: str) -> tuple[tuple[str, Any], ...]:
    """Return the choices of a column. Fields call this, so that a new algorithm needs no migration."""
    return tuple([(str(word), _LABELS.get(word, word.replace("_", " "))) for word in WORDS[column]])


class RuleLimitQuerySet(models.QuerySet["RuleLimit"]):
    """Limits, found in fixtures by rule, tier and meaning."""

    def get_by_natural_key(self, rule: str, tier: str | None, *meaning: Any) -> RuleLimit:
        tier_is = Q(tier__slug=tier) if tier else Q(tier=None)
        return self.get(tier_is, rule__slug=rule, **dict(zip(MEANING, meaning, strict=True)))


class RuleLimit(models.Model):
    """A limit of one tier under a rule. Several limits for one tier all apply.

    tier: `None` = every tier that has no limit of its own here, and callers without a tier.
    quota: `None` only if `unlimited`. window_seconds: also with a calendar. timezone: empty = UTC.
    Of the others, `None`, empty or 0 means not set; which of them an algorithm uses is in `options`.
    generation: part of the counters' names; raising it resets the counters.
    The database has the defaults, too: rows written by SQL may omit these columns.
    """

    rule: ForeignKey[Rule, Rule] = ForeignKey(Rule, models.CASCADE, related_name="limits", verbose_name=_("rule"))
    tier: ForeignKey[Tier | None, Tier | None] = ForeignKey(
        Tier, models.CASCADE, null=True, blank=True, related_name="limits", verbose_name=_("tier")
    )
    algorithm: Field[str, str] = models.CharField(
        _("algorithm"),
        max_length=32,
        choices=partial(choices_of, "algorithm"),
        default=DEFAULT.value,
        error_messages={"invalid_choice": _("%(value)r is unknown to this version of the program.")},
    )
    quota: Field[int | None, int | None] = models.PositiveBigIntegerField(
        _("quota"), null=True, blank=True, help_text=_("Units per window, or in progress at once.")
    )
    window_seconds: Field[Decimal | int | None, Decimal | None] = models.DecimalField(
        _("window in seconds"),
        max_digits=16,
        decimal_places=6,
        null=True,
        blank=True,
        help_text=_("60 = a minute, 3600 = an hour, 86400 = a day."),
    )
    calendar: Field[str, str] = models.CharField(
        _("calendar"),
        max_length=16,
        choices=partial(choices_of, "calendar"),
        default="",
        db_default="",
        blank=True,
        help_text=_("A unit of the calendar instead of a window."),
    )
    timezone: Field[str, str] = models.CharField(
        _("time zone"),
        max_length=64,
        default="",
        db_default="",
        blank=True,
        help_text=_("Windows begin at midnight in this time zone. Empty = UTC."),
    )
    anchor_day: Field[int | None, int | None] = models.PositiveSmallIntegerField(
        _("first day of the month"),
        null=True,
        blank=True,
        help_text=_("1 to 31. In a shorter month, its last day is used. Empty = 1."),
    )
    anchor: Field[str, str] = models.CharField(
        _("windows begin"),
        max_length=16,
        choices=partial(choices_of, "anchor"),
        default=NOT_GIVEN["anchor"],
        db_default=NOT_GIVEN["anchor"],
    )
    burst: Field[int | None, int | None] = models.PositiveBigIntegerField(
        _("burst"), null=True, blank=True, help_text=_("The capacity of the bucket, in units. Empty = the quota.")
    )
    refill: Field[str, str] = models.CharField(
        _("units come back"),
        max_length=16,
        choices=partial(choices_of, "refill"),
        default=NOT_GIVEN["refill"],
        db_default=NOT_GIVEN["refill"],
    )
    slots: Field[int | None, int | None] = models.PositiveSmallIntegerField(
        _("slots"),
        null=True,
        blank=True,
        help_text=_("Parts of the window, 1 to 100. Empty = 10."),
    )
    max_delay_ms: Field[int, int] = models.PositiveIntegerField(
        _("longest delay in milliseconds"),
        default=NOT_GIVEN["max_delay_ms"],
        db_default=NOT_GIVEN["max_delay_ms"],
        blank=True,
        help_text=_(
            "For synchronous workers, which sleep during the delay. 0 = reject requests that would have to wait."
        ),
    )
    soft_quota: Field[int | None, int | None] = models.PositiveBigIntegerField(
        _("soft quota"),
        null=True,
        blank=True,
        help_text=_("Requests beyond this number are allowed, but marked and counted. Empty = none."),
    )
    unlimited: Field[bool, bool] = models.BooleanField(
        _("unlimited"), default=False, help_text=_("This rule does not limit the tier. Leave the numbers empty.")
    )
    generation: Field[int, int] = models.PositiveIntegerField(_("generation"), default=0, db_default=0, editable=False)

    objects: ClassVar[models.Manager[RuleLimit]] = RuleLimitQuerySet.as_manager()

    class Meta:
        verbose_name: ClassVar[LazyText] = _("limit")
        verbose_name_plural: ClassVar[LazyText] = _("limits")
        ordering = (F("tier__rank").asc(nulls_last=True), F("window_seconds").asc(nulls_last=True), "pk")
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                F("rule"),
                F("tier"),
                *_EXPRESSIONS,
                condition=Q(unlimited=False),
                name="ratelimiter_limit_of_tier",
                violation_error_message=_("This tier already has a limit that counts in the same way."),
            ),
            models.UniqueConstraint(
                F("rule"),
                *_EXPRESSIONS,
                condition=Q(unlimited=False, tier=None),
                name="ratelimiter_limit_of_others",
                violation_error_message=_("“Every other tier” already has a limit that counts in the same way."),
            ),
            models.UniqueConstraint(
                fields=["rule", "tier"],
                condition=Q(unlimited=True),
                name="ratelimiter_limit_unlimited_tier",
                violation_error_message=_("This tier is unlimited already."),
            ),
            models.UniqueConstraint(
                fields=["rule"],
                condition=Q(unlimited=True, tier=None),
                name="ratelimiter_limit_unlimited_others",
                violation_error_message=_("Every other tier is unlimited already."),
            ),
            models.CheckConstraint(
                condition=Q(unlimited=True, **NOT_GIVEN)
                | Q(unlimited=False, quota__isnull=False, quota__gte=1, window_seconds__isnull=False, calendar="")
                | (Q(unlimited=False, quota__isnull=False, quota__gte=1, window_seconds=None) & ~Q(calendar="")),
                name="ratelimiter_limit_numbers",
            ),
            models.CheckConstraint(
                condition=(Q(timezone="") | ~Q(calendar=""))
                & (Q(anchor_day=None) | Q(anchor_day__range=(1, 31), calendar="month")),
                name="ratelimiter_limit_calendar",
            ),
            models.CheckConstraint(
                condition=Q(slots=None) | Q(slots__range=(1, MAX_SLOTS)), name="ratelimiter_limit_slots"
            ),
        ]

    def __str__(self) -> str:
        try:
            return f"{self.rule.slug}, {self.in_short}"
        except ObjectDoesNotExist:  # while all of them are being deleted
            return f"#{self.pk}"

    @property
    def in_short(self) -> str:
        """The tier and its quota, whether it can be enforced or not: "free: 100/h", "free: 5/90 s"."""
        tier = self.tier.slug if self.tier else gettext("every other tier")
        if self.unlimited:
            return f"{tier}: {gettext('unlimited')}"
        if self.calendar:
            return f"{tier}: {self.quota} / {self.calendar}"
        return f"{tier}: {self.quota}/{window_in_short(self.window_seconds)}"

    def natural_key(self) -> tuple[Any, ...]:
        tier = self.tier.slug if self.tier else None
        return self.rule.slug, tier, *(getattr(self, column) for column in MEANING)

    natural_key.dependencies = (  # type: ignore[attr-defined]
        "django_ratelimiter.rule",
        "django_ratelimiter.tier",
    )

    def to_limit(self) -> Limit | None:
        """Return the engine's limit for this row; `None` = unlimited. Raises ValueError with the field's name."""
        if self.unlimited:
            return None
        quota: Any = self.quota
        return Limit(quota, self.window_seconds, self.algorithm, **options_from(lambda name: getattr(self, name)))

    def clean(self) -> None:
        """Reject values that the engine cannot enforce or would ignore, and a limit below the rule's cost."""
        if self.timezone == "UTC":  # one value for one meaning: the database distinguishes limits by it
            self.timezone = ""
        if self.unlimited:
            self._reject_given(NOT_GIVEN, lambda: gettext("Leave this empty, or turn off “unlimited”."))
        elif all(getattr(self, column) in words for column, words in WORDS.items()):  # else the field has its own error
            self._clean_limited()

    def _reject_given(self, columns: Collection[str], text: Callable[[], str]) -> None:
        """Reject values in these columns, which would have no effect. text: returns the error message."""
        if given := [column for column in columns if getattr(self, column) != NOT_GIVEN[column]]:
            raise ValidationError(dict.fromkeys(given, text()))

    def _clean_limited(self) -> None:
        by_algorithm = columns_used(self.algorithm) | columns_used(self.algorithm, "month")
        used = columns_used(self.algorithm, self.calendar)
        self._reject_given(NOT_GIVEN.keys() - by_algorithm, lambda: gettext("%s does not use this.") % self.algorithm)
        self._reject_given(by_algorithm - used, lambda: gettext("Not used with this choice of calendar."))
        missing = [column for column in ("quota", "window_seconds") if column in used and getattr(self, column) is None]
        if missing:
            text = gettext("Required unless “unlimited” is set.")
            raise ValidationError({column: ValidationError(text, code="needed") for column in missing})
        rule = self.rule if self.rule_id or hasattr(self, "rule") else None
        try:
            limit: Any = self.to_limit()
            check_sync_interval(limit, sync_seconds(rule.sync_interval_ms if rule else None))
        except ValueError as error:
            raise ValidationError(_by_field(str(error))) from error
        cost = rule.cost if rule else 1
        if isinstance(cost, int) and limit.capacity < cost:
            text = gettext("This would reject every request, because one request costs %(cost)s.") % {"cost": cost}
            raise ValidationError({"burst" if self.burst else "quota": text})


def _by_field(message: str) -> dict[str, str]:
    """Return the engine's "field: text" as an error of this form."""
    name, colon, text = message.partition(": ")
    column = COLUMNS.get(name, name)
    if not colon or column not in {"algorithm", *NOT_GIVEN}:
        return {NON_FIELD_ERRORS: message}
    return {column: text if text.startswith(tuple(Algorithm)) else str(capfirst(text))}
