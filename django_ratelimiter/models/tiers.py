"""Tiers, and their assignments."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar, Final

from django.contrib.auth import get_user_model
from django.contrib.auth.base_user import AbstractBaseUser
from django.contrib.auth.models import Group
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import F, Field, Q
from django.utils.translation import gettext_lazy as _

from .. import tenants
from ..conf import django_setting
from ..values.partitions import encode_partition
from .people import cascade, referred, set_null
from .validation import LazyText, normal_partition, validate_hash, validate_line

USER_MODEL: Final[str] = django_setting("AUTH_USER_MODEL")


class TierQuerySet(models.QuerySet["Tier"]):
    """Tiers, found in fixtures by slug."""

    def get_by_natural_key(self, slug: str) -> Tier:
        return self.get(slug=slug)


class Tier(models.Model):
    """A class of callers that share their limits, such as "free" or "enterprise"."""

    class DefaultFor(models.TextChoices):
        NONE = "none", _("nobody")
        ANONYMOUS = "anonymous", _("anonymous callers")
        AUTHENTICATED = "authenticated", _("authenticated callers")

    slug: Field[str, str] = models.SlugField(
        _("slug"), unique=True, help_text=_("The name of the tier in rules, reports and fixtures.")
    )
    name: Field[str, str] = models.CharField(_("name"), max_length=100, validators=[validate_line])
    rank: Field[int, int] = models.IntegerField(
        _("rank"),
        default=0,
        help_text=_("A caller who is assigned to several tiers gets the one with the highest rank."),
    )
    default_for: Field[str, str] = models.CharField(
        _("default for"),
        max_length=16,
        choices=DefaultFor.choices,
        default=DefaultFor.NONE,
        help_text=_("These callers are in this tier if they have no assignment."),
    )

    objects: ClassVar[models.Manager[Tier]] = TierQuerySet.as_manager()

    class Meta:
        verbose_name: ClassVar[LazyText] = _("tier")
        verbose_name_plural: ClassVar[LazyText] = _("tiers")
        ordering: ClassVar[tuple[str, ...]] = ("rank", "slug")
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["default_for"],
                condition=~Q(default_for="none"),
                name="ratelimiter_tier_one_default",
                violation_error_message=_("Another tier is already the default for these callers."),
            )
        ]

    def __str__(self) -> str:
        return self.name

    def natural_key(self) -> tuple[str]:
        return (self.slug,)


class TierAssignmentQuerySet(models.QuerySet["TierAssignment"]):
    """Assignments, found in fixtures by tier and subject."""

    def get_by_natural_key(
        self,
        tier: str | None,
        username: str | None,
        group: str | None,
        api_key_hash: str,
        partition: str = "",
        starts_at: datetime | None = None,
        ends_at: datetime | None = None,
    ) -> TierAssignment:
        user_field = f"user__{get_user_model().USERNAME_FIELD}"
        subject = {user_field: username, "group__name": group, "api_key_hash": api_key_hash, "partition": partition}
        found = self.filter(tier__slug=tier, **{field: value for field, value in subject.items() if value})
        return found.filter(starts_at=starts_at, ends_at=ends_at).earliest("pk")


#: The subjects of assignments, by column, with the value that means "not set".
SUBJECTS: Final[dict[str, Any]] = {"user": None, "group": None, "api_key_hash": "", "partition": ""}

_UNDATED: Final = Q(starts_at=None, ends_at=None)


def _only(subject: str) -> Q:
    others = {name: nobody for name, nobody in SUBJECTS.items() if name != subject}
    return Q(**others) & ~Q(**{subject: SUBJECTS[subject]})


class TierAssignment(models.Model):
    """Gives a user, a group of users, an API key or a partition a tier or a multiplier, permanently or for a time."""

    tier: models.ForeignKey[Tier | None, Tier | None] = models.ForeignKey(
        Tier,
        models.CASCADE,
        null=True,
        blank=True,
        related_name="assignments",
        verbose_name=_("tier"),
        help_text=_("Empty = the tier that these callers have anyway. Then the multiplier goes on top of it."),
    )
    user: models.ForeignKey[AbstractBaseUser | None, AbstractBaseUser | None] = models.ForeignKey(
        USER_MODEL,
        cascade,
        db_constraint=False,  # users may be in another database
        null=True,
        blank=True,
        related_name="ratelimiter_assignments",
        verbose_name=_("user"),
    )
    group: models.ForeignKey[Group | None, Group | None] = models.ForeignKey(
        Group,
        cascade,
        db_constraint=False,  # users may be in another database
        null=True,
        blank=True,
        related_name="ratelimiter_assignments",
        verbose_name=_("group"),
    )
    api_key_hash: Field[str, str] = models.CharField(
        _("API key hash"),
        max_length=64,
        blank=True,
        default="",
        validators=[validate_hash],
        help_text=_("The SHA-256 digest of the key, in hex. The key itself is not stored."),
    )
    partition: Field[str, str] = models.CharField(
        _("partition"),
        max_length=200,
        blank=True,
        default="",
        db_default="",  # rows written by SQL may omit it
        help_text=_("A value that rules count by, stored as you enter it: “ip:192.0.2.7” or “ip:192.0.2.0/24”."),
    )
    multiplier: models.DecimalField[Decimal, Decimal] = models.DecimalField(
        _("multiplier"),
        max_digits=8,
        decimal_places=3,
        default=Decimal(1),
        db_default=Decimal(1),
        validators=[MinValueValidator(Decimal("0.001"))],
        help_text=_(
            "Multiplies quota, burst and soft quota of every limit that applies, but not of counters that all callers "
            "share. 2 = twice as much."
        ),
    )
    anchor_day: Field[int | None, int | None] = models.PositiveSmallIntegerField(
        _("first day of the month"),
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(31)],
        help_text=_(
            "1 to 31: limits per calendar month begin on this day for the caller. In a shorter month, its last day is "
            "used. Empty = as each limit says."
        ),
    )
    starts_at: Field[datetime | None, datetime | None] = models.DateTimeField(
        _("from"), null=True, blank=True, help_text=_("Assignments with dates take precedence over those without.")
    )
    ends_at: Field[datetime | None, datetime | None] = models.DateTimeField(_("until"), null=True, blank=True)
    reason: Field[str, str] = models.CharField(_("reason"), max_length=200, blank=True, validators=[validate_line])
    created_by: models.ForeignKey[AbstractBaseUser | None, AbstractBaseUser | None] = models.ForeignKey(
        USER_MODEL,
        set_null,
        db_constraint=False,  # users may be in another database
        null=True,
        blank=True,
        editable=False,
        related_name="+",
        verbose_name=_("created by"),
    )
    created_at: Field[datetime, datetime] = models.DateTimeField(_("created at"), auto_now_add=True)

    objects: ClassVar[models.Manager[TierAssignment]] = TierAssignmentQuerySet.as_manager()

    #: The name of the customer that the partition is of, for readers who may see it; "" = as in the partition.
    name = ""

    class Meta:
        verbose_name: ClassVar[LazyText] = _("tier assignment")
        verbose_name_plural: ClassVar[LazyText] = _("tier assignments")
        ordering: ClassVar[tuple[str, ...]] = ("-pk",)
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["api_key_hash"], name="ratelimiter_assignment_key"),
            models.Index(fields=["partition"], name="ratelimiter_assignment_part"),
        ]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(
                condition=_only("user") | _only("group") | _only("api_key_hash") | _only("partition"),
                name="ratelimiter_assignment_one_subject",
                violation_error_message=_("Choose exactly one of user, group, API key and partition."),
            ),
            *(
                models.UniqueConstraint(
                    fields=[subject, "tier"],
                    condition=_UNDATED if SUBJECTS[subject] is None else ~Q(**{subject: ""}) & _UNDATED,
                    name=f"ratelimiter_assignment_{subject.removesuffix('_hash')}",
                    violation_error_message=text,
                )
                for subject, text in (
                    ("user", _("This user is in this tier already.")),
                    ("group", _("This group is in this tier already.")),
                    ("api_key_hash", _("This API key is in this tier already.")),
                    ("partition", _("This partition is in this tier already.")),
                )
            ),
            models.CheckConstraint(
                condition=Q(multiplier__gt=0),
                name="ratelimiter_assignment_multiplier",
                violation_error_message=_("The multiplier must be above 0."),
            ),
            models.CheckConstraint(
                condition=Q(anchor_day=None) | Q(anchor_day__range=(1, 31)),
                name="ratelimiter_assignment_anchor",
                violation_error_message=_("Days are from 1 to 31."),
            ),
            models.CheckConstraint(
                condition=Q(starts_at=None) | Q(ends_at=None) | Q(ends_at__gt=F("starts_at")),
                name="ratelimiter_assignment_dates",
                violation_error_message=_("“until” must be later than “from”."),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name or self.subject}: {self.tier or _('their own tier')}"

    def save(self, *args: Any, **options: Any) -> None:
        self._name_tenant()
        super().save(*args, **options)

    @property
    def subject(self) -> str:
        """Return the subject as text; of an API key only the start of its hash, a partition as it was entered."""
        if self.user_id is not None:
            return _("user %s") % (referred(self, "user") or self.user_id)
        if self.group_id is not None:
            return _("group %s") % (referred(self, "group") or self.group_id)
        if self.partition:
            return self.partition
        return _("API key %s…") % self.api_key_hash[:8]

    def _name_tenant(self) -> None:
        """Assign a tenant's own user as a partition, with the schema: others have users with the same primary key."""
        if self.user_id is not None and tenants.have_own_users():
            self.partition, self.user = encode_partition([("user", tenants.user_key(self.user_id))]), None

    def clean(self) -> None:
        """Reject a partition that no request can have; an address or network is normalized."""
        self._name_tenant()
        if self.tier_id is None and self.multiplier == 1 and self.anchor_day is None:
            raise ValidationError(_("Choose a tier, or enter a multiplier or a first day of the month."))
        if self.group_id is not None and tenants.have_own("auth"):
            raise ValidationError({"group": _("Each tenant has its own groups. Assign users or partitions instead.")})
        if self.partition:
            try:
                self.partition = normal_partition(self.partition)
            except ValidationError as error:
                raise ValidationError({"partition": error}) from error

    def natural_key(self) -> tuple[Any, ...]:
        user, group = (referred(self, name) for name in ("user", "group"))
        subject = user and user.get_username(), group and group.name, self.api_key_hash, self.partition
        return self.tier and self.tier.slug, *subject, self.starts_at, self.ends_at

    natural_key.dependencies = (  # type: ignore[attr-defined]
        "django_ratelimiter.tier",
        USER_MODEL,
        "auth.group",
    )
