"""A rules file with limits of the project's other limiters, as far as they can be translated surely.

These are DRF's throttle classes, also subclasses that only set a scope or a rate, and the rules of
django-smart-ratelimit in the database. Everything else is left as it is, and an inventory names each URL.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, count
from posixpath import commonpath
from typing import Any, Final

from django.apps import apps
from django.db import DatabaseError
from django.urls import ResolverMatch, get_resolver
from django.utils.text import slugify
from django.utils.translation import gettext as _

from ...conf import django_setting
from ...engine.limits import MAX_ENTRIES
from ...models import Rule
from ..inline import rate_from
from ..routes import all_views, view_of
from ..stored import storage
from ..stored.history.snapshots import Data, normal_tier
from .inventory import KINDS, Inventory, kind_of, name_of, own_throttling, rate_of, scope_of, throttles_of
from .schema import VERSION, rule_fields, tier_fields
from .writing import file_fields, json_of, yaml_of

#: The beginning of the names of this package's modules.
_OURS: Final = "django_ratelimiter."
_SMART: Final = "django_smart_ratelimit"
#: Regular expressions that are equivalent to a prefix or a whole path.
_PREFIX: Final = re.compile(r"\^(/[\w/-]*)(?:\.\*)?")
_WHOLE: Final = re.compile(r"\^(/[\w/-]*)\$")
_SMART_RATE: Final = re.compile(r"(\d+)/(\d*)([smhd])[a-z]*")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
#: Algorithms of django-smart-ratelimit. Its leaky bucket rejects, as our `gcra` does; our `leaky_bucket` delays.
_ALGORITHMS: Final = {
    "token_bucket": "token_bucket",
    "leaky_bucket": "gcra",
    "sliding_window": "sliding_window_log",
    "fixed_window": "fixed_window",
}
_BY_USER: Final = {"partition_by": ["user"], "missing_partition": "ip"}
_KEYS: Final[Mapping[str, dict[str, Any]]] = {"ip": {"partition_by": ["ip"]}, "user": _BY_USER, "user_or_ip": _BY_USER}


@dataclass
class Adopted:
    """Tiers and rules by slug, in the format of a file.

    notes: on each rule, by its slug. left: what limits requests and is left as it is. stored: the tiers of the
    database, and taken: the slugs of its rules that belong to the admin.
    """

    tiers: dict[str, dict[str, Any]] = field(default_factory=dict)
    rules: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    inventory: Inventory = field(default_factory=Inventory)
    stored: Sequence[Data] = ()
    taken: frozenset[str] = frozenset()

    def add(self, name: str, rule: Mapping[str, Any], limit: tuple[int, int, str], notes: Iterable[str]) -> None:
        """Add a rule with this quota, window and algorithm, under an unused slug."""
        quota, seconds, algorithm = limit
        notes = [*notes]
        if algorithm == "sliding_window_log" and quota > MAX_ENTRIES:
            algorithm = "sliding_window_counter"
            text = _("Counted approximately: more than %(most)s requests are not kept one by one.")
            notes.append(text % {"most": MAX_ENTRIES})
        tier = {"tier": rule["tier"]} if "tier" in rule else {}
        limits = [tier | {"algorithm": algorithm, "quota": quota, "window_seconds": seconds}]
        rule = {"name": name[:100], "mode": "shadow", **rule, "limits": limits}
        stem = slugify(re.sub("[:./]", "-", name))[:46] or "rule"
        slug = _unused(stem, self.taken | self.rules.keys())
        self.rules[slug] = {column: rule[column] for column in (*rule_fields(), "limits") if column in rule}
        self.notes[slug] = notes

    def anonymous_tier(self) -> str:
        """Return the slug of the tier of anonymous callers. Add it, as the database has it: only one tier can be it."""
        if not self.tiers:
            slug = _unused("anonymous", {data["slug"] for data in self.stored})
            tier: dict[str, Any] = {"name": "Anonymous", "default_for": "anonymous"}
            for data in self.stored:
                if data["default_for"] == "anonymous":
                    slug, tier = data["slug"], file_fields(normal_tier(data), tier_fields())
            self.tiers[slug] = tier
        return next(iter(self.tiers))

    def leave(self, text: str) -> None:
        """Add something that is left as it is, once."""
        if text not in self.left:
            self.left.append(text)

    def text(self, style: str) -> str:
        """Return a rules file. style: "yaml", or "json", which has no comments. Raises LibraryMissing."""
        document = {"version": VERSION, **({"tiers": self.tiers} if self.tiers else {}), "rules": self.rules}
        return json_of(document) if style == "json" else yaml_of(document, [*self.comments()], self.notes)

    def comments(self) -> Iterator[str]:
        """Yield the lines at the top of the file."""
        yield _("Made by `manage.py ratelimit adopt` of what limits this project now.")
        yield _("All rules are in shadow: they count, and reject nothing. Compare, then set them to “enforce”.")
        if self.left:
            yield from ("", _("Left as it is:"), *(f"- {text}" for text in self.left))
        yield from ("", _("What limits each URL, as far as it can be seen from outside of its code:"))
        yield from self.inventory.in_lines()


def _unused(stem: str, taken: Collection[str]) -> str:
    """Return this slug, with a number if it is taken."""
    return next(slug for slug in chain([stem], (f"{stem}-{number}" for number in count(2))) if slug not in taken)


def adopt() -> Adopted:
    """Return rules that replace the project's other limiters. Reads its URLs, rules, and another limiter's table."""
    matches = list(all_views(get_resolver())) if django_setting("ROOT_URLCONF") else []
    found = Adopted(inventory=Inventory(matches))
    with suppress(DatabaseError):
        rows = storage.current_rows()
        found.stored = rows["tiers"]
        found.taken = frozenset(data["slug"] for data in rows["rules"] if data["owner"] == Rule.Owner.ADMIN)
    uses: defaultdict[Any, list[ResolverMatch]] = defaultdict(list)
    for match in matches:
        for throttle in _throttles_of(match, found):
            uses[throttle, scope_of(throttle, match)].append(match)
    for (throttle, scope), views in uses.items():
        others = [each for each, other in uses if other == scope and scope and each is not throttle]
        sharing = [name_of(each) for each in others if kind_of(each)]
        if sharing and kind_of(throttle):
            text = _("Throttle %(name)s: it shares its counters with %(others)s, of the same scope, %(scope)s.")
            found.leave(text % {"name": name_of(throttle), "others": ", ".join(sharing), "scope": scope})
        else:
            _adopt_throttle(throttle, scope, views, matches, found)
    used = {scope for _throttle, scope in uses}
    for scope, rate in ((django_setting("REST_FRAMEWORK") or {}).get("DEFAULT_THROTTLE_RATES") or {}).items():
        if rate and scope not in used:
            text = _("Rate %(rate)s of the scope %(scope)s: no throttle that can be seen uses it.")
            found.leave(text % {"rate": rate, "scope": scope})
    for name in django_setting("MIDDLEWARE") or ():
        if re.search("limit|throttl|axes", name, re.IGNORECASE) and not name.startswith("django_ratelimiter."):
            found.leave(_("Middleware %(name)s: its limits are in its own settings or code.") % {"name": name})
    adopt_smart_rules(found)
    return found


def _throttles_of(match: ResolverMatch, found: Adopted) -> Sequence[Any]:
    """Return the throttle classes of a view, without those of this package that are not in place of DRF's."""
    chosen = throttles_of(match)
    if chosen is None:
        text = _("View %(view)s: its own code may choose its throttles, in %(names)s.")
        names = ", ".join(own_throttling(match)) or "throttle_classes"
        found.leave(text % {"view": match.view_name, "names": names})
        return ()
    return [each for each in chosen if not each.__module__.startswith(_OURS) or each.__name__ in KINDS]


