"""The rows of a rules file. The models themselves judge them, by `full_clean`, without a query."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from itertools import chain
from typing import Any, Final, TypeVar

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models as fields
from django.db.backends.base.operations import BaseDatabaseOperations
from django.db.models import Model
from django.utils.timezone import get_default_timezone
from django.utils.translation import gettext as _

from ...conf import has_identity
from ...engine.base import Version
from ...models import AccessEntry, Rule, RuleLimit, Tier
from ...usage.times import aware, end_from, stored
from ...values.bounds import MAX_LIMITS, MAX_LISTED
from ...values.terminal import visible
from ..formatting import listed
from ..routes import NO_SUCH_SCOPE, unknown_names
from ..ruleset import rule_from
from ..stored.compiler import columns_of, data_of, rule_data
from ..stored.history import changes

Row = TypeVar("Row", Tier, Rule, RuleLimit, AccessEntry)

#: The version of the format. A YAML file that names it has an end line. A file may leave it out.
VERSION: Final = 2

_SECTIONS: Final = ("tiers", "rules", "access")
#: Characters that databases do not store: NUL, and half of a UTF-16 pair.
_NOT_STORED: Final = re.compile("[\\x00\\ud800-\\udfff]")

#: The value of a name that a group has twice.
TWO_VALUES: Final = object()


def fields_of(model: type[Model]) -> Mapping[str, Any]:
    """Return the columns of a tier, rule, limit or access entry that are fields in a file, by name.

    The slug is the key, and a generation belongs to the counters.
    """
    return {column.name: column for column in columns_of(model) if column.name not in ("slug", "generation")}


def default_of(column: Any) -> Any:
    """Return the value of a field that a file leaves out."""
    return Rule.Owner.FILE.value if column.name == "owner" else changes.default_of(column)


class WrongFile(Exception):
    """A rules file that is not applied. Its text has one line for each of its faults."""

    def __init__(self, file: str, faults: Sequence[str]) -> None:
        self.faults = faults
        super().__init__("\n".join(in_lines(file, faults)))


def in_lines(file: str, found: Sequence[str]) -> list[str]:
    """Return errors or warnings as lines, such as “limits.yaml: rules.a.cost: …”. Only the first are listed."""
    return bounded([visible(f"{file}: {text[:500]}") for text in found])


def bounded(lines: Sequence[str]) -> list[str]:
    """Return the first of these lines, and how many there are."""
    found, words = [*lines[:MAX_LISTED]], {"count": MAX_LISTED, "all": len(lines)}
    return found if len(lines) <= MAX_LISTED else [*found, _("Only the first %(count)d of %(all)d are listed.") % words]


@dataclass
class RulesFile:
    """The rows of a file.

    digest: of its text. tiers, rules: as in a snapshot. access: its entries. exported: the version of the database that
    it was exported from; `None` = the file does not name it. faults: errors, each with the path of its value. doubts:
    errors by the slug of a rule that names a view or an identity that the project does not have: such a rule is not
    applied, but may stay. warnings: what may be right. miscounted: that the last line names another number of rules.
    """

    name: str
    digest: str
    tiers: list[dict[str, Any]] = field(default_factory=list)
    rules: list[dict[str, Any]] = field(default_factory=list)
    access: list[AccessEntry] = field(default_factory=list)
    exported: Version | None = None
    faults: list[str] = field(default_factory=list)
    doubts: dict[str, list[str]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    miscounted: str = ""

    @property
    def snapshot(self) -> dict[str, Any]:
        """Return its tiers and rules as a snapshot, as the compiler makes it from rows."""
        return {"tiers": self.tiers, "rules": self.rules, "left_out": []}

    def check_names(self) -> None:
        """Raise WrongFile if there is an error, or a rule names what the project does not have."""
        if self.faults or self.doubts:
            raise WrongFile(self.name, [*self.faults, *chain(*self.doubts.values())])


class RowReader:
    """Reads the rows of a document into a file. After an error it continues, to report all errors."""

    def __init__(self, file: RulesFile) -> None:
        self._file = file
        self._tiers: dict[str, Tier] = {}

    def read(self, data: Any) -> None:
        """Read all rows of a document."""
        if not isinstance(data, dict) or not any(section in data for section in _SECTIONS):
            found = "" if isinstance(data, dict) else _(", not %(value)s") % {"value": _shown(data)}
            self._file.faults.append(_("A rules file has “rules”, “tiers” or “access”%(found)s.") % {"found": found})
        if isinstance(data, dict):
            self._read_head(data)
            self._read_rows(data)

    def _read_head(self, data: Mapping[Any, Any]) -> None:
        version = data.get("version", VERSION)
        if type(version) is not int or version not in (1, VERSION):
            self._fault("version", _("1 or %(version)s, not %(value)s"), version=VERSION, value=_shown(version))
        if "exported_version" in data:
            if exported := re.fullmatch(r"([0-9]{1,15})@([0-9]{1,15})", str(data["exported_version"])):
                self._file.exported = Version(*map(int, exported.groups()))
            else:
                self._fault("exported_version", _("as “export” writes it, such as 12@1795322634345"))
        for name in data:
            if name not in ("version", "exported_version", *_SECTIONS) and not str(name).startswith("x-"):
                text = _("not a section; begin the name with “x-” for what only *references use")
                self._fault(str(name), text)

    def _read_rows(self, data: Mapping[Any, Any]) -> None:
        for slug, found in self._group("tiers", data.get("tiers")).items():
            self._read_tier(slug, self._group(f"tiers.{slug}", found))
        for slug, found in self._group("rules", data.get("rules")).items():
            self._read_rule(slug, self._group(f"rules.{slug}", found))
        seen: dict[tuple[str, str], int] = {}
        for number, entry in self._entries("access", data.get("access")):
            row = self._filled(AccessEntry, f"access[{number}]", entry)
            if (other := seen.setdefault((row.kind, row.value), number)) != number and row.value:
                self._fault(f"access[{number}]", _("this caller has an entry already: access[%(other)s]"), other=other)
            self._file.access.append(row)

    def _read_tier(self, slug: str, data: Mapping[str, Any]) -> None:
        tier = self._tiers[slug] = self._filled(Tier, f"tiers.{slug}", data, slug=slug)
        kind = tier.default_for
        others = (row["slug"] for row in self._file.tiers if row["default_for"] == kind)
        if kind != Tier.DefaultFor.NONE and (other := next(others, None)):
            text = _("the tier %(other)s is already the default for these callers")
            self._fault(f"tiers.{slug}.default_for", text, other=other)
        self._file.tiers.append(data_of(tier))

    def _read_rule(self, slug: str, data: Mapping[str, Any]) -> None:
        at, before = f"rules.{slug}", len(self._file.faults)
        rule = self._filled(Rule, at, data, "limits", slug=slug)
        self._check_names(rule, at)
        limits = [*self._limits(rule, f"{at}.limits", data.get("limits"))]
        if len(self._file.faults) > before:
            return
        row = rule_data(rule, limits)
        try:
            rule_from(row)
        except ValueError as error:
            self._fault(at, str(error))
            return
        self._file.rules.append(row)
        if not limits:
            self._file.warnings.append(f"{at}: {_('This rule has no limits, so it applies to nobody yet.')}")

    def _limits(self, rule: Rule, at: str, entries: Any) -> Iterator[RuleLimit]:
        """Yield the limits that have no error."""
        seen: dict[str | None, dict[str | None, int]] = {}
        for number, entry in self._entries(at, entries):
            where, before = f"{at}[{number}]", len(self._file.faults)
            if number >= MAX_LIMITS:
                self._fault(at, _("at most %(count)d limits"), count=MAX_LIMITS)
                return
            slug = entry.get("tier")
            if slug is not None and (not isinstance(slug, str) or slug not in self._tiers):
                text = _("a tier of this file: %(tiers)s; not %(value)s")
                self._fault(f"{where}.tier", text, tiers=listed(self._tiers) or _("none"), value=_shown(slug))
                slug = None
            limit = self._filled(RuleLimit, where, entry, "tier", rule=rule, tier=self._tiers.get(slug or ""))
            if len(self._file.faults) > before:
                continue
            engine, of_tier = limit.to_limit(), seen.setdefault(slug, {})
            tag = engine.tag if engine else None
            if (other := of_tier.setdefault(tag, number)) != number:
                text = _("This tier already has a limit that counts in the same way.")
                self._fault(where, f"{text} (limits[{other}])")
            elif None in of_tier and len(of_tier) > 1:
                text = _("The tier is unlimited here, so its other limits have no effect.")
                self._file.warnings.append(f"{where}: {text}")
            yield limit

    def _filled(self, model: type[Row], at: str, data: Mapping[str, Any], other: str = "", **given: Any) -> Row:
        """Return a row with these values, and the default of each that is missing or wrong. other: read elsewhere.

        Fields are not compared while one is wrong: the error could be only that it has its default here.
        """
        columns: Mapping[str, Any] = fields_of(model)
        values: dict[str, Any] = {name: default_of(column) for name, column in columns.items()}
        if "name" in columns:
            values["name"] = given["slug"]
        wrong: set[str] = set()
        for name, value in data.items():
            try:
                if name in columns:
                    values[name] = _value(columns[name], value)
                elif name != other:
                    known = ", ".join([*columns, *filter(None, [other])])
                    raise ValueError(_("not a field; it has %s") % known)
            except ValueError as error:
                self._fault(f"{at}.{name}", str(error))
                wrong.add(name)
        row = model(**given, **values)
        without = {"rule", "tier", *wrong, *(["name"] if values.get("name") == "" else ())}  # rows may lack a name
        try:
            if wrong:
                row.clean_fields(exclude=without)
            else:
                row.full_clean(exclude=without, validate_unique=False, validate_constraints=False)
        except ValidationError as error:
            for name, texts in error.message_dict.items():
                self._fault(at if name == NON_FIELD_ERRORS else f"{at}.{name}", " ".join(texts))
        return row

    def _check_names(self, rule: Rule, at: str) -> None:
        """Add errors for names that the project does not have. A scope is only a warning: any code may name it."""
        found = []
        texts = {"route": _("No view has the route %(name)s."), "view_name": _("No view has the name %(name)s.")}
        for named, name in unknown_names(rule):
            if named == "scope":
                self._file.warnings.append(f"{at}.scope: {NO_SUCH_SCOPE % {'name': name}}")
            else:
                where = "path" if named == "route" else named
                found.append(f"{at}.{where}: {texts[named] % {'name': _shown(name)}}")
        for number, name in enumerate(rule.partition_by):
            if name.isidentifier() and not has_identity(name):
                text = _("%(name)s is not an identity of this project") % {"name": _shown(name)}
                found.append(f"{at}.partition_by[{number}]: {text}")
        if found:
            self._file.doubts[rule.slug] = found

    def _group(self, at: str, value: Any) -> dict[str, Any]:
        """Return a group of fields or entries; an empty one if it is null, or not one."""
        if value is not None and not isinstance(value, dict):
            self._fault(at, _("a group such as “name: value”, not %(value)s"), value=_shown(value))
        found = value if isinstance(value, dict) else {}
        for key in [key for key in found if not isinstance(key, str)]:
            self._fault(f"{at}.{_shown(key)}", _("a name in quotes"))
        return {key: each for key, each in found.items() if isinstance(key, str)}

    def _entries(self, at: str, value: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the groups of a list with their numbers; none if it is null, or not one."""
        if value is not None and not isinstance(value, list):
            self._fault(at, _("a list, not %(value)s"), value=_shown(value))
        for number, entry in enumerate(value if isinstance(value, list) else ()):
            group = self._group(f"{at}[{number}]", entry)
            if entry is None or isinstance(entry, dict):
                yield number, group

    def _fault(self, at: str, text: str, **words: Any) -> None:
        self._file.faults.append(f"{at}: {text % words if words else text}")


