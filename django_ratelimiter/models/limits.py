"""Limits: what each tier may spend under a rule."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, ClassVar

from django.core.exceptions import NON_FIELD_ERRORS, ObjectDoesNotExist, ValidationError
from django.db import models
from django.db.models import F, Q
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..engine.limits import Algorithm, Limit
from .rules import Rule
from .tiers import Tier


def algorithm_choices() -> list[tuple[str, str]]:
    """The algorithms that the engine has. A callable, so that a new one needs no migration."""
    return [(algorithm.value, algorithm.value.replace("_", " ")) for algorithm in Algorithm]


class RuleLimitQuerySet(models.QuerySet["RuleLimit"]):
    """Limits, found in fixtures by rule, tier, algorithm and window."""

    def get_by_natural_key(
        self, rule: str, tier: str | None, algorithm: str, window_seconds: Decimal | str | None
    ) -> RuleLimit:
        tier_is = Q(tier__slug=tier) if tier else Q(tier=None)
        return self.get(tier_is, rule__slug=rule, algorithm=algorithm, window_seconds=window_seconds)


class RuleLimit(models.Model):
    """What one tier may spend under a rule. Several limits for one tier all apply.

    tier: `None` = every tier that has no limit of its own here, and callers without a tier.
    quota, window_seconds: `None` only where `unlimited`. burst: `None` = the quota. soft_quota: `None` = none.
    """

    rule = models.ForeignKey(Rule, models.CASCADE, related_name="limits", verbose_name=_("rule"))
    tier = models.ForeignKey(Tier, models.CASCADE, null=True, blank=True, related_name="limits", verbose_name=_("tier"))
    algorithm = models.CharField(
        _("algorithm"),
        max_length=32,
        choices=algorithm_choices,
        default=Algorithm.SLIDING_WINDOW_COUNTER.value,
        error_messages={"invalid_choice": _("%(value)r is unknown to this version of the program.")},
    )
    quota = models.PositiveBigIntegerField(_("quota"), null=True, blank=True, help_text=_("Units per window."))
    window_seconds = models.DecimalField(
        _("window in seconds"),
        max_digits=16,
        decimal_places=6,
        null=True,
        blank=True,
        help_text=_("60 = a minute, 3600 = an hour, 86400 = a day."),
    )
    burst = models.PositiveBigIntegerField(
        _("burst"),
        null=True,
        blank=True,
        help_text=_("What a full token bucket holds. Empty = the quota. Other algorithms have none."),
    )
    soft_quota = models.PositiveBigIntegerField(
        _("soft quota"),
        null=True,
        blank=True,
        help_text=_("Requests beyond it still pass, and are counted and marked as such. Empty = none."),
    )
    unlimited = models.BooleanField(
        _("unlimited"), default=False, help_text=_("The tier is not limited by this rule; no numbers then.")
    )

    objects = RuleLimitQuerySet.as_manager()

    class Meta:
        verbose_name = _("limit")
        verbose_name_plural = _("limits")
        ordering = (F("tier__rank").asc(nulls_last=True), "window_seconds", "pk")
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["rule", "tier", "algorithm", "window_seconds"], name="ratelimiter_limit_of_tier"
            ),
            models.UniqueConstraint(
                fields=["rule", "algorithm", "window_seconds"],
                condition=Q(tier=None),
                name="ratelimiter_limit_of_others",
                violation_error_message=_("Every other tier has a limit of this algorithm and window already."),
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
                condition=Q(
                    unlimited=True,
                    quota__isnull=True,
                    window_seconds__isnull=True,
                    burst__isnull=True,
                    soft_quota__isnull=True,
                )
                | Q(unlimited=False, quota__isnull=False, quota__gte=1, window_seconds__isnull=False),
                name="ratelimiter_limit_numbers",
            ),
        ]

    def __str__(self) -> str:
        try:
            return f"{self.rule.slug}, {self.in_short}"
        except ObjectDoesNotExist:  # while all of them are being deleted
            return f"#{self.pk}"

    @property
    def in_short(self) -> str:
        """The tier and its quota, whether they can be enforced or not: "free: 100 / 60 s"."""
        tier = self.tier.slug if self.tier else gettext("every other tier")
        if self.unlimited:
            return f"{tier}: {gettext('unlimited')}"
        seconds = str(self.window_seconds)
        if "." in seconds:
            seconds = seconds.rstrip("0").rstrip(".")
        return f"{tier}: {self.quota} / {seconds} s"

    def natural_key(self) -> tuple[str, str | None, str, Decimal | None]:
        return self.rule.slug, self.tier.slug if self.tier else None, self.algorithm, self.window_seconds

    natural_key.dependencies = (  # type: ignore[attr-defined]
        "django_ratelimiter.rule",
        "django_ratelimiter.tier",
    )

    def to_limit(self) -> Limit | None:
        """This row as the engine's limit; `None` = unlimited. Raises ValueError, naming the field."""
        if self.unlimited:
            return None
        return Limit(self.quota, self.window_seconds, self.algorithm, self.burst, self.soft_quota)  # type: ignore[arg-type]

    def clean(self) -> None:
        """Refuse what the engine could not enforce, and a limit below the rule's cost, which never passes."""
        if self.unlimited:
            self._clean_unlimited()
        elif self.algorithm in set(Algorithm):  # else the field says so itself
            self._clean_limited()

    def _clean_unlimited(self) -> None:
        fields = ("quota", "window_seconds", "burst", "soft_quota")
        if given := [field for field in fields if getattr(self, field) is not None]:
            text = gettext("Leave this empty, or take the tick from “unlimited”.")
            raise ValidationError(dict.fromkeys(given, text))

    def _clean_limited(self) -> None:
        missing = [field for field in ("quota", "window_seconds") if getattr(self, field) is None]
        if missing:
            text = gettext("Needed, unless the tier is unlimited.")
            raise ValidationError(dict.fromkeys(missing, text))
        try:
            limit: Any = self.to_limit()
        except ValueError as error:
            raise ValidationError(_by_field(str(error))) from error
        cost = self.rule.cost if self.rule_id or hasattr(self, "rule") else 1
        if isinstance(cost, int) and limit.capacity < cost:
            text = gettext("Never lets a request pass: one costs %(cost)s.") % {"cost": cost}
            raise ValidationError({"burst" if self.burst else "quota": text})


def _by_field(message: str) -> dict[str, str]:
    """The engine's "field: text" as this form's error."""
    name, colon, text = message.partition(": ")
    field = {"window": "window_seconds"}.get(name, name)
    if not colon or field not in {"quota", "window_seconds", "algorithm", "burst", "soft_quota"}:
        return {NON_FIELD_ERRORS: message}
    return {field: text if text.startswith(tuple(Algorithm)) else str(capfirst(text))}
