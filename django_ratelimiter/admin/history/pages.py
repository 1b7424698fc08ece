"""The pages of the history: all versions, one of them, and restoring one.

Also a rule's own history, instead of Django's, which lists fields without their old and new values.
"""

from __future__ import annotations

from typing import Any, Final

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...models import Rule
from ...rules.stored.history import log
from ...rules.stored.history.back import NothingToBringBack, bring_back, plan_back
from ...rules.stored.history.changes import diff
from ...rules.stored.history.rows import NotApplied
from ...rules.stored.storage import committed_version
from ..pages import show
from ..versioned import ReasonField, report_version
from ..viewer import Viewer
from .undo import PUBLISH, key_of, missing_permissions, row_named, version_named

PER_PAGE: Final = 20
#: The query parameter of a rule's own history for the version to start from, backwards.
OLDER: Final = "until"


class BringBackForm(forms.Form):
    """The reason, and the latest version when the changes were shown."""

    reason = ReasonField(help_text=gettext_lazy("Why you bring this version back. The history shows it."))
    seen = forms.CharField(widget=forms.HiddenInput, max_length=40)


def versions_view(page_of: Any, request: HttpRequest) -> HttpResponse:
    """Show the stored versions, the latest first, with the changes of each."""
    page = Paginator(log.rows(), PER_PAGE).get_page(request.GET.get("p"))
    entries = log.entries_of(list(page.object_list))
    context = {
        "page": page,
        "entries": [(key_of(entry.row), entry) for entry in entries],
        "latest": key_of(committed_version()),
    }
    return _history(page_of, request, "history", _("History of the rules"), context)


def version_view(page_of: Any, request: HttpRequest, key: str) -> HttpResponse:
    """Show one version, and its changes from the previous one."""
    row = row_named(key)
    before = log.row_before(log.version_of(row))
    context: dict[str, Any] = {"row": row, "key": key, "before": before}
    if before is not None:
        context |= {"before_key": key_of(before), "changes": diff(before.snapshot, row.snapshot)}
    context["is_latest"] = log.version_of(row) == committed_version()
    return _history(page_of, request, "history_version", capfirst(row), context)


def bring_back_view(page_of: Any, request: HttpRequest, key: str) -> HttpResponse:
    """Show what restoring a version would change, and do it after a reason is given."""
    if not request.user.has_perm(PUBLISH):
        raise PermissionDenied
    row = row_named(key)
    way = plan_back(log.version_of(row))
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
        made = bring_back(log.version_of(row), version_named(seen), request.user, reason)
    except NothingToBringBack as error:
        messages.info(request, str(error))
        return True
    except NotApplied as error:
        messages.error(request, str(error))
        return False
    texts = {"number": row.number, "made": made.number}
    text = _("The rules of version %(number)s were brought back, as version %(made)s.") % texts
    report_version(page_of, request, made, text, reason)
    return True


def history_view(page_of: Any, request: HttpRequest, rule: Rule, extra_context: dict[str, Any] | None) -> HttpResponse:
    """Show the changes of one rule, with old and new values, and their authors."""
    start = request.GET.get(OLDER)
    past = log.past_of_rule(request.GET.get("slug") or rule.slug, version_named(start) if start else None)
    context = {
        "object": rule,
        "module_name": str(capfirst(page_of.opts.verbose_name_plural)),
        "entries": [(key_of(entry.row), key_of(entry.before), entry) for entry in past.entries],
        "older": past.older and key_of(past.older),
        "older_slug": past.slug,
    }
    title = _("Change history: %s") % rule
    return _history(page_of, request, "history_rule", title, context | (extra_context or {}))


def _history(
    page_of: Any, request: HttpRequest, template: str, title: str, context: dict[str, Any]
) -> TemplateResponse:
    return show(page_of, request, template, title, {"may_bring_back": request.user.has_perm(PUBLISH), **context})
