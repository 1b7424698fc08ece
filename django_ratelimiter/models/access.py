"""The access list: callers that skip all rules, and callers that are always denied."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Field
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext

from ..values.access import ACTIONS
from .validation import LazyText, normal_caller, normal_network, validate_line


class AccessEntryQuerySet(models.QuerySet["AccessEntry"]):
    """Entries, found in fixtures by their caller."""

    def get_by_natural_key(self, kind: str, value: str) -> AccessEntry:
        return self.get(kind=kind, value=value)


class AccessEntry(models.Model):
    """Denies all requests of one caller, or exempts the caller from all rules. It is checked before any rule."""

    class Action(models.TextChoices):
        ALLOW = "allow", _("allow: skip all rules")
        DENY = "deny", _("deny: every request is rejected (403)")

    class Kind(models.TextChoices):
        IP = "ip", _("address or network")
        USER = "user", _("user")
        API_KEY = "api_key", _("API key")
        DIGEST = "digest", _("digest of a caller")
        CUSTOMER = "customer", _("customer")

    action: Field[str, str] = models.CharField(_("action"), max_length=16, choices=Action.choices, default=ACTIONS[1])
    kind: Field[str, str] = models.CharField(_("kind"), max_length=16, choices=Kind.choices)
    value: Field[str, str] = models.CharField(
        _("value"),
        max_length=200,
        validators=[validate_line],
        help_text=_(
            "An address or network, the primary key of a user or customer, the SHA-256 digest of an API key in hex, or "
            "what rules count a caller by and its digest, such as “ip:DIGEST” or “user or ip:DIGEST”."
        ),
    )
    expires_at: Field[datetime | None, datetime | None] = models.DateTimeField(
        _("until"), null=True, blank=True, help_text=_("Empty = no end.")
    )
    reason: Field[str, str] = models.CharField(
        _("reason"), max_length=200, blank=True, validators=[validate_line], help_text=_("For operators.")
    )

    objects: ClassVar[models.Manager[AccessEntry]] = AccessEntryQuerySet.as_manager()

    class Meta:
        verbose_name: ClassVar[LazyText] = _("access entry")
        verbose_name_plural: ClassVar[LazyText] = _("access entries")
        ordering: ClassVar[tuple[str, ...]] = ("kind", "value")
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["kind", "value"],
                name="ratelimiter_access_entry_value",
                violation_error_message=_("This caller already has an entry. Change that entry instead."),
            ),
            models.CheckConstraint(
                condition=~models.Q(kind="digest") | models.Q(value__contains=":"),
                name="ratelimiter_access_entry_digest",
                violation_error_message=_("Enter what rules count the caller by before its digest: “ip:DIGEST”."),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.action_in_words} {self.subject}"

    @property
    def action_in_words(self) -> str:
        """Return the action in one word."""
        words = {"allow": pgettext("access entry", "allow"), "deny": pgettext("access entry", "deny")}
        return words.get(self.action, self.action)

    @property
    def subject(self) -> str:
        """Return the caller as text; of an API key only the start of its hash."""
        if self.kind == self.Kind.API_KEY:
            return _("API key %s…") % self.value[:8]
        if self.kind == self.Kind.DIGEST:
            by, _colon, digest = self.value.rpartition(":")
            return _("caller %(digest)s, by %(by)s") % {"digest": digest, "by": by}
        if self.kind == self.Kind.CUSTOMER:
            return _("customer %s") % self.value
        return _("user %s") % self.value if self.kind == self.Kind.USER else self.value

    @property
    def is_for_everybody(self) -> bool:
        """Return whether it is for every IPv4 or IPv6 address. Raises ValidationError for an invalid value."""
        return self.kind == self.Kind.IP and normal_network(self.value).endswith("/0")

    def natural_key(self) -> tuple[str, str]:
        return self.kind, self.value

    def clean(self) -> None:
        """Reject a value that no request can have. An address, network or user's key is normalized."""
        try:
            self.value = normal_caller(self.kind, self.value)
        except ValidationError as error:
            raise ValidationError({"value": error}) from error
