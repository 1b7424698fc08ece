"""Tiers, and who is in them."""

from __future__ import annotations

from typing import ClassVar, Final

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.core.validators import RegexValidator
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from ..conf import django_setting

USER_MODEL: Final[str] = django_setting("AUTH_USER_MODEL")


class TierQuerySet(models.QuerySet["Tier"]):
    """Tiers, found by slug in fixtures."""

    def get_by_natural_key(self, slug: str) -> Tier:
        return self.get(slug=slug)


class Tier(models.Model):
    """A class of callers that share their limits, such as "free" or "enterprise"."""

    class DefaultFor(models.TextChoices):
        NONE = "none", _("nobody")
        ANONYMOUS = "anonymous", _("anonymous callers")
        AUTHENTICATED = "authenticated", _("authenticated callers")

    slug = models.SlugField(_("slug"), unique=True, help_text=_("Its name in rules, reports and fixtures."))
    name = models.CharField(_("name"), max_length=100)
    rank = models.IntegerField(
        _("rank"), default=0, help_text=_("A caller assigned to several tiers is in the one of highest rank.")
    )
    default_for = models.CharField(
        _("default for"),
        max_length=16,
        choices=DefaultFor.choices,
        default=DefaultFor.NONE,
        help_text=_("Callers without an assignment who are in this tier."),
    )

    objects = TierQuerySet.as_manager()

    class Meta:
        verbose_name = _("tier")
        verbose_name_plural = _("tiers")
        ordering = ("rank", "slug")
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["default_for"],
                condition=~Q(default_for="none"),
                name="ratelimiter_tier_one_default",
                violation_error_message=_("Another tier is the default for these callers already."),
            )
        ]

    def __str__(self) -> str:
        return self.name

    def natural_key(self) -> tuple[str]:
        return (self.slug,)


class TierAssignmentQuerySet(models.QuerySet["TierAssignment"]):
    """Assignments, found in fixtures by tier and subject."""

    def get_by_natural_key(
        self, tier: str, username: str | None, group: str | None, api_key_hash: str
    ) -> TierAssignment:
        user_field = f"user__{get_user_model().USERNAME_FIELD}"
        subject = {user_field: username, "group__name": group, "api_key_hash": api_key_hash}
        return self.get(tier__slug=tier, **{field: value for field, value in subject.items() if value})


class TierAssignment(models.Model):
    """Puts one user, one group of users or one API key into a tier."""

    tier = models.ForeignKey(Tier, models.CASCADE, related_name="assignments", verbose_name=_("tier"))
    user = models.ForeignKey(
        USER_MODEL,
        models.CASCADE,
        null=True,
        blank=True,
        related_name="ratelimiter_assignments",
        verbose_name=_("user"),
    )
    group = models.ForeignKey(
        Group,
        models.CASCADE,
        null=True,
        blank=True,
        related_name="ratelimiter_assignments",
        verbose_name=_("group"),
    )
    api_key_hash = models.CharField(
        _("API key hash"),
        max_length=64,
        blank=True,
        default="",
        validators=[RegexValidator(r"\A[0-9a-f]{64}\Z", _("This is not a SHA-256 digest in lower-case hex."))],
        help_text=_("The SHA-256 digest of the key, in hex. The key itself is not kept."),
    )
    reason = models.CharField(_("reason"), max_length=200, blank=True)
    created_by = models.ForeignKey(
        USER_MODEL,
        models.SET_NULL,
        null=True,
        blank=True,
        editable=False,
        related_name="+",
        verbose_name=_("created by"),
    )
    created_at = models.DateTimeField(_("created at"), auto_now_add=True)

    objects = TierAssignmentQuerySet.as_manager()

    class Meta:
        verbose_name = _("tier assignment")
        verbose_name_plural = _("tier assignments")
        ordering = ("-created_at", "-pk")
        indexes: ClassVar = [models.Index(fields=["api_key_hash"], name="ratelimiter_assignment_key")]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(user__isnull=False, group__isnull=True, api_key_hash="")
                | Q(user__isnull=True, group__isnull=False, api_key_hash="")
                | (Q(user__isnull=True, group__isnull=True) & ~Q(api_key_hash="")),
                name="ratelimiter_assignment_one_subject",
                violation_error_message=_("Choose exactly one of user, group and API key."),
            ),
            models.UniqueConstraint(
                fields=["user", "tier"],
                name="ratelimiter_assignment_user",
                violation_error_message=_("This user is in this tier already."),
            ),
            models.UniqueConstraint(
                fields=["group", "tier"],
                name="ratelimiter_assignment_group",
                violation_error_message=_("This group is in this tier already."),
            ),
            models.UniqueConstraint(
                fields=["api_key_hash", "tier"],
                condition=~Q(api_key_hash=""),
                name="ratelimiter_assignment_api_key",
                violation_error_message=_("This API key is in this tier already."),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.subject}: {self.tier}"

    @property
    def subject(self) -> str:
        """Who is assigned, in words; of an API key only the start of its hash."""
        if self.user_id is not None:
            return _("user %s") % self.user
        if self.group_id is not None:
            return _("group %s") % self.group
        return _("API key %s…") % self.api_key_hash[:8]

    def natural_key(self) -> tuple[str, str | None, str | None, str]:
        username = self.user.get_username() if self.user else None
        return self.tier.slug, username, self.group.name if self.group else None, self.api_key_hash

    natural_key.dependencies = (  # type: ignore[attr-defined]
        "django_ratelimiter.tier",
        USER_MODEL,
        "auth.group",
    )
