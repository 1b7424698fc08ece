"""From rows to a snapshot. A row that cannot be enforced affects only its own rule, which is left out with a reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from copy import copy
from typing import Any

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.db import router
from django.db.models import CharField, Model, QuerySet
from django.db.models.functions import Cast
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from ...logs import logger
from ..ruleset import rule_from
from .tables import models


def snapshot_of_rows(rows_as: Callable[[QuerySet[Any]], QuerySet[Any]] = lambda rows: rows) -> dict[str, Any]:
    """Return all tiers, and all rules that can be enforced, in three queries; `left_out` names the others.

    `left_out` is a list of {"rule": slug, "reason": text}. Reads the database that rules are written to.
    rows_as: applied to the query set of each table.
    """
    db = router.db_for_write(models.Rule)
    tiers, faulty_tiers = _split(rows_as(models.Tier.objects.using(db)))
    limits = defaultdict(list)
    for limit in _limits(rows_as(models.RuleLimit.objects.using(db))):
        limits[limit.rule_id].append(limit)
    rules, left_out = [], []
    for rule in rows_as(models.Rule.objects.using(db)):
        data, reasons = _compile(rule, limits[rule.pk], faulty_tiers)
        if reasons:
            left_out.append({"rule": rule.slug, "reason": " ".join(reasons)})
        else:
            rules.append(data)
    return {"tiers": _tiers_data(tiers), "rules": rules, "left_out": left_out}


def reasons_against(rule: models.Rule) -> list[str]:
    """Return why this saved rule, with its saved limits and tiers, cannot be enforced; empty = it can."""
    db = router.db_for_write(models.Rule)
    limits = list(_limits(models.RuleLimit.objects.using(db).filter(rule=rule.pk)))
    faulty_tiers = _split({limit.tier for limit in limits if limit.tier})[1]
    return _compile(copy(rule), limits, faulty_tiers)[1]


def _limits(limits: QuerySet[models.RuleLimit]) -> Iterable[models.RuleLimit]:
    """Yield limits, the oldest first: in responses, the oldest of a rule has the rule's name alone."""
    # As text: SQLite may hold any text in a decimal column, and reading it as a decimal would fail for all rows.
    rows = limits.select_related("tier").order_by("pk").defer("window_seconds")
    found: Any = rows.annotate(window_text=Cast("window_seconds", CharField()))
    for limit in found:
        limit.window_seconds = limit.window_text
        yield limit


def _split(tiers: Iterable[models.Tier]) -> tuple[list[models.Tier], dict[int, list[str]]]:
    """Return the valid tiers, and the errors of the others by primary key."""
    faults = {tier: _faults(tier, exclude={"name"}) for tier in tiers}
    usable = [tier for tier, found in faults.items() if not found]
    return usable, {tier.pk: found for tier, found in faults.items() if found}


def _compile(
    rule: models.Rule, limits: Collection[models.RuleLimit], faulty_tiers: dict[int, list[str]]
) -> tuple[dict[str, Any], list[str]]:
    """Return the rule as in a snapshot, and its errors."""
    reasons = _faults(rule, exclude={"name", "message", "description"})  # which enforcement does not need
    for limit in limits:
        limit.rule = rule
        faults = _faults(limit, exclude={"rule", "tier"}) + faulty_tiers.get(limit.tier_id or 0, [])
        if limit.tier_id is not None and not limit.tier:  # else it would count as a limit for every other tier
            faults.append(_("Its tier no longer exists."))
        reasons += [f"{capfirst(limit._meta.verbose_name)} “{limit.in_short}”: {fault}" for fault in faults]
    if reasons:
        return {}, reasons
    data = rule_data(rule, limits)
    try:
        rule_from(data)
    except ValueError as error:
        return {}, [str(error)]
    return data, []


def _faults(row: Model, exclude: set[str]) -> list[str]:
    """Return the errors that the form would show for this row."""
    try:
        row.full_clean(exclude=exclude, validate_unique=False, validate_constraints=False)
    except ValidationError as error:
        return [_sentence(row, *fault) for fault in error.message_dict.items()]
    except ArithmeticError as error:  # SQLite can hold an infinite number in any column
        return [_("A number cannot be read: %s.") % error]
    return []


def _sentence(row: Model, field: str, messages: list[str]) -> str:
    text = " ".join(messages)
    if field == NON_FIELD_ERRORS:
        return text
    return f"{capfirst(getattr(row._meta.get_field(field), 'verbose_name', field))}: {text}"


def _tiers_data(tiers: Iterable[models.Tier]) -> list[dict[str, Any]]:
    """Return the tiers, by rank. If several are the default for the same callers, as MySQL allows, keep the last."""
    found = [data_of(tier) for tier in tiers]
    for kind in (models.Tier.DefaultFor.ANONYMOUS, models.Tier.DefaultFor.AUTHENTICATED):
        defaults = [data for data in found if data["default_for"] == kind]
        if len(defaults) > 1:
            slugs = ", ".join(data["slug"] for data in defaults)
            text = "Tiers %s are all the default for %s callers; only %s, of the highest rank, is used."
            logger.error(text, slugs, kind.value, defaults[-1]["slug"])
        for data in defaults[:-1]:
            data["default_for"] = models.Tier.DefaultFor.NONE.value
    return found


def columns_of(model: type[Model]) -> list[Any]:
    """Return the columns of a rule, tier or limit in snapshots, in the form's order; relations are added by slug."""
    return [field for field in model._meta.concrete_fields if not (field.primary_key or field.is_relation)]


def data_of(row: Model) -> dict[str, Any]:
    """Return the columns of a row in snapshots."""
    return {column.name: getattr(row, column.name) for column in columns_of(type(row))}


def rule_data(rule: models.Rule, limits: Iterable[models.RuleLimit]) -> dict[str, Any]:
    """Return a rule and its limits as in a snapshot."""
    return data_of(rule) | {"limits": [_limit_data(limit) for limit in limits]}


def _limit_data(limit: models.RuleLimit) -> dict[str, Any]:
    data, window = data_of(limit), limit.window_seconds
    data["window_seconds"] = None if window is None else f"{window:.6f}"
    return {"tier": limit.tier.slug if limit.tier else None, **data}
