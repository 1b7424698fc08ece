"""The page of the rules file: download it, or upload one, see its plan, and apply it."""

from __future__ import annotations

from typing import Any, Final

from django import forms
from django.contrib import messages
from django.contrib.auth import get_permission_codename
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...models import AccessEntry
from ...rules.files.applying import apply_file
from ...rules.files.documents import LibraryMissing
from ...rules.files.faults import Fault, WrongFile
from ...rules.files.planning import FilePlan, plan_file
from ...rules.files.reading import FileBounds, decoded, read
from ...rules.files.words import summary_of
from ...rules.files.writing import text_of_database
from ...rules.stored.history.rows import NotApplied
from ..history.permissions import PUBLISH, missing_permissions
from ..pages import PagesAdmin
from ..versioned import report_version
from .ownership import ReasonForm

#: Maximum size of a file, and of what is in it. Larger ones would keep a worker busy for seconds.
MAX_BYTES: Final = 250_000
BOUNDS: Final = FileBounds(values=40_000, rows=2_000)

_TYPES: Final = {"yaml": "application/yaml", "json": "application/json"}


class UploadForm(forms.Form):
    """A rules file."""

    file = forms.FileField(label=gettext_lazy("Rules file"), help_text=gettext_lazy("YAML or JSON, at most 250 kB."))

    def clean_file(self) -> Any:
        """Bound the size of the file, and decode it."""
        uploaded = self.cleaned_data["file"]
        if uploaded.size > MAX_BYTES:
            raise ValidationError(
                _("The file is larger than 250 kB. Apply such a file with `manage.py ratelimit apply`.")
            )
        try:
            self.text = decoded(uploaded.read(), uploaded.name)
        except WrongFile as error:
            raise ValidationError(error.lines) from error
        return uploaded


class ApplyForm(ReasonForm):
    """What was uploaded and shown, with the state of its plan; and the reason for applying it."""

    text = forms.CharField(widget=forms.HiddenInput, max_length=MAX_BYTES, strip=False)
    name = forms.CharField(widget=forms.HiddenInput, max_length=255)
    expected = forms.CharField(widget=forms.HiddenInput, max_length=64)


class RulesFilePage(PagesAdmin):
    """An admin of rules with the page of the file."""

    def get_urls(self) -> list[URLPattern]:
        pages = [
            self.page_path("file/", self.file_view, "rules_file", self.has_view_permission),
            self.page_path("file/download/", self.download_view, "rules_download", self.has_view_permission),
        ]
        return [*pages, *super().get_urls()]

    def download_view(self, request: HttpRequest) -> HttpResponse:
        """Send the rules as a file: `?format=yaml` or `?format=json`. Access entries are not in it."""
        style = "json" if request.GET.get("format") == "json" else "yaml"
        try:
            text = text_of_database(style)
        except LibraryMissing as error:
            messages.error(request, str(error))
            return HttpResponseRedirect(self._address())
        response = HttpResponse(text, content_type=f"{_TYPES[style]}; charset=utf-8")
        response["Content-Disposition"] = f'attachment; filename="ratelimits.{style}"'
        return response

    def file_view(self, request: HttpRequest) -> HttpResponse:
        """Show the downloads and the form; after an upload, its plan; and apply it after confirmation."""
        may_upload = self.has_change_permission(request) and request.user.has_perm(PUBLISH)
        context: dict[str, Any] = {"may_upload": may_upload, "upload": UploadForm()}
        if request.method == "POST":
            if not may_upload:
                raise PermissionDenied
            if "text" not in request.POST:
                context |= _uploaded(request)
            elif (answer := self._applied(request, context)) is not None:
                return answer
        return self.page(request, "rules_file", _("Rules file"), context)

    def _applied(self, request: HttpRequest, context: dict[str, Any]) -> HttpResponse | None:
        """Apply what was shown. `None` = show the page again, with the current plan."""
        form = ApplyForm(request.POST)
        if not {"text", "name", "expected"} <= form.data.keys():
            raise PermissionDenied
        form.is_valid()
        try:
            plan = _plan_for(request, form.data["text"], form.data["name"])
        except ValidationError as error:
            messages.error(request, " ".join(error.messages))
            return None
        shown = _plan_context(request, plan)
        if shown["missing"]:
            raise PermissionDenied
        data = form.cleaned_data if form.is_valid() else {}
        if data and self._apply(request, plan, data["reason"], data["expected"]):
            return HttpResponseRedirect(self._address())
        form.data = request.POST.copy()
        form.data["expected"] = plan.state  # of the plan that is shown now
        context |= shown | {"form": form}
        return None

    def _apply(self, request: HttpRequest, plan: FilePlan, reason: str, expected: str) -> bool:
        file = plan.file
        try:
            plan, version = apply_file(file, author=request.user, reason=reason, plan=plan, expected=expected)
        except (NotApplied, WrongFile) as error:
            messages.error(request, str(error))
            return False
        if version is None:
            messages.info(request, summary_of(plan))
            return True
        text = _("The file %(file)s was applied, as version %(number)s.") % {
            "file": file.name,
            "number": version.number,
        }
        report_version(self, request, version, text, reason)
        return True

    def _address(self) -> str:
        return reverse("admin:django_ratelimiter_rules_file", current_app=self.admin_site.name)


def _uploaded(request: HttpRequest) -> dict[str, Any]:
    """Return the page's context for an uploaded file: its plan, or its errors."""
    form = UploadForm(request.POST, request.FILES)
    if form.is_valid():
        try:
            plan = _plan_for(request, form.text, form.cleaned_data["file"].name)
        except ValidationError as error:
            form.add_error("file", error)
        else:
            initial = {"text": form.text, "name": plan.file.name, "expected": plan.state}
            return {"upload": form, "form": ApplyForm(initial=initial), **_plan_context(request, plan)}
    return {"upload": form}


def _plan_for(request: HttpRequest, text: str, name: str) -> FilePlan:
    """Return the plan of a text. Raises ValidationError, also for access entries that the user may not see."""
    try:
        file = read(text, name, BOUNDS)
        names = (get_permission_codename(action, AccessEntry._meta) for action in ("view", "change"))
        if file.access and not any(request.user.has_perm(f"{AccessEntry._meta.app_label}.{each}") for each in names):
            hidden = _(
                "You may not see access entries. Leave the section “access” out, or ask somebody who may see them."
            )
            raise WrongFile(name, [Fault(file.access[0].place, hidden)])
        return plan_file(file)
    except WrongFile as error:
        raise ValidationError(error.lines) from error
    except LibraryMissing as error:
        raise ValidationError(str(error)) from error


def _plan_context(request: HttpRequest, plan: FilePlan) -> dict[str, Any]:
    """Return the page's context for a plan. missing: the permissions that the user lacks for it."""
    return {
        "plan": plan,
        "warnings": [fault.in_words(plan.file.name) for fault in plan.file.warnings],
        "summary": summary_of(plan),
        "missing": missing_permissions(request, plan.changes),
    }
