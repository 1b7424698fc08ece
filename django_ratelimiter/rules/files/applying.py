"""Applying a rules file to the database: completely, as one version, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Final, NamedTuple

from django.db import transaction
from django.db.models import F
from django.utils.translation import gettext as _

from ...engine.base import Version
from ..stored import storage
from ..stored.history.rows import NotApplied, NotAsPlanned, RulesHaveChanged, replace_rules
from ..stored.tables import models
from .planning import FilePlan, plan_file
from .reading import RulesFile

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
    prune: bool = False,
    plan: FilePlan | None = None,
    expected: str | None = None,
    overwrite: bool = True,
) -> Applied:
    """Make the database equal to this file, in one transaction, as one version. Not within another `editing`.

    plan: that was just made, with the same `prune`. expected: the `state` of the approved plan; raises
    RulesHaveChanged if it differs.
    overwrite: also undo changes in the database since the file was last applied or exported; otherwise they raise
    WouldUndo. Raises WrongFile, and NotApplied if the database rejects the rows.
    """
    for attempt in range(1, ATTEMPTS + 1):
        with nullcontext() if attempt < ATTEMPTS else _locked():
            plan = plan if plan and attempt == 1 else plan_file(file, prune=prune)
            if expected is not None and plan.state != expected:
                raise _changed()
            if plan.is_empty:
                return Applied(plan, None)
            if plan.drift and not overwrite:
                raise WouldUndo(plan)
            with suppress(RulesHaveChanged):  # since the plan was made just now
                return Applied(plan, _apply(plan, author, reason))
    raise _changed()


@contextmanager
def _locked() -> Iterator[None]:
    """Open a transaction in which nobody else can save rules."""
    with transaction.atomic(using=storage.primary()):
        storage.state().update(number=F("number"))  # takes the lock on every database
        yield


def _apply(plan: FilePlan, author: Any, reason: str) -> Version:
    name = os.path.basename(plan.file.name)
    limit = models.RuleSetVersion.source.field.max_length
    summary = f"rules applied from {name}"
    with transaction.atomic(using=storage.primary()):
        try:
            version = replace_rules(
                plan.now,
                plan.planned,
                plan.seen,
                summary=summary,
                author=author,
                reason=reason,
                others=plan.access.rows,
            )
        except NotAsPlanned as error:
            text = _("After the write, the database contains something else. %(reasons)s")
            raise NotApplied(text % {"reasons": error}) from error
        storage.snapshots(version).update(source=name[:limit])
    return version


def _changed() -> RulesHaveChanged:
    return RulesHaveChanged(_("The database has changed since the plan was made. Make the plan again."))