def _adopt_throttle(
    throttle: Any, scope: str | None, views: Sequence[ResolverMatch], matches: Sequence[ResolverMatch], found: Adopted
) -> None:
    """Add the rule of a throttle class with a scope, or of one without (`None`)."""
    kind, rate = kind_of(throttle), rate_of(throttle, scope)
    names = sorted({match.view_name for match in views})
    parsed = rate_from(rate) if kind and isinstance(rate, str) else None
    if parsed is None or parsed[0] < 1:
        text = _("Throttle %(name)s: %(reason)s. Views: %(views)s.")
        reason = _reason_of(rate) if kind else _("it has code of its own")
        found.leave(text % {"name": name_of(throttle), "reason": reason, "views": ", ".join(names)})
        return
    limit, label = (*parsed, "sliding_window_log"), scope or throttle.__name__
    notes = [_("From %(name)s, %(rate)s.") % {"name": name_of(throttle), "rate": rate}]
    rule: dict[str, Any] = _BY_USER
    if kind == "AnonRateThrottle":
        rule = {"partition_by": ["ip"], "tier": found.anonymous_tier()}
    if kind == "ScopedRateThrottle":
        notes.append(_("Scopes apply only if the view has RuleThrottle of django_ratelimiter.throttling."))
        found.add(label, {**rule, "scope": scope}, limit, notes)
        return
    notes.append(_("The rule knows users only if the view has RuleThrottle of django_ratelimiter.throttling."))
    if prefix := _prefix_of(views, matches):
        found.add(label, {**rule, "path": prefix, "path_kind": "prefix"}, limit, notes)
        return
    if len(names) > 1:
        notes.append(_("There, all these views share one counter; here each has its own."))
    for view in names:
        found.add(f"{label} {view}", {**rule, "view_name": view}, limit, notes)


