"""Rules, periods, identities and callers as text; callers by their names, for readers who may see them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.db.models import Model
from django.utils import timezone
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..customers import customer_model
from ..customers import label_of as label_of_row
from ..inspection.references import Name, key_labels, labelled, revealed_to
from ..models import Rule
from ..rules.formatting import ago, end_in_words
from ..rules.records import RuleRecord
from ..rules.routes import NO_SUCH_SCOPE, UnknownName
from ..tenants import key_of, rows_of
from ..usage.times import aware
from ..values.terminal import without_controls

IDENTITY_LABELS: Final = {
    "user": gettext_lazy("user"),
    "ip": gettext_lazy("IP address"),
    "api_key": gettext_lazy("API key"),
    "customer": gettext_lazy("customer"),
    "session": gettext_lazy("session"),
    "host": gettext_lazy("host"),
}


def place_in_words(rule: Rule) -> str:
    """Return which requests a rule matches: "GET, POST · /api/…". Also for a row that cannot be enforced."""
    kinds = {
        "exact": "%(path)s",
        "prefix": "%(path)s…",
        "route": _("route %(path)s"),
    }
    words = [", ".join(map(str, rule.methods)) if isinstance(rule.methods, list) else ""]
    words.append(kinds.get(rule.path_kind, "") % {"path": rule.path})
    words.append(_("view %(name)s") % {"name": rule.view_name} if rule.view_name else "")
    words.append(_("scope %(name)s") % {"name": rule.scope} if rule.scope else "")
    return " · ".join(filter(None, words)) or _("every request")


def unknown_in_words(unknown: UnknownName) -> str:
    """Return which name of a rule no view has, and what may be meant."""
    texts = {
        "view_name": _("No view is named “%(name)s”, so this rule matches no request."),
        "route": _("No route is “%(name)s”, so this rule matches no request."),
        "scope": str(NO_SUCH_SCOPE),
    }
    text = texts[unknown.field] % {"name": unknown.name}
    return f"{text} {_('Did you mean “%(close)s”?') % {'close': unknown.close}}" if unknown.close else text


def breakable(text: str) -> SafeString:
    """Return a text as HTML with possible line breaks after the slashes in a path."""
    return mark_safe(re.sub(r"(?<=[^\s/])/(?=[^\s/])", "/<wbr>", escape(text)))


def split_in_words(rule: Rule | RuleRecord) -> str:
    """Return what a rule is counted by: "user and IP address". Also for a row that cannot be enforced."""
    parts = rule.partition_by if isinstance(rule.partition_by, list | tuple) else []
    return _(" and ").join(label_of(str(part)) for part in parts) or _("all callers together")


def period_in_words(starts_at: datetime | None, ends_at: datetime | None) -> str:
    """Return a period as text: "until 1 Dec. 2026, noon", "over since …"; empty = always."""
    now = timezone.now()
    start, end = (end_in_words(each) if each else "" for each in (starts_at, ends_at))
    if ends_at and ends_at <= now:
        return _("over since %(end)s") % {"end": end}
    if starts_at and starts_at > now:
        return (_("from %(start)s until %(end)s") if ends_at else _("from %(start)s")) % {"start": start, "end": end}
    if ends_at:
        return _("until %(end)s") % {"end": end}
    return _("since %(start)s") % {"start": start} if starts_at else ""


def when_and_who(row: Any) -> str:
    """Return how long ago a version was made, and by whom: "5 minutes ago, by ada"."""
    when = ago(aware(row.created_at))
    return _("%(when)s, by %(who)s") % {"when": when, "who": row.author.get_username()} if row.author else when


def may_see_names(reader: Any, model: type[Model]) -> bool:
    """Return whether this user may view such rows, of users or customers, or see the names of callers; `None` = may."""
    needed = f"{model._meta.app_label}.view_{model._meta.model_name}", "django_ratelimiter.reveal_caller"
    return reader is None or any(map(reader.has_perm, needed))


def name_of(reader: Any, row: Any) -> str:
    """Return the name of a user or customer if this user may see it; "" = they may not, or there is no row."""
    if row is None or not may_see_names(reader, type(row)):
        return ""
    return without_controls(str(row.get_username())) if isinstance(row, get_user_model()) else label_of_row(row)


def label_of(name: str) -> str:
    """Return an identity as text: "IP address", "header X-Tenant"; several are joined by "|"."""
    if "|" in name:
        return _(" and ").join(map(label_of, name.split("|")))
    if "/" in name:
        return _("network of %(bits)s bits") % {"bits": name.partition("/")[2]}
    kind, colon, own = name.partition(":")
    if not colon:
        return str(IDENTITY_LABELS.get(name, name))
    labels = {
        "header": _("header %(name)s"),
        "path": _("path's %(name)s"),
        "field": _("field %(name)s"),
        "query": _("parameter %(name)s"),
        "cookie": _("cookie %(name)s"),
    }
    return labels.get(kind, "%(name)s") % {"name": own}


def names_in_words(reader: Any, aliases: Iterable[str]) -> Mapping[str, str]:
    """Return the callers as text, by alias; those that the reader may see."""
    return in_words(reader, revealed_to(reader, aliases))


def in_words(reader: Any, known: Mapping[str, Name]) -> Mapping[str, str]:
    """Return each caller as text: "user: paula (id 42)", "IP address: 192.0.2.7", "API key: shop (1a2b3c4d…)".

    One query for users among them, if this reader may see their names, one such for customers, and one for API keys.
    """
    keys = {name.value for name in known.values() if name.kind == "api_key"}
    named = {"api_key": key_labels(reader, keys)}
    for kind, model_of in (("user", get_user_model), ("customer", customer_model)):
        values = {name.value for name in known.values() if name.kind == kind}
        model: Any = model_of() if values else None
        rows = rows_of(model, values) if model and may_see_names(reader, model) else ()
        named[kind] = {key_of(model, row.pk): name_of(reader, row) for row in rows}
    return {digest: without_controls(_in_words(name, named)) for digest, name in known.items()}


def _in_words(name: Name, named: Mapping[str, Mapping[str, str]]) -> str:
    if name.kind == "partition":
        return name.value
    value, text = name.value, name.shown
    own = named.get(name.kind, {}).get(value, value)
    if name.kind == "api_key":
        text = labelled(name, named[name.kind])
    elif own != value:
        text = _("%(name)s (id %(pk)s)") % {"name": own, "pk": value}
    return f"{label_of(name.kind)}: {text}"