def _value(column: Any, value: Any) -> Any:
    """Return a value of a file as its model's. Raises ValueError, with the kind of value that it must be."""
    if value is None and column.null:
        return None
    fits, kind = _fits(column, value)
    if not fits:
        raise ValueError(_("%(kind)s, not %(value)s") % {"kind": kind, "value": _shown(value)})
    if isinstance(value, str) and (character := _NOT_STORED.search(value)):
        raise ValueError(_("a text without the character %s") % f"U+{ord(character[0]):04X}")
    if isinstance(column, fields.DateTimeField):
        return _moment(value)
    return Decimal(str(value)) if isinstance(column, fields.DecimalField) else value


def _fits(column: Any, value: Any) -> tuple[bool, str]:
    """Return whether a value is of the kind that its column needs, and that kind."""
    if column.flatchoices:
        choices = [str(choice) for choice, _label in column.flatchoices]
        return value in choices, _("one of %s") % ", ".join(filter(None, choices))
    if isinstance(column, fields.IntegerField):
        least, most = _bounds(column)
        is_whole = type(value) is int
        if is_whole and value > most:
            return False, _("a whole number up to %s") % most
        return is_whole and value >= least, _("a whole number from %s") % least
    if isinstance(column, fields.BooleanField):
        return isinstance(value, bool), _("true or false")
    if isinstance(column, fields.DecimalField):
        return type(value) in (int, float) and abs(value) < 10**10, _("a number of seconds")
    if isinstance(column, fields.JSONField):
        are_texts = isinstance(value, list) and all(isinstance(each, str) for each in value)
        return are_texts, _("a list of texts in brackets")
    if isinstance(column, fields.DateTimeField):
        return _moment(value) is not None, _("a date and time such as 2026-12-31T23:59:59+00:00")
    return isinstance(value, str), _("a text in quotes")


def _moment(value: Any) -> datetime | None:
    """Return an end as it is stored; `None` = it is not one, or cannot be stored."""
    try:
        return stored(aware(end_from(value, get_default_timezone())))
    except (TypeError, ValueError, OverflowError):
        return None


def _bounds(column: Any) -> tuple[int, int]:
    """Return the minimum and maximum of a field. They do not depend on the database: SQLite itself would take more."""
    least, most = BaseDatabaseOperations.integer_field_ranges[column.get_internal_type()]
    if column.null and least == 0:
        least = 1  # empty means none
    for each in column.validators:
        if isinstance(each, MinValueValidator):
            least = max(least, each.limit_value)
        elif isinstance(each, MaxValueValidator):
            most = min(most, each.limit_value)
    return least, most


def _shown(value: Any) -> str:
    """Return a value as an error shows it."""
    if isinstance(value, str):
        return json.dumps(value[:60], ensure_ascii=False)
    if isinstance(value, int) and abs(value) >= 10**60:
        return _("a number of more than 60 digits")
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    if value is TWO_VALUES:
        return _("two values")
    return _("a list") if isinstance(value, list) else _("a group") if isinstance(value, dict) else _("this")
