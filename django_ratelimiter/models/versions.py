"""The current rule set, and all earlier versions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, Final

from django.contrib.auth.base_user import AbstractBaseUser
from django.db import models
from django.db.models import Field, Q
from django.utils.translation import gettext_lazy as _

from ..conf import django_setting
from .people import set_null
from .validation import LazyText

USER_MODEL: Final[str] = django_setting("AUTH_USER_MODEL")


class RuleSetState(models.Model):
    """The only row, with the current version. A transaction that makes a version has its lock.

    number: of the current version; 0 = there is none yet.
    epoch: Unix milliseconds at which this numbering began; the later epoch wins over the higher number.
    enforcement_enabled: False = nothing is decided, counted or sent. Each version's snapshot contains it, too.
    published: a Redis was told of a version of this epoch. takeovers: how many epochs in a row were begun soon after
    one another, because Redis held a later version; from 2 on, another database uses the same Redis and NAMESPACE.
    """

    id: Field[int, int] = models.PositiveSmallIntegerField(primary_key=True, default=1, editable=False)
    number: Field[int, int] = models.PositiveBigIntegerField(_("number"), default=0)
    epoch: Field[int, int] = models.BigIntegerField(_("epoch"))
    enforcement_enabled: Field[bool, bool] = models.BooleanField(
        _("enforcement enabled"),
        default=True,
        db_default=True,  # rows written by SQL may omit it
    )
    published: Field[bool, bool] = models.BooleanField(_("published"), default=False, db_default=False)
    takeovers: Field[int, int] = models.PositiveIntegerField(_("takeovers"), default=0, db_default=0)

    class Meta:
        verbose_name: ClassVar[LazyText] = _("rule set state")
        verbose_name_plural: ClassVar[LazyText] = _("rule set state")
        permissions: ClassVar[list[tuple[str, str | LazyText]]] = [
            ("switch_enforcement", _("Can stop and resume all enforcement")),
            ("publish_rule", _("Can have rules enforced, and bring back a version")),
            ("unblock_caller", _("Can reset a caller's counters")),
            ("reveal_caller", _("Can see the names of callers instead of digests")),
        ]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(condition=Q(id=1), name="ratelimiter_state_one_row"),
        ]

    def __str__(self) -> str:
        return _("version %(number)s") % {"number": self.number}


class RuleSetVersion(models.Model):
    """One version of the whole rule set: processes load only its snapshot.

    author: `None` = not saved by a user of the admin, or by a deleted user.
    summary: what was saved, in English. reason: why, in the author's words; empty = none was given.
    source: the rules file that was applied; empty = the rules were changed otherwise.
    snapshot: from `rules.compiler.snapshot_of_rows`, with the switch of all enforcement.
    """

    number: Field[int, int] = models.PositiveBigIntegerField(_("number"))
    epoch: Field[int, int] = models.BigIntegerField(_("epoch"))
    created_at: Field[datetime, datetime] = models.DateTimeField(_("created at"), auto_now_add=True)
    author: models.ForeignKey[AbstractBaseUser | None, AbstractBaseUser | None] = models.ForeignKey(
        USER_MODEL,
        set_null,
        db_constraint=False,  # users may be in another database
        null=True,
        blank=True,
        related_name="+",
        verbose_name=_("author"),
    )
    summary: Field[str, str] = models.CharField(_("summary"), max_length=255, blank=True)
    reason: Field[str, str] = models.CharField(
        _("reason"),
        max_length=255,
        blank=True,
        db_default="",  # rows written by SQL may omit it
        help_text=_("Why the rules were changed. The history shows it."),
    )
    source: Field[str, str] = models.CharField(
        _("file"),
        max_length=255,
        blank=True,
        db_default="",  # rows written by SQL may omit it
    )
    snapshot: Field[Mapping[str, Any], Mapping[str, Any]] = models.JSONField(_("snapshot"))

    class Meta:
        verbose_name: ClassVar[LazyText] = _("rule set version")
        verbose_name_plural: ClassVar[LazyText] = _("rule set versions")
        ordering: ClassVar[tuple[str, ...]] = ("-epoch", "-number")
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["epoch", "number"], name="ratelimiter_version_number"),
        ]

    def __str__(self) -> str:
        return _("version %(number)s") % {"number": self.number}
