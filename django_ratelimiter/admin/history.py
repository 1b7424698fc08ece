"""The history of the rules: all versions, one of them, restoring one, and the offer to undo the last change.

Also a rule's own history, instead of Django's, which lists fields without their old and new values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.contrib.auth import get_permission_codename
from django.contrib.auth.models import Permission
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.utils.text import Truncator, capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..engine.base import Version
from ..models import AccessEntry, Rule, RuleLimit, Tier
from ..rules.stored.history import changes
from ..rules.stored.history.back import BROUGHT_BACK, NotApplied, NothingToBringBack, bring_back, plan_back
from ..rules.stored.history.changes import Change, diff, summary
from ..rules.stored.storage import committed_version, primary, snapshots
from ..usage.times import aware, now
from .formatting import when_and_who
from .pages import show
from .versioned import ReasonField, warn_if_unpublished
from .viewer import Viewer, key_of

PUBLISH: Final = "django_ratelimiter.publish_rule"
PER_PAGE: Final = 20
#: The query parameter of a rule's own history for the version to start from, backwards.
OLDER: Final = "until"


class BringBackForm(forms.Form):
    """The reason, and the latest version when the changes were shown."""

    reason = ReasonField(help_text=gettext_lazy("Why you bring this version back. The history shows it."))
    seen = forms.CharField(widget=forms.HiddenInput, max_length=40)


def history_view(page_of: Any, request: HttpRequest) -> HttpResponse:
    """Show the stored versions, the latest first, with the changes of each."""
    page = Paginator(changes.version_rows(), PER_PAGE).get_page(request.GET.get("p"))
    entries = changes.entries_of(list(page.object_list))
    context = {
        "page": page,
        "entries": [(key_of(entry.row), entry) for entry in entries],
        "latest": key_of(committed_version()),
    }
    return _history(page_of, request, "history", _("History of the rules"), context)


def history_version_view(page_of: Any, request: HttpRequest, key: str) -> HttpResponse:
    """Show one version, and its changes from the previous one."""
    row = row_named(key)
    before = changes.row_before(changes.version_of(row))
    context: dict[str, Any] = {"row": row, "key": key, "before": before}
    if before is not None:
        context |= {"before_key": key_of(before), "changes": diff(before.snapshot, row.snapshot)}
    context["is_latest"] = changes.version_of(row) == committed_version()
    return _history(page_of, request, "history_version", capfirst(row), context)


def history_bring_back_view(page_of: Any, request: HttpRequest, key: str) -> HttpResponse:
    """Show what restoring a version would change, and do it after a reason is given."""
    if not request.user.has_perm(PUBLISH):
        raise PermissionDenied
    row = row_named(key)
    way = plan_back(changes.version_of(row))
    if way is None:
        raise Http404
    missing = missing_permissions(request, way.changes)
    form = BringBackForm(initial={"seen": key_of(way.seen), "reason": _("Back to version %s") % row.number})
    if request.method == "POST":
        if missing:
            raise PermissionDenied
        form = BringBackForm(request.POST)
        if form.is_valid() and _bring_back(page_of, request, row, **form.cleaned_data):
            return HttpResponseRedirect(Viewer(request).url("history"))
        form.data = request.POST.copy()
        form.data["seen"] = key_of(way.seen)  # of the changes that are shown now
    context = {
        "row": row,
        "key": key,
        "changes": way.changes,
        "notes": way.notes,
        "missing": missing,
        "form": form,
    }
    title = _("Bring back version %(number)s?") % {"number": row.number}
    return _history(page_of, request, "history_bring_back", title, context)


def _bring_back(page_of: Any, request: HttpRequest, row: Any, reason: str, seen: str) -> bool:
    """Restore it, log it and show a message. False = show the page again, because the rules have changed."""
    try:
        made = bring_back(changes.version_of(row), version_named(seen), request.user, reason)
    except NothingToBringBack as error:
        messages.info(request, str(error))
        return True
    except NotApplied as error:
        messages.error(request, str(error))
        return False
    texts = {"number": row.number, "made": made.number}
    text = _("The rules of version %(number)s were brought back, as version %(made)s.") % texts
    logged = f"{text} {_('Reason: %(reason)s') % {'reason': reason}}"
    page_of.log_change(request, snapshots(made).defer("snapshot").first(), logged)
    messages.success(request, text)
    transaction.on_commit(partial(warn_if_unpublished, request), using=primary())
    return True


def rule_history_view(
    page_of: Any, request: HttpRequest, rule: Rule, extra_context: dict[str, Any] | None
) -> HttpResponse:
    """Show the changes of one rule, with old and new values, and their authors."""
    start = request.GET.get(OLDER)
    slug = request.GET.get("slug") or rule.slug
    entries, slug, older = changes.past_of_rule(slug, version_named(start) if start else None)
    context = {
        "object": rule,
        "module_name": str(capfirst(page_of.opts.verbose_name_plural)),
        "entries": [(key_of(entry.row), key_of(entry.before), entry) for entry in entries],
        "older": older and key_of(older),
        "older_slug": slug,
    }
    title = _("Change history: %s") % rule
    return _history(page_of, request, "rule_history", title, context | (extra_context or {}))


def _history(
    page_of: Any, request: HttpRequest, template: str, title: str, context: dict[str, Any]
) -> TemplateResponse:
    return show(page_of, request, template, title, {"may_bring_back": request.user.has_perm(PUBLISH), **context})


def version_named(key: str) -> Version:
    """Return the version with this key. Raises Http404 if there can be none."""
    found = re.fullmatch(r"(\d{1,19})-(\d{1,19})", key)
    if not found:
        raise Http404
    return Version(int(found[1]), int(found[2]))


def row_named(key: str) -> Any:
    """Return the stored version with this key. Raises Http404 if there is none."""
    return get_object_or_404(snapshots(version_named(key)).prefetch_related("author"))


_MODELS: Final = {"rule": Rule, "tier": Tier, "access": AccessEntry}
_ACTIONS: Final = {"added": "add", "changed": "change", "removed": "delete"}


def missing_permissions(request: HttpRequest, changes: Iterable[Change]) -> list[str]:
    """Return the names of the permissions that this user lacks for these changes, as in Django's lists."""
    needed = {codename for change in changes for codename in _needed(change)}
    lacking = sorted(name for name in needed if not request.user.has_perm(f"{Rule._meta.app_label}.{name}"))
    if not lacking:
        return []
    rows = Permission.objects.filter(content_type__app_label=Rule._meta.app_label, codename__in=lacking)
    return [row.name for row in rows.order_by("name")] or lacking