def _reason_of(rate: Any) -> str:
    """Return why a rate is left as it is. DRF reads only the first letter of a period."""
    reason = _("its rate %(rate)s") % {"rate": rate} if rate else _("it has no rate")
    match = re.fullmatch(r"(\d+)/([smhd])[^/]*", rate) if isinstance(rate, str) and not rate_from(rate) else None
    if match:
        read = {"quota": match[1], "seconds": _SECONDS[match[2]]}
        reason += _(", which DRF reads as %(quota)s in %(seconds)s seconds") % read
    return reason


def _prefix_of(views: Sequence[ResolverMatch], matches: Sequence[ResolverMatch]) -> str:
    """Return a path prefix that only these views have; "" = there is none."""
    prefix = commonpath([view_of(match).start.rpartition("/")[0] or "/" for match in views]).rstrip("/") + "/"
    ours = {id(match) for match in views}
    others = any(view_of(match).may_have_path("prefix", prefix) for match in matches if id(match) not in ours)
    return "" if len(prefix) < 2 or others else prefix


def adopt_smart_rules(found: Adopted) -> None:
    """Add rules for the active rows of django-smart-ratelimit, if it is installed and the database can be read."""
    if not apps.is_installed(_SMART):
        return
    try:
        rows: list[Any] = list(apps.get_model(_SMART, "RateLimitRule")._default_manager.filter(is_active=True))
    except (LookupError, DatabaseError):
        found.leave(_("Rules of django-smart-ratelimit: its table cannot be read."))
        return
    if rows and not django_setting("RATELIMIT_USE_DYNAMIC_RULES", False):
        text = _(
            "Rules of django-smart-ratelimit: they are not in force, because RATELIMIT_USE_DYNAMIC_RULES is not set."
        )
        found.leave(text)
        return
    adopt_rows(rows, found)


def adopt_rows(rows: Sequence[Any], found: Adopted) -> None:
    """Add a rule for each of these rows of its table."""
    algorithm = _ALGORITHMS.get(django_setting("RATELIMIT_ALGORITHM", "sliding_window"))
    if algorithm is None:
        found.leave(_("Rules of django-smart-ratelimit: RATELIMIT_ALGORITHM is unknown."))
        return
    first = [_("There, only the first rule that matches applies; here every rule that matches applies.")]
    for row in rows:
        place, rate = _place_of(row.path_pattern), _SMART_RATE.fullmatch(row.rate.strip().lower())
        quota, seconds = (int(rate[1]), int(rate[2] or 1) * _SECONDS[rate[3]]) if rate else (0, 0)
        wrong = (("path_pattern", place), ("key", row.key in _KEYS), ("rate", quota and seconds))
        if column := next((column for column, value in wrong if not value), ""):
            text = _(
                "Rule “%(name)s” of django-smart-ratelimit: its %(what)s, %(value)s, has no rule that does the same."
            )
            found.leave(text % {"name": row.name, "what": column, "value": repr(getattr(row, column))})
            continue
        rule: dict[str, Any] = {**(place or {}), **_KEYS[row.key]}
        methods = [each.strip().upper() for each in row.method.split(",") if each.strip()]
        if methods != ["ALL"]:
            rule["methods"] = methods
        if algorithm == "sliding_window_log":
            rule["count_refusals"] = True
        notes = [_("From its rule in the database."), *(first if len(rows) > 1 else ())]
        if not row.block:
            notes.append(_("It rejects nothing there; a rule in shadow does the same."))
        found.add(row.name, rule, (quota, seconds, algorithm), notes)


def _place_of(pattern: str) -> dict[str, str] | None:
    if match := _WHOLE.fullmatch(pattern):
        return {"path": match[1], "path_kind": "exact"}
    match = _PREFIX.fullmatch(pattern)
    return {"path": match[1], "path_kind": "prefix"} if match else None
