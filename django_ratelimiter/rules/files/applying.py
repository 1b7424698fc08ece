"""Applying a rules file to the database: completely, as one version, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Final, NamedTuple

from django.db import transaction
from django.db.models import F
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...engine.base import Version
from ..stored import storage
from ..stored.history.rows import NotApplied, NotAsPlanned, RulesHaveChanged, replace_rules
from ..stored.tables import models
from .planning import FilePlan, plan_file
from .reading import RulesFile

_CHANGED: Final = gettext_lazy("The database has changed since the plan was made. Make the plan again.")

#: How often a plan is made, if the rules are changed meanwhile. For the last one, nobody else can change them.
ATTEMPTS: Final = 5


class WouldUndo(NotApplied):
    """The file would undo changes in the database since it was last applied or exported."""

    def __init__(self, plan: FilePlan) -> None:
        self.plan = plan
        super().__init__(_("The file would undo changes that were made in the database since then."))


class Applied(NamedTuple):
    """The result. version: the new one; `None` = there was no difference, so no version was made."""

    plan: FilePlan
    version: Version | None


def apply_file(
    file: RulesFile,
    *,
    author: Any = None,
    reason: str = "",
    delete: bool = False,
    expected: str | None = None,
    overwrite: bool = True,
) -> Applied:
    """Make the rows that this file names equal to it, in one transaction, as one version. Not within another `editing`.

    expected: the `state` of the approved plan; raises RulesHaveChanged if it differs.
    overwrite: also undo changes in the database since the file was last applied or exported; otherwise they raise
    WouldUndo. Raises WrongFile, and NotApplied if the database rejects the rows.
    """
    for attempt in range(1, ATTEMPTS + 1):
        with nullcontext() if attempt < ATTEMPTS else _locked():
            plan = plan_file(file, delete=delete)
            if expected is not None and plan.state != expected:
                raise RulesHaveChanged(_CHANGED)
            if plan.is_empty:
                return Applied(plan, None)
            if plan.drift and not overwrite:
                raise WouldUndo(plan)
            with suppress(RulesHaveChanged):  # since the plan was made just now
                return Applied(plan, _apply(plan, author, reason))
    raise RulesHaveChanged(_CHANGED)


@contextmanager
def _locked() -> Iterator[None]:
    """Open a transaction in which nobody else can save rules."""
    with transaction.atomic(using=storage.primary()):
        storage.state().update(number=F("number"))  # takes the lock on every database
        yield


def _apply(plan: FilePlan, author: Any, reason: str) -> Version:
    name = os.path.basename(plan.file.name)
    limit = models.RuleSetVersion.source.field.max_length
    with transaction.atomic(using=storage.primary()):
        try:
            words = {"summary": f"rules applied from {name}", "author": author, "reason": reason}
            version = replace_rules(plan.now, plan.planned, plan.seen, others=plan.access, **words)
        except NotAsPlanned as error:
            text = _("After the write, the database contains something else. %(reasons)s")
            raise NotApplied(text % {"reasons": error}) from error
        storage.snapshots(version).update(source=name[:limit])
    return version
