"""The pages of the history: all versions, one of them, and restoring one.

Also a rule's own history, instead of Django's, which lists fields without their old and new values.
"""

from __future__ import annotations

from typing import Any, Final

from django import forms
from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...rules.stored.history import log
from ...rules.stored.history.back import NothingToBringBack, bring_back, plan_back
from ...rules.stored.history.changes import diff
from ...rules.stored.history.rows import NotApplied
from ...rules.stored.storage import committed_version
from ..pages import PagesAdmin
from ..reasons import ReasonField
from ..versioned import report_version
from ..viewer import Viewer
from .keys import key_of, row_named, version_named
from .permissions import PUBLISH, missing_permissions
from .undo import offered_undo, reason_to_bring_back

PER_PAGE: Final = 20
#: The query parameter of a rule's own history for the version to start from, backwards.
OLDER: Final = "until"


class BringBackForm(forms.Form):
    """The reason, and the latest version when the changes were shown."""

    reason = ReasonField(help_text=gettext_lazy("Why you bring this version back. The history shows it."))
    seen = forms.CharField(widget=forms.HiddenInput, max_length=40)


class HistoryPages(PagesAdmin):
    """An admin of rules with the pages of their history."""

    def get_urls(self) -> list[URLPattern]:
        may = self.has_view_or_change_permission
        pages = [
            self.page_path("history/", self.versions_view, "history", may),
            self.page_path("history/<str:key>/", self.version_view, "history_version", may),
            self.page_path("history/<str:key>/bring-back/", self.bring_back_view, "history_bring_back", may),
        ]
        return [*pages, *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Show the list of rules, with a link to undo a change of the last day."""
        undo = offered_undo(Viewer(request, self.admin_site), lately=True) if request.method == "GET" else None
        return super().changelist_view(request, {"undo": undo} | (extra_context or {}))

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        rule = kwargs.get("obj")
        if rule is not None and request.method == "GET":
            context["undo"] = offered_undo(Viewer(request, self.admin_site), rule.slug, lately=True)
        return super().render_change_form(request, context, *args, **kwargs)

    def versions_view(self, request: HttpRequest) -> HttpResponse:
        """Show the stored versions, the latest first, with the changes of each."""
        page = Paginator(log.rows(), PER_PAGE).get_page(request.GET.get("p"))
        entries = log.entries_of(list(page.object_list))
        context = {
            "page": page,
            "entries": [(key_of(entry.row), entry) for entry in entries],
            "latest": key_of(committed_version()),
        }
        return self._history(request, "history", _("History of the rules"), context)

    def version_view(self, request: HttpRequest, key: str) -> HttpResponse:
        """Show one version, and its changes from the previous one."""
        row = row_named(key)
        before = log.row_before(log.version_of(row))
        context: dict[str, Any] = {"row": row, "key": key, "before": before}
        if before is not None:
            context |= {"before_key": key_of(before), "changes": diff(before.snapshot, row.snapshot)}
        context["is_latest"] = log.version_of(row) == committed_version()
        return self._history(request, "history_version", capfirst(row), context)

    def bring_back_view(self, request: HttpRequest, key: str) -> HttpResponse:
        """Show what restoring a version would change, and do it after a reason is given."""
        if not request.user.has_perm(PUBLISH):
            raise PermissionDenied
        row = row_named(key)
        way = plan_back(log.version_of(row))
        if way is None:
            raise Http404
        missing = missing_permissions(request, way.changes)
        form = BringBackForm(initial={"seen": key_of(way.seen), "reason": reason_to_bring_back(row)})
        if request.method == "POST":
            if missing:
                raise PermissionDenied
            form = BringBackForm(request.POST)
            if form.is_valid() and self._bring_back(request, row, **form.cleaned_data):
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
        return self._history(request, "history_bring_back", title, context)

    def _bring_back(self, request: HttpRequest, row: Any, reason: str, seen: str) -> bool:
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
        report_version(self, request, made, text, reason)
        return True

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the changes of one rule, with old and new values, and their authors."""
        rule = self.get_object(request, unquote(object_id))
        if rule is None:
            return super().history_view(request, object_id)  # it shows a message
        if not self.has_view_or_change_permission(request, rule):
            raise PermissionDenied
        start = request.GET.get(OLDER)
        past = log.past_of_rule(request.GET.get("slug") or rule.slug, version_named(start) if start else None)
        context = {
            "object": rule,
            "module_name": str(capfirst(self.opts.verbose_name_plural)),
            "entries": [(key_of(entry.row), key_of(entry.before), entry) for entry in past.entries],
            "older": past.older and key_of(past.older),
            "older_slug": past.slug,
        }
        title = _("Change history: %s") % rule
        return self._history(request, "history_rule", title, context | (extra_context or {}))

    def _history(self, request: HttpRequest, template: str, title: str, context: dict[str, Any]) -> TemplateResponse:
        return self.page(request, template, title, {"may_bring_back": request.user.has_perm(PUBLISH), **context})
