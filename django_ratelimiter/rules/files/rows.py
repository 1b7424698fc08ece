"""The rows of a rules file: each is filled into its model, which validates it like the input of a form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple, TypeVar

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.db import models as fields
from django.utils.translation import gettext as _

from ...conf import settings
from ...models import AccessEntry, Rule, RuleLimit, Tier
from ...values.bounds import MAX_LISTED
from ...values.partitions import IDENTITIES, NAMED
from ..routes import NO_SUCH_SCOPE, unknown_names, views
from ..ruleset import rule_from
from ..stored.compiler import rule_data, tier_data
from .documents import Document, Path
from .faults import Fault, Faults, Place, did_you_mean, shown
from .schema import Columns, access_fields, default_of, limit_fields, rule_fields, tier_fields
from .validating import faults_of, moment

Row = TypeVar("Row", Tier, Rule, RuleLimit, AccessEntry)


class AccessRow(NamedTuple):
    """An access entry of a file. value: empty = the file has only its digest."""

    action: str
    kind: str
    value: str
    expires_at: datetime | None
    reason: str
    digest: str
    place: Place


class RowReader:
    """Reads the rows of a document. After an error it continues, to report all errors."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self.faults = Faults()
        #: Values with an error by the schema, and what contains them.
        self._wrong: set[Path] = set()
        #: Rows with such an error in a field of their own.
        self._wrong_rows: set[Path] = set()
        self._tiers: dict[str, Tier] = {}
        self._default_tiers: dict[str, str] = {}
        #: Tiers and rules as in a snapshot, and access entries.
        self.tiers: list[dict[str, Any]] = []
        self.rules: list[dict[str, Any]] = []
        self.access: list[AccessRow] = []
        #: Errors by the slug of a rule that names a view or an identity that the project does not have.
        self.doubts: dict[str, list[Fault]] = {}
        #: What may be right.
        self.warnings: list[Fault] = []

    def read(self) -> None:
        """Read all rows. Raises TooManyFaults, and LibraryMissing."""
        for fault in self._document.faults:
            self.faults.append(fault)
        for path, fault in faults_of(self._document):
            self._wrong.update(path[:length] for length in range(len(path) + 1))
            self._wrong_rows.add(path[:4] if path[2:3] == ("limits",) else path[:2])
            self.faults.append(fault)
        for slug, data in self._section("tiers"):
            self._read_tier(slug, data)
        for slug, data in self._section("rules"):
            self._read_rule(slug, data)
        seen: dict[tuple[str, str], Place] = {}
        for number, data in enumerate(_entries(self._document.data, "access", list)):
            if isinstance(data, dict):
                self._read_access(("access", number), data, seen)

    def _section(self, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for slug, data in _entries(self._document.data, name, dict).items():
            yield slug, data if isinstance(data, dict) else {}

    def _read_tier(self, slug: str, data: dict[str, Any]) -> None:
        path = ("tiers", slug)
        tier = self._filled(Tier, tier_fields(), path, data, slug=slug)
        self._tiers[slug] = tier
        if self._is_clean(tier, path):
            self.tiers.append(tier_data(tier))
        other = self._default_tiers.setdefault(tier.default_for, slug)
        if other != slug and tier.default_for != Tier.DefaultFor.NONE:
            text = _("The tier %(other)s is already the default for %(kind)s callers. Only one tier can be.")
            self._fault((*path, "default_for"), text % {"other": other, "kind": tier.default_for})

    def _read_rule(self, slug: str, data: dict[str, Any]) -> None:
        path, faults = ("rules", slug), len(self.faults)
        rule = self._filled(Rule, rule_fields(), path, data, slug=slug)
        if self._is_clean(rule, path):
            self._check_views(rule, path)
            self._check_identities(rule, path)
        limits = [*self._limits(rule, (*path, "limits"), _entries(data, "limits", list))]
        if path in self._wrong or len(self.faults) > faults:
            return
        row = rule_data(rule, limits)
        try:
            rule_from(row)
        except ValueError as error:
            self._fault((*path, str(error).partition(": ")[0]), str(error))
            return
        self.rules.append(row)
        if not limits:
            no_limits = _("This rule has no limits, so it applies to nobody yet.")
            self.warnings.append(Fault(self._document.keys[path], no_limits))

    def _limits(self, rule: Rule, path: Path, entries: list[Any]) -> Iterator[RuleLimit]:
        seen: dict[Any, int] = {}
        for number, data in enumerate(entries):
            where = (*path, number)
            limit = self._limit(rule, where, data) if isinstance(data, dict) else None
            if limit is None:
                continue
            engine, line = limit.to_limit(), self._document.places[where].line
            key = limit.tier and limit.tier.slug, engine and engine.tag
            if key in seen:
                text = _(
                    "This tier already has a limit that counts in the same way, in line %(line)s. Keep one of them."
                )
                self._fault(where, text % {"line": seen[key]})
            seen.setdefault(key, line)
            yield limit

    def _limit(self, rule: Rule, path: Path, data: dict[str, Any]) -> RuleLimit | None:
        """Return a limit; `None` = it has an error."""
        faults, slug = len(self.faults), None if (*path, "tier") in self._wrong else data.get("tier")
        if slug is not None and slug not in self._tiers:
            text = _("There is no tier %(tier)s in this file.") % {"tier": shown(slug)}
            self._fault((*path, "tier"), f"{text} {did_you_mean(slug, self._tiers)}".strip())
        columns = {name: column for name, column in limit_fields().items() if name != "tier"}
        limit = self._filled(RuleLimit, columns, path, data, rule=rule, tier=self._tiers.get(slug or ""))
        self._is_clean(limit, path, "rule", "tier")
        return None if path in self._wrong or len(self.faults) > faults else limit

    def _read_access(self, path: Path, data: dict[str, Any], seen: dict[tuple[str, str], Place]) -> None:
        """Read an access entry. It has a value, or the digest of one."""
        entry, digest = self._filled(AccessEntry, access_fields(), path, data), data.get("digest", "")
        if path in self._wrong or not (digest or self._is_clean(entry, path)):
            return
        place, key = self._document.places[path], (entry.kind, entry.value or digest)
        if key in seen:
            text = _("This caller already has an entry, in line %(line)s.")
            self._fault(path, text % {"line": seen[key].line})
        seen.setdefault(key, place)
        self.access.append(
            AccessRow(**{name: getattr(entry, name) for name in access_fields()}, digest=digest, place=place)
        )

    def _filled(self, model: type[Row], columns: Columns, path: Path, data: dict[str, Any], **more: Any) -> Row:
        """Return a row with the values of these columns; with the default for those that are missing or wrong."""
        values = {name: default_of(column) for name, column in columns.items()}
        if "name" in values:
            values["name"] = more["slug"]
        for name, value in data.items():
            if name in columns and (*path, name) not in self._wrong:
                values[name] = _value(columns[name], value)
        return model(**values, **more)

    def _is_clean(self, row: Any, path: Path, *exclude: str) -> bool:
        """Return whether the model accepts the row; else add an error for each field. Rows may lack a name.

        Fields are not compared while one is wrong: the error could be only that it has its default here.
        """
        without = {*exclude, "name"} if getattr(row, "name", None) == "" else {*exclude}
        try:
            if path in self._wrong_rows:
                row.clean_fields(exclude=without)
            else:
                row.full_clean(exclude=without, validate_unique=False, validate_constraints=False)
        except ValidationError as error:
            for field, errors in error.error_dict.items():
                if (*path, field) not in self._wrong:  # else it is reported already
                    text = _text_of(errors)
                    self._fault((*path, field), text if field == NON_FIELD_ERRORS else f"{field}: {text}")
            return False
        return True

    def _check_views(self, rule: Rule, path: Path) -> None:
        """Add errors for names of views that do not exist. For a scope only a warning, because any code may name it."""
        for unknown in unknown_names(rule):
            place = self._document.place_of(*path, "path" if unknown.field == "route" else unknown.field)
            if unknown.field == "scope":  # it may be right, so no choices are offered
                text = NO_SUCH_SCOPE % {"name": unknown.name}
                close = did_you_mean(unknown.name, filter(None, [self._suggests and unknown.close]))
                self.warnings.append(Fault(place, f"{text} {close}".strip()))
                continue
            words = {"route": _("No view has the route %(name)s."), "view_name": _("No view has the name %(name)s.")}
            text = words[unknown.field] % {"name": shown(unknown.name)}
            known = ([unknown.close] if unknown.close else _names(unknown.field)) if self._suggests else []
            fault = Fault(place, f"{text} {did_you_mean(unknown.name, known)}".strip())
            self.doubts.setdefault(rule.slug, []).append(fault)

    def _check_identities(self, rule: Rule, path: Path) -> None:
        """Add errors for identities that neither this package nor the project has."""
        known = (*IDENTITIES, *settings.IDENTITIES)
        for number, name in enumerate(rule.partition_by):
            if name not in known and name.isidentifier():
                text = _("partition_by: %(word)s is not an identity of this project.") % {"word": shown(name)}
                close = did_you_mean(name, (*known, *NAMED)) if self._suggests else ""
                fault = Fault(self._document.places[*path, "partition_by", number], f"{text} {close}".strip())
                self.doubts.setdefault(rule.slug, []).append(fault)

    @property
    def _suggests(self) -> bool:
        """Return whether an answer still lists a doubt or warning, so that similar names are worth a search."""
        return len(self.doubts) + len(self.warnings) < MAX_LISTED

    def _fault(self, path: Path, text: str) -> None:
        self.faults.append(Fault(self._document.place_of(*path), text))


def _entries(data: Any, name: str, kind: type) -> Any:
    """Return a list or dict of a group; an empty one if it is missing, or not of this kind."""
    found = data.get(name) if isinstance(data, Mapping) else None
    return found if isinstance(found, kind) else kind()


def _value(column: Any, value: Any) -> Any:
    """Return a valid value as that of the model."""
    if value is not None and isinstance(column, fields.DecimalField):
        return Decimal(value)
    return moment(value) if value is not None and isinstance(column, fields.DateTimeField) else value


def _names(field: str) -> list[str]:
    """Return some names of the project's views, or of their routes, to choose from."""
    found = {getattr(view, "route" if field == "route" else "name", "") for view in views()}
    return sorted(name for name in found if name and not name.startswith("admin"))


def _text_of(errors: Iterable[ValidationError]) -> str:
    """Return the errors of a field as text; the bounds of its column only if nothing else says what would be right."""
    errors = list(errors)
    own = [each for each in errors if each.code not in ("min_value", "max_value")]
    return " ".join(message for each in own or errors for message in each.messages)
