"""The pages that are measured: those of the tests, and also searches, filters and longer reports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlencode

from django.db.models import Model
from django.urls import reverse

from django_ratelimiter.models import AccessEntry, Rule, Tier, TierAssignment
from tests.admin_pages import latest, pages

from .fill import callers, latest_user

_ASSIGNMENTS: Final = "tierassignment_changelist"
#: Rows of a page of one of Django's lists.
PER_PAGE: Final = 100
#: Name of the URL pattern, without the common prefix, and the query, by name.
MORE: Final = {
    "rules, all": ("rule_changelist", {"all": ""}),
    "rules, searched": ("rule_changelist", {"q": "things"}),
    "rules, of a view": ("rule_changelist", {"view": "hello"}),
    "rule-add, preset": ("rule_add", {"slug": "api", "limits-0-quota": "5"}),
    "assignments, searched": (_ASSIGNMENTS, {"q": "user5"}),
    "access, searched": ("accessentry_changelist", {"q": "10.0.0"}),
    "usage, hour": ("usagebucket_changelist", {"period": "1h"}),
    "usage, week": ("usagebucket_changelist", {"period": "7d"}),
    "usage, month": ("usagebucket_changelist", {"period": "30d"}),
    "usage-of-a-rule, month": ("usage_rule", {"period": "30d", "rule": "rule-2"}),
    "views, JSON": ("rule_views", {"path_kind": "prefix", "path": "/"}),
    "sentences, JSON": ("rule_sentences", {"quota": "5", "window_seconds": "60", "cost": "1"}),
    "caller, found": ("caller", {}),
}


def addresses() -> Iterator[tuple[str, str]]:
    """Yield the name and the URL of each page."""
    for page in pages():
        yield page.name, page.url.replace("rule=search", "rule=rule-1")
    for name, (address, query) in MORE.items():
        yield name, f"{reverse(f'admin:django_ratelimiter_{address}')}?{urlencode(query)}"
    yield "caller, a user", _at("caller", kind="user", value=str(latest_user()))
    yield "caller, a top client", _at("caller", kind="user", value="2")
    yield "caller, a digest", _at("caller", digest=callers()[0], rule="rule-1")
    pro, rule = Tier.objects.get(slug="pro"), Rule.objects.earliest("pk")
    yield "rules, last page", _at("rule_changelist", p=_last_page(Rule))
    yield "rules, of a tier", _at("rule_changelist", limits__tier__id__exact=str(pro.pk))
    yield "rule-add, copy", _at("rule_add", copy=str(rule.pk))
    yield "assignments, last page", _at("tierassignment_changelist", p=_last_page(TierAssignment))
    yield "history, page 2", _at("history", p="2")
    for table in ("totals", "series"):
        yield f"usage, week, {table} as CSV", f"{_at('usagebucket_changelist')[:-1]}{table}.csv?period=7d"
    yield "history-bring-back", reverse("admin:django_ratelimiter_history_bring_back", args=[latest(back=20)])
    for model in (Tier, TierAssignment, AccessEntry):
        row = model._default_manager.latest("pk")
        path = f"admin:django_ratelimiter_{row._meta.model_name}"
        yield f"{row._meta.model_name}-add", reverse(f"{path}_add")
        yield f"{row._meta.model_name}-history", reverse(f"{path}_history", args=[row.pk])
    field = {"app_label": "django_ratelimiter", "model_name": "tierassignment"}
    for name in ("user", "group"):
        asked = urlencode(field | {"field_name": name, "term": "user5"})
        yield f"autocomplete, {name}", f"{reverse('admin:autocomplete')}?{asked}"


def _last_page(model: type[Model]) -> str:
    return str(-(-model._default_manager.count() // PER_PAGE))


def _at(name: str, **query: str) -> str:
    return f"{reverse(f'admin:django_ratelimiter_{name}')}?{urlencode(query)}"
