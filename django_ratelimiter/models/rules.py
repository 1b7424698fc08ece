"""Rules and their limits, as operators edit them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, ClassVar

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import F, Q
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..engine.limits import Algorithm, Limit
from ..rules.ruleset import IDENTITIES
from .tiers import Tier
from .validation import METHODS, validate_path, validate_words


def algorithm_choices() -> list[tuple[str, str]]:
    """The algorithms that the engine has. A callable, so that a new one needs no migration."""
    return [(algorithm.value, algorithm.value.replace("_", " ")) for algorithm in Algorithm]


class RuleQuerySet(models.QuerySet["Rule"]):
    """Rules, found by slug in fixtures."""

    def get_by_natural_key(self, slug: str) -> Rule:
        return self.get(slug=slug)


class Rule(models.Model):
    """Which requests are limited, by whom they are counted, and what happens to those that are refused."""

    class Mode(models.TextChoices):
        OFF = "off", _("off")
        SHADOW = "shadow", _("shadow")
        ENFORCE = "enforce", _("enforce")

    class PathKind(models.TextChoices):
        ANY = "any", _("any path")
        EXACT = "exact", _("exactly this path")
        PREFIX = "prefix", _("paths that start with it")
        ROUTE = "route", _("this route of urls.py")

    class MissingPartition(models.TextChoices):
        SKIP = "skip", _("does not meet this rule")
        IP = "ip", _("is counted by IP address")
        DENY = "deny", _("is refused")

    class FailurePolicy(models.TextChoices):
        OPEN = "open", _("allow every request")
        CLOSED = "closed", _("refuse every request (503)")
        LOCAL = "local", _("count in each process, with a share of the quota")

    slug = models.SlugField(
        _("slug"), unique=True, help_text=_("Its name in responses, reports and fixtures. Callers see it.")
    )
    name = models.CharField(_("name"), max_length=100)
    mode = models.CharField(
        _("mode"),
        max_length=16,
        choices=Mode.choices,
        default=Mode.ENFORCE,
        help_text=_("A rule in shadow counts whom it would refuse and refuses nobody."),
    )
    methods = models.JSONField(_("methods"), default=list, blank=True, help_text=_("None chosen = every method."))
    path = models.CharField(
        _("path"),
        max_length=500,
        blank=True,
        help_text=_("“/api/export/”, or a route as in urls.py: “items/&lt;int:pk&gt;/”."),
    )
    path_kind = models.CharField(_("path matches"), max_length=16, choices=PathKind.choices, default=PathKind.ANY)
    view_name = models.CharField(
        _("view name"),
        max_length=200,
        blank=True,
        help_text=_("With its namespace: “api:export”. Empty = every view."),
    )
    scope = models.CharField(
        _("scope"),
        max_length=100,
        blank=True,
        help_text=_("Only where code asks for this scope: a DRF view's throttle_scope, say. Empty = everywhere."),
    )
    partition_by = models.JSONField(
        _("counted by"),
        default=list,
        blank=True,
        help_text=_("Each value has a counter of its own. None chosen = one counter that all callers share."),
    )
    missing_partition = models.CharField(
        _("a request without such a value"),
        max_length=16,
        choices=MissingPartition.choices,
        default=MissingPartition.SKIP,
        help_text=_("An anonymous request has no user, and an unknown API key is none."),
    )
    failure_policy = models.CharField(
        _("while Redis is out of reach"), max_length=16, choices=FailurePolicy.choices, default=FailurePolicy.LOCAL
    )
    cost = models.PositiveIntegerField(
        _("cost"), default=1, validators=[MinValueValidator(1)], help_text=_("Units that one request spends.")
    )
    priority = models.IntegerField(
        _("priority"),
        default=100,
        help_text=_("Every rule that matches applies; the lower number is decided and shown first."),
    )
    message = models.CharField(
        _("message"), max_length=300, blank=True, help_text=_("Shown to the caller who is refused.")
    )
    description = models.TextField(_("description"), blank=True, help_text=_("For operators; callers never see it."))

    objects = RuleQuerySet.as_manager()

    class Meta:
        verbose_name = _("rule")
        verbose_name_plural = _("rules")
        ordering = ("priority", "slug")
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(cost__gte=1), name="ratelimiter_rule_cost"),
        ]

    def __str__(self) -> str:
        return self.name

    def natural_key(self) -> tuple[str]:
        return (self.slug,)

    def clean(self) -> None:
        """Refuse what could never match. A route loses its leading slash, which `resolver_match.route` lacks."""
        if self.path_kind == self.PathKind.ROUTE:
            self.path = self.path.removeprefix("/")
        errors: dict[str, ValidationError] = {}
        for field, check in (
            ("methods", lambda: validate_words(self.methods, METHODS)),
            ("partition_by", lambda: validate_words(self.partition_by, IDENTITIES)),
            ("path", lambda: validate_path(self.path, self.path_kind)),
        ):
            try:
                check()
            except ValidationError as error:
                errors[field] = error
        if errors:
            raise ValidationError(errors)


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
    quota = models.PositiveBigIntegerField(_("quota"), null=True, blank=True)
    window_seconds = models.DecimalField(_("window in seconds"), max_digits=16, decimal_places=6, null=True, blank=True)
    burst = models.PositiveBigIntegerField(_("burst"), null=True, blank=True)
    soft_quota = models.PositiveBigIntegerField(_("soft quota"), null=True, blank=True)
    unlimited = models.BooleanField(_("unlimited"), default=False)

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
            tier = self.tier.slug if self.tier else gettext("every other tier")
        except Tier.DoesNotExist:  # while both are being deleted
            tier = f"#{self.tier_id}"
        if self.unlimited:
            return f"{tier}: {gettext('unlimited')}"
        return f"{tier}: {self.quota} / {self.window_seconds} s"

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
