"""Rules in a short notation for tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..engine.limits import OPTIONS, Limit
from ..rules.records import RuleRecord
from ..rules.ruleset import rule_from
from ..rules.stored.tables import models

#: A record, or the fields of a rule, see `override_rules`.
RuleSpec = RuleRecord | Mapping[str, Any]


def build_record(rule: RuleSpec) -> RuleRecord:
    """Return the record of a rule in short notation. Raises ValueError if it cannot be enforced."""
    return rule if isinstance(rule, RuleRecord) else _record(**rule)


def _record(**fields: Any) -> RuleRecord:
    """Return a rule in short notation, read like one of a snapshot: enforced, and otherwise as in a new row."""
    data = _defaults(models.Rule) | {"mode": "enforce"}  # tests usually check that a limit rejects
    if unknown := fields.keys() - data.keys() - {"slug", "limits"}:
        raise ValueError(f"A rule has no {', '.join(sorted(unknown))}; it has limits, {', '.join(sorted(data))}.")
    if missing := {"slug", "limits"} - fields.keys():
        raise ValueError(f"A rule needs {' and '.join(sorted(missing))}.")
    if fields.get("path"):
        data["path_kind"] = "prefix"
    limits = fields["limits"]
    by_tier = limits if isinstance(limits, Mapping) else {None: limits}
    entries = [entry for tier, several in by_tier.items() for entry in _entries(tier, several)]
    return rule_from({**data, "name": fields["slug"], **fields, "limits": entries})


def _entries(tier: str | None, several: Any) -> Iterable[dict[str, Any]]:
    if several == "unlimited":
        yield {**_defaults(models.RuleLimit), "tier": tier, "unlimited": True}
        return
    if isinstance(several, str):
        raise ValueError(f'limits: must be a list of limits, or "unlimited", not {several!r}.')
    for one in several:
        yield {"tier": tier, **_entry(one)}


def _entry(one: Any) -> dict[str, Any]:
    """Return one limit in the format of a snapshot."""
    defaults = _defaults(models.RuleLimit)
    if isinstance(one, Limit):
        options = {name: getattr(one, name) for name in OPTIONS}
        window = None if one.window is None else str(one.window)
        return {**defaults, **options, "algorithm": one.algorithm, "quota": one.quota, "window_seconds": window}
    if isinstance(one, str):
        one = {"rate": one}
    if unknown := one.keys() - defaults.keys() - {"rate", "tier"}:
        raise ValueError(f"A limit has no {', '.join(sorted(unknown))}; it has rate, {', '.join(sorted(defaults))}.")
    given = {name: value for name, value in one.items() if name != "rate"}
    if "rate" in one:
        rate = Limit.parse(one["rate"])
        given |= {"quota": rate.quota, "window_seconds": rate.window}
    if given.get("window_seconds") is not None:
        given["window_seconds"] = str(given["window_seconds"])
    return {**defaults, **given}


def _defaults(model: Any) -> dict[str, Any]:
    """Return the values of a new row, for the columns that are part of a snapshot."""
    fields = [field for field in model._meta.concrete_fields if not field.is_relation and not field.primary_key]
    values = {field.name: field.get_default() for field in fields if field.name not in ("description", "owner")}
    return {name: getattr(value, "value", value) for name, value in values.items()}  # the plain value of an enum
