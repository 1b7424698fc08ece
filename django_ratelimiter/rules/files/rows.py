"""The rows of a rules file: each is filled into its model, which validates it like the input of a form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.db.models import Model
from django.utils.translation import gettext as _

from ...models import AccessEntry, Rule, RuleLimit, Tier
from ...usage.times import aware, stored
from ...values.bounds import MAX_LIMITS
from ..ruleset import rule_from
from ..stored.compiler import rule_data, tier_data
from .faults import Fault, Faults, Place, TooManyFaults, did_you_mean
from .fields import FileField, access_fields, limit_fields, rule_fields, shown, tier_fields
from .text.nodes import Node, Pairs


class KeyedNode(NamedTuple):
    """A key with its value."""

    key: Node
    node: Node


Entries = Mapping[str, KeyedNode]


class RowReader:
    """The tiers, rules and access entries that were read. Errors are added to the given list.

    most: the maximum number of rows, including limits.
    """

    def __init__(self, faults: Faults, most: int) -> None:
        self._faults, self._most, self._count = faults, most, 0
        self._tiers: dict[str, Tier] = {}
        self._default_places: dict[str, tuple[str, Place]] = {}
        self.tiers: list[dict[str, Any]] = []
        self.rules: list[dict[str, Any]] = []
        self.places: dict[tuple[str, str], Place] = {}
        self._tier_fields, self._rule_fields = tier_fields(), rule_fields()
        self._limit_fields, self._access_fields = limit_fields(), access_fields()

    def entries(self, node: Node, known: Sequence[str] | None, what: str) -> dict[str, KeyedNode]:
        """Return the values of a mapping by key. known: the allowed keys; `None` = slugs."""
        if not isinstance(node.value, Pairs):
            self._fault(node, _("Must be %(kind)s, not %(value)s.") % {"kind": what, "value": shown(node.value)})
            return {}
        found: dict[str, KeyedNode] = {}
        for key, value in node.value.pairs:
            name = key.value
            if not isinstance(name, str) and known is None and not isinstance(name, int):
                self._fault(key, _("A slug is a text."))
                continue
            name = str(name)
            if known is not None and name not in known:
                self._fault(key, self._unknown(name, known, what))
            elif name in found:
                text = _("%(word)s is here twice: also in line %(line)s. Keep one of them.")
                self._fault(key, text % {"word": shown(name), "line": found[name].key.place.line})
            else:
                found[name] = KeyedNode(key, value)
        return found

    def _unknown(self, name: str, known: Sequence[str], what: str) -> str:
        text = _("%(word)s is not a field of %(what)s.") % {"word": shown(name), "what": what}
        if name in self._limit_fields and "limits" in known:
            return f"{text} {_('This field belongs in one of the “limits” of the rule.')}"
        return f"{text} {did_you_mean(name, known)}"

    def read_tier(self, slug: str, entry: KeyedNode) -> None:
        """Read a tier."""
        self._count_row(entry.key)
        found = self._fields_of(entry, self._tier_fields, _("a tier"))
        tier = Tier(slug=slug, **self._values(found, self._tier_fields, slug))
        self.places["tier", slug] = entry.key.place
        self._tiers[slug] = tier
        if self._is_clean(tier, found, entry.key):
            self.tiers.append({**tier_data(tier), "default_for": str(tier.default_for)})
        if "default_for" in found:
            self._default_places[slug] = str(tier.default_for), found["default_for"].node.place

    def check_defaults(self) -> None:
        """Add an error if two tiers are the default for the same callers."""
        seen: dict[str, str] = {}
        for slug, (kind, place) in self._default_places.items():
            if kind in seen and kind != "none":
                text = _("The tier %(other)s is already the default for %(kind)s callers. Only one tier can be.")
                self._faults.append(Fault(place, text % {"other": seen[kind], "kind": kind}))
            seen.setdefault(kind, slug)

    def read_rule(self, slug: str, entry: KeyedNode) -> tuple[Rule, Entries, Node] | None:
        """Read a rule with its limits. Return it, its fields and its key; `None` = it has an error."""
        self._count_row(entry.key)
        faults = len(self._faults)
        found = self._fields_of(entry, {**self._rule_fields, "limits": None}, _("a rule"))
        rule = Rule(slug=slug, **self._values(found, self._rule_fields, slug))
        self.places["rule", slug] = entry.key.place
        self._is_clean(rule, found, entry.key)
        limits = self._limits(rule, found["limits"].node) if "limits" in found else []
        if len(self._faults) > faults:
            return None
        data = rule_data(rule, limits)
        try:
            rule_from(data)
        except ValueError as error:
            field, _colon, _text = str(error).partition(": ")
            self._fault(found[field].node if field in found else entry.key, str(error))
            return None
        self.rules.append(data)
        return rule, found, entry.key

    def read_access(self, node: Node, found: Entries) -> dict[str, Any] | None:
        """Read an access entry; `None` = it has an error. It has a value, or the digest of one."""
        self._count_row(node)
        faults = len(self._faults)
        values = self._values(found, self._access_fields, "")
        digest = values.pop("digest")
        entry = AccessEntry(**values)
        if entry.expires_at is not None:
            try:
                entry.expires_at = stored(aware(entry.expires_at))
            except OverflowError:  # in UTC it would be before the year 1, or after 9999
                self._fault(found["expires_at"].node, "expires_at: " + _("This date cannot be stored."))
        if bool(digest) == bool(entry.value):
            self._fault(node, _("An access entry needs a “value”, or a “digest” instead of a value."))
        elif "kind" not in found:
            self._fault(node, _("“%(name)s” is missing.") % {"name": "kind"})
        elif len(self._faults) == faults and not digest:
            self._is_clean(entry, found, node)
        if len(self._faults) > faults:
            return None
        return {name: getattr(entry, name) for name in values} | {"digest": digest}

    def _limits(self, rule: Rule, node: Node) -> list[RuleLimit]:
        if not isinstance(node.value, list):
            text = _("Must be %(kind)s, not %(value)s.")
            self._fault(node, text % {"kind": _("a list of limits"), "value": shown(node.value)})
            return []
        limits: list[RuleLimit] = []
        if len(node.value) > MAX_LIMITS:
            self._fault(node, _("A rule has at most %(count)d limits.") % {"count": MAX_LIMITS})
            return []
        seen: dict[Any, int] = {}
        for each in node.value:
            faults = len(self._faults)
            limit = self._limit(rule, each)
            if limit is None or len(self._faults) > faults:
                continue
            engine = limit.to_limit()
            key = limit.tier and limit.tier.slug, engine and engine.tag
            if key in seen:
                text = _(
                    "This tier already has a limit that counts in the same way, in line %(line)s. Keep one of them."
                )
                self._fault(each, text % {"line": seen[key]})
            seen.setdefault(key, each.place.line)
            limits.append(limit)
        return limits

    def _limit(self, rule: Rule, node: Node) -> RuleLimit | None:
        if not isinstance(node.value, Pairs):
            self._fault(node, _("A limit is a group of fields, such as “quota: 100” and “window_seconds: 60”."))
            return None
        self._count_row(node)
        found = self.entries(node, tuple(self._limit_fields), _("a limit"))
        values = self._values(found, self._limit_fields, "")
        slug = values.pop("tier")
        if slug is not None and slug not in self._tiers:
            text = _("There is no tier %(tier)s in this file.") % {"tier": shown(slug)}
            self._fault(found["tier"].node, f"{text} {did_you_mean(slug, self._tiers)}".strip())
        limit = RuleLimit(rule=rule, tier=self._tiers.get(slug), **values)
        self._is_clean(limit, found, node, without={"rule", "tier"})
        return limit

    def _count_row(self, node: Node) -> None:
        self._count += 1
        if self._count > self._most:
            text = _(
                "There are more than %(count)d tiers, rules, limits and access entries. Apply such a file with "
                "`manage.py ratelimit apply`."
            )
            self._fault(node, text % {"count": self._most})
            raise TooManyFaults

    def _fields_of(self, entry: KeyedNode, known: Mapping[str, Any], what: str) -> dict[str, KeyedNode]:
        if entry.node.value is None:
            return {}
        return self.entries(entry.node, tuple(known), what)

    def _values(self, found: Entries, known: Mapping[str, FileField], slug: str) -> dict[str, Any]:
        """Return the values of the fields; the default for those that are missing or invalid."""
        values = {name: list(each.default) if each.kind == "words" else each.default for name, each in known.items()}
        if "name" in known and "name" not in found:
            values["name"] = slug
        for name, entry in found.items():
            if name not in known:
                continue
            try:
                values[name] = known[name].value_of(entry.node)
            except ValueError as error:
                self._fault(entry.node, f"{name}: {error}")
        return values

    def _is_clean(self, row: Model, found: Entries, key: Node, without: set[str] | None = None) -> bool:
        """Return whether the model accepts the row; else add an error for each field. Rows may lack a name."""
        at_fault = {fault.place for fault in self._faults}
        exclude = {*(without or ())} | ({"name"} if getattr(row, "name", None) == "" else set())
        try:
            row.full_clean(exclude=exclude, validate_unique=False, validate_constraints=False)
        except ValidationError as error:
            for field, errors in error.error_dict.items():
                node = found[field].node if field in found else key
                text = _text_of(errors)
                if field in found and node.place in at_fault:  # reported already: its type is wrong
                    continue
                self._fault(node, text if field == NON_FIELD_ERRORS else f"{field}: {text}")
            return False
        return True

    def _fault(self, node: Node, text: str) -> None:
        self._faults.append(Fault(node.place, text))


def _text_of(errors: Iterable[ValidationError]) -> str:
    """Return the errors of a field as text; the bounds of its column only if nothing else says what would be right."""
    errors = list(errors)
    own = [each for each in errors if each.code not in ("min_value", "max_value")]
    return " ".join(message for each in own or errors for message in each.messages)
