"""Rules, periods, identities and callers as text; callers by their names, for readers who may see them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from django.utils import timezone
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..inspection.references import Name, labelled, labels_of, revealed_to
from ..models import Rule
from ..rules.formatting import ago, end_in_words
from ..rules.records import RuleRecord
from ..rules.routes import NO_SUCH_SCOPE, UnknownName
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

    One query for users among them, one for customers, and one for API keys, as far as this reader may see their names.
    """
    labels = labels_of(reader, {*known.values()})
    texts = {each: f"{label_of(each.kind)}: {labelled(each, labels)}" for each in known.values()}
    texts |= {each: each.value for each in texts if each.kind == "partition"}
    return {digest: without_controls(texts[name]) for digest, name in known.items()}