def _needed(change: Change) -> set[str]:
    if change.subject == "enforcement":  # it is never restored
        return set()
    action = _ACTIONS[change.kind]
    needed = {get_permission_codename(action, _MODELS[change.subject]._meta)}
    limits = [field for field in change.fields if field.name == "limits"]
    if change.subject == "rule" and change.kind != "removed" and limits:  # a deleted rule's limits are deleted with it
        needed.add(get_permission_codename("add" if change.kind == "added" else "change", RuleLimit._meta))
    return needed


def offered_undo(viewer: Viewer, slug: str | None = None) -> dict[str, Any] | None:
    """Return the context of the offer to undo a change of the last day; `None` = none, or without the permissions.

    Not of a change that has itself brought a version back: undoing it would repeat the mistake. At most two queries.
    slug: of a rule; `None` = any rule or tier.
    """
    if not viewer.may("publish_rule"):
        return None
    rows = [*snapshots().defer("snapshot")[: changes.RECENT + 1]]
    recent = [row for row in rows[:-1] if aware(row.created_at) >= now() - timedelta(days=1)]
    for entry, before in zip(changes.entries_of(recent), rows[1:], strict=False):
        undone = [change for change in entry.changes or () if _is_undone(change)]
        if any(slug is None or (change.subject, change.slug) == ("rule", slug) for change in undone):
            url = viewer.version_url("history_bring_back", before)
            if not url or entry.row.summary.startswith(BROUGHT_BACK):
                return None
            what = Truncator(summary(undone)).chars(200)
            return {"url": url, "number": before.number, "when_and_who": when_and_who(entry.row), "what": what}
    return None


def _is_undone(change: Change) -> bool:
    """Return whether this is restored: not the switch of all enforcement, nor counters that were reset."""
    if change.subject == "enforcement":
        return False
    return change.kind != "changed" or any(field.name != "generation" for field in change.fields)
