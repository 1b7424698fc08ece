"""Rules, as operators edit them."""

from __future__ import annotations

from typing import ClassVar

from django.core.exceptions import ValidationError
from django.core.validators import MaxLengthValidator, MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Field, Q
from django.utils.translation import gettext_lazy as _

from ..engine.limits import LOCAL_MS, MAX_SYNC_MS
from ..values.bounds import MAX_TEXT
from ..values.partitions import EXACT
from .validation import LazyText, validate_identities, validate_line, validate_methods, validate_path


class RuleQuerySet(models.QuerySet["Rule"]):
    """Rules, found in fixtures by slug."""

    def get_by_natural_key(self, slug: str) -> Rule:
        return self.get(slug=slug)


class Rule(models.Model):
    """A rule: the requests that it limits, how it counts them, and how it rejects them."""

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
        SKIP = "skip", _("skips this rule")
        IP = "ip", _("is counted by IP address")
        DENY = "deny", _("is rejected")

    class ChargeWhen(models.TextChoices):
        ANY = "any", _("always")
        SUCCESS = "success", _("if the response is a success")
        FAILURE = "failure", _("if the response is a failure")

    class FailurePolicy(models.TextChoices):
        OPEN = "open", _("allow every request")
        CLOSED = "closed", _("reject every request (503)")
        LOCAL = "local", _("count in each process, with a share of the quota")

    class Owner(models.TextChoices):
        ADMIN = "admin", _("the admin")
        FILE = "file", _("a file")

    slug: Field[str, str] = models.SlugField(
        _("slug"),
        unique=True,
        help_text=_(
            "The name of the rule in responses, reports and fixtures. If you change it, the counters start from zero."
        ),
    )
    name: Field[str, str] = models.CharField(_("name"), max_length=100, validators=[validate_line])
    mode: Field[str, str] = models.CharField(
        _("mode"),
        max_length=16,
        choices=Mode.choices,
        default=Mode.SHADOW,
        help_text=_("Shadow: count which requests would be rejected, and reject none. Enforce: reject them."),
    )
    methods: Field[list[str], list[str]] = models.JSONField(
        _("methods"),
        default=list,
        blank=True,
        validators=[validate_methods],
        help_text=_("None chosen = every method."),
    )
    path: Field[str, str] = models.CharField(
        _("path"),
        max_length=500,
        blank=True,
        validators=[validate_line],
        help_text=_("“/api/export/”, or a route as in urls.py: “items/&lt;int:pk&gt;/”."),
    )
    path_kind: Field[str, str] = models.CharField(
        _("path matches"), max_length=16, choices=PathKind.choices, default=PathKind.ANY
    )
    view_name: Field[str, str] = models.CharField(
        _("view name"),
        max_length=200,
        blank=True,
        validators=[validate_line],
        help_text=_("With its namespace: “api:export”. Empty = every view."),
    )
    scope: Field[str, str] = models.CharField(
        _("scope"),
        max_length=100,
        blank=True,
        validators=[validate_line],
        help_text=_(
            "The rule applies only where code asks for this scope, for example with a DRF view's throttle_scope. "
            "Empty = everywhere."
        ),
    )
    partition_by: Field[list[str], list[str]] = models.JSONField(
        _("counted by"),
        default=list,
        blank=True,
        validators=[validate_identities],
        help_text=_("Each value has its own counter. None chosen = one counter that all callers share."),
    )
    missing_partition: Field[str, str] = models.CharField(
        _("a request without such a value"),
        max_length=16,
        choices=MissingPartition.choices,
        default=MissingPartition.SKIP,
        help_text=_(
            "For example, an anonymous request has no user. An unknown API key counts as missing. Counted by IP "
            "address, the requests whose body cannot be read share one counter if the rule is for one view or path."
        ),
    )
    failure_policy: Field[str, str] = models.CharField(
        _("while Redis is out of reach"), max_length=16, choices=FailurePolicy.choices, default=FailurePolicy.LOCAL
    )
    cost: Field[int, int] = models.PositiveIntegerField(
        _("cost"), default=1, validators=[MinValueValidator(1)], help_text=_("Units that one request uses.")
    )
    charge_when: Field[str, str] = models.CharField(
        _("charge when"),
        max_length=16,
        choices=ChargeWhen.choices,
        default=ChargeWhen.ANY,
        db_default="any",  # rows written by SQL may omit it
        help_text=_(
            "Each request is charged when it arrives. The charge is refunded if the response does not match this "
            "choice. A failure is a status of 400 or above, or a failed login."
        ),
    )
    count_refusals: Field[bool, bool] = models.BooleanField(
        _("count rejections"),
        default=False,
        db_default=False,  # rows written by SQL may omit it
        help_text=_("Rejected requests count too. Callers who keep trying may then be rejected for longer."),
    )
    exact_usage: Field[bool, bool] = models.BooleanField(
        _("count every caller exactly"),
        default=False,
        db_default=False,  # rows written by SQL may omit it
        help_text=_(
            "For invoices and reports per caller, beside the totals. Suggested for rules by customer, API key or user. "
            "Only if the rule counts by one of these or the IP address, and by nothing else."
        ),
    )
    sync_interval_ms: Field[int | None, int | None] = models.IntegerField(
        _("keep fetched units for (ms)"),
        null=True,
        blank=True,
        validators=[MinValueValidator(LOCAL_MS), MaxValueValidator(MAX_SYNC_MS)],
        help_text=_(
            "Empty = Redis decides each request. A number of milliseconds = each process fetches units in advance and "
            "keeps them so long. -1 = each process counts by itself. Not for leaky buckets and concurrency."
        ),
    )
    priority: Field[int, int] = models.IntegerField(
        _("priority"),
        default=100,
        help_text=_("All rules that match apply. Rules with lower numbers are decided and shown first."),
    )
    message: Field[str, str] = models.CharField(
        _("message"),
        max_length=300,
        blank=True,
        validators=[validate_line],
        help_text=_("Shown to the caller whose request is rejected."),
    )
    description: Field[str, str] = models.TextField(
        _("description"),
        blank=True,
        validators=[MaxLengthValidator(MAX_TEXT)],  # each version stores it again
        help_text=_("For operators; callers never see it."),
    )
    owner: Field[str, str] = models.CharField(
        _("owner"),
        max_length=16,
        choices=Owner.choices,
        default=Owner.ADMIN,
        db_default="admin",  # rows written by SQL may omit it
        help_text=_("A rule of a file is changed in that file, and read-only in the admin."),
    )

    objects: ClassVar[models.Manager[Rule]] = RuleQuerySet.as_manager()

    class Meta:
        verbose_name: ClassVar[LazyText] = _("rule")
        verbose_name_plural: ClassVar[LazyText] = _("rules")
        ordering: ClassVar[tuple[str, ...]] = ("priority", "slug")
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(condition=Q(cost__gte=1), name="ratelimiter_rule_cost"),
            models.CheckConstraint(
                condition=Q(sync_interval_ms=None) | Q(sync_interval_ms__range=(LOCAL_MS, MAX_SYNC_MS)),
                name="ratelimiter_rule_sync_interval",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def natural_key(self) -> tuple[str]:
        return (self.slug,)

    @property
    def is_for_everybody(self) -> bool:
        """Return whether it matches every request, or every GET, and all callers share one counter, in any mode."""
        every_path = self.path_kind == self.PathKind.ANY or (self.path_kind, self.path) == (self.PathKind.PREFIX, "/")
        every_view = every_path and not self.view_name and not self.scope
        return every_view and not self.partition_by and (not self.methods or "GET" in self.methods)

    def clean(self) -> None:
        """Reject what can never match, or be counted. A route loses its leading slash: `resolver_match` has none."""
        if self.path_kind == self.PathKind.ROUTE:
            self.path = self.path.removeprefix("/")
        try:
            validate_path(self.path, self.path_kind)
        except ValidationError as error:
            raise ValidationError({"path": error}) from error
        if self.exact_usage and self.partition_by not in [[name] for name in EXACT]:
            text = _("Every caller can be counted only if the rule counts by one of these alone: %(names)s.")
            raise ValidationError({"exact_usage": text % {"names": ", ".join(EXACT)}})
