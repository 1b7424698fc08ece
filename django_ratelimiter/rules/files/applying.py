"""Applying a rules file to the database: completely, as one version, or not at all."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from django.db import transaction
from django.db.models import F
from django.utils.translation import gettext as _

from ...engine.base import Version
from ...values.terminal import on_terminal
from ..stored import storage
from ..stored.history.rows import NotApplied, RulesHaveChanged, replace_rules
from ..stored.tables import models
from .planning import FilePlan, drift_of, plan_file
from .rows import RulesFile


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
    overwrite: also undo changes in the database since the file was last applied or exported.
    Raises WrongFile, and NotApplied if it would undo such changes, or the database rejects the rows.
    """
    with transaction.atomic(using=storage.primary()):
        storage.state().update(number=F("number"))  # takes the lock, so that nobody else can save rules meanwhile
        plan = plan_file(file, delete=delete)
        if expected is not None and plan.state != expected:
            raise RulesHaveChanged(_("The database has changed since the plan was made. Make the plan again."))
        if plan.is_empty:
            return Applied(plan, None)
        if plan.drift and not overwrite:
            text = _("Nothing was changed. The file would undo changes that were made in the database in the meantime:")
            raise NotApplied(on_terminal([text, *drift_of(plan)]))
        name = os.path.basename(file.name)
        words = {"summary": f"rules applied from {name}", "author": author, "reason": reason}
        version = replace_rules(plan, others=plan.access, **words)
        storage.snapshots(version).update(source=name[: models.RuleSetVersion.source.field.max_length])
        return Applied(plan, version)
