"""Saving in the admin: each save makes one version of the rule set, and is refused on top of another user's change."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..models import Rule, RuleLimit, RuleSetVersion
from ..models.validation import validate_line
from ..rules import cache
from ..rules.stored.history.changes import latest_change_of
from ..rules.stored.storage import primary
from .formatting import when_and_who
from .pages import NulSafeAdmin


class NotAColumn:
    """A field that is not a column of its row, so it is not in the row's history."""

    def has_changed(self, initial: Any, data: Any) -> bool:
        return False


class ReasonField(NotAColumn, forms.CharField):
    """A line of text that a version can store as its reason. autofocus: it is the only field of its page."""

    def __init__(self, *, autofocus: bool = True, **options: Any) -> None:
        options.setdefault("label", gettext_lazy("Reason"))
        length = RuleSetVersion._meta.get_field("reason").max_length
        widget = forms.TextInput({"class": "vTextField", "autofocus": autofocus})
        super().__init__(max_length=length, widget=widget, validators=[validate_line], **options)


#: The names of the two fields in each form of a row of the rule set that are not columns.
REASON: Final = "change_reason"
SEEN: Final = "seen_digest"


class _Digest(NotAColumn, forms.CharField):
    """What the form was filled from."""


class EditedForm(forms.ModelForm):
    """A form for a row of the rule set, with a reason, and with the state of the row when the form was opened.

    request: that of the page; if the row has been saved since, the form is not valid.
    """

    change_reason = ReasonField(
        autofocus=False,
        label=gettext_lazy("Reason for this change"),
        required=False,
        help_text=gettext_lazy("Optional. The history shows it."),
    )
    seen_digest = _Digest(required=False, max_length=64, widget=forms.HiddenInput)

    request: HttpRequest

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk is not None and not self.is_bound:
            self.initial[SEEN] = digest_of(self.instance)

    def clean(self) -> dict[str, Any] | None:
        super().clean()
        if getattr(self.request, "ratelimiter_refused", False):
            version = latest_change_of(self.instance._meta.model_name, self.instance.slug)
            when = when_and_who(version) if version else _("meanwhile")
            text = _("This was saved %(when)s, so nothing was saved now. What you typed is still here.")
            link = _("Load it again, without what you typed")
            error = format_html('{} <a href="">{}</a>', text % {"when": when}, link)
            self.add_error(None, ValidationError(error, code="outdated"))
        return self.cleaned_data


def digest_of(row: Model) -> str:
    """Return a digest of a row and its limits in the database."""
    rows = [row, *_limits_of(row)]
    values = [
        {
            field.attname: getattr(each, field.attname)
            for field in each._meta.concrete_fields
            if field.name != "generation"  # it is in no form, and no save overwrites it
        }
        for each in rows
    ]
    return hashlib.sha256(json.dumps(values, default=str, sort_keys=True).encode()).hexdigest()


def _limits_of(row: Model) -> Sequence[RuleLimit]:
    """Return a rule's limits, the oldest first; empty for a tier."""
    return list(row.limits.order_by("pk")) if isinstance(row, Rule) else []


def is_outdated(request: HttpRequest, row: Model) -> bool:
    """Return whether the row has been saved since the form was filled from it.

    Then what was typed for limits becomes that of new ones: Django would not show again that of limits that are gone.
    """
    seen = request.POST.get(SEEN)
    if not seen:  # browsers always send it; a program that posts forms has not read the row
        return False
    current = type(row)._default_manager.using(primary()).get(pk=row.pk)  # the given row may be from a replica
    if digest_of(current) == seen:
        return False
    sent = request.POST.copy()
    sent["limits-INITIAL_FORMS"] = "0"
    for name in sent:
        if re.fullmatch("limits-[0-9]+-id", name):
            sent[name] = ""
    request.POST = sent  # type: ignore[assignment]
    return True


class SaveAborted(Exception):
    """Raised within `saved_as_version` to roll back, without a new version."""


@contextmanager
def saved_as_version(request: HttpRequest, summary: str, reason: str = "") -> Iterator[None]:
    """Save all changes in this block as one version, by this user, and warn if it could not be published.

    summary: in English, because it is stored, and not everybody who reads it uses the language of this page.
    """
    try:
        with cache.editing(author=request.user, summary=summary[:200], reason=reason):
            yield
    except SaveAborted:
        return
    # Publishing follows the commit, which comes later with ATOMIC_REQUESTS; so the warning is registered after it.
    transaction.on_commit(partial(warn_if_unpublished, request), using=primary())


class VersionedAdmin(NulSafeAdmin):
    """An admin of rows that are part of the rule set.

    The lock is taken before the form reads a row: two users who save at once see each other's changes without a
    deadlock. See `is_outdated` for a save on top of another user's change. Each form has a field for the reason.
    """

    class Media:
        css = {"all": ["django_ratelimiter/history.css"]}  # noqa: RUF012

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form = kwargs.pop("form", self.form)
        edited = type(form.__name__, (EditedForm, form), {"request": request})
        return super().get_form(request, obj, change=change, form=edited, **kwargs)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return [name for name in super().get_fields(request, obj) if name not in (REASON, SEEN)]

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        if request.method != "POST":
            return super().changeform_view(request, object_id, form_url, extra_context)
        summary = f"{self.opts.model_name} {request.POST.get('slug', '')} {'saved' if object_id else 'added'}"
        # If the form rejects the reason, nothing is saved, so it is never stored.
        with saved_as_version(request, summary, request.POST.get(REASON, "").strip()):
            row = self.get_object(request, unquote(object_id)) if object_id else None
            if row is not None and self.has_change_permission(request, row):
                request.ratelimiter_refused = is_outdated(request, row)  # type: ignore[attr-defined]
            response = super().changeform_view(request, object_id, form_url, extra_context)
            if not getattr(request, "ratelimiter_saved", False):
                raise SaveAborted
        return response

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        super().save_related(request, form, formsets, change)
        request.ratelimiter_saved = True  # type: ignore[attr-defined]

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        form = context["adminform"].form
        row = kwargs.get("obj")
        if self.has_change_permission(request, row) if row else self.has_add_permission(request):
            context |= {"reason_field": form[REASON], "seen_field": form[SEEN]}
        return super().render_change_form(request, context, *args, **kwargs)

    def delete_model(self, request: HttpRequest, obj: Model) -> None:
        with saved_as_version(request, f"{self.opts.model_name} {obj} deleted"):
            super().delete_model(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        with saved_as_version(request, f"{self.opts.model_name}s deleted: {', '.join(map(str, queryset))}"):
            super().delete_queryset(request, queryset)


def warn_if_unpublished(request: HttpRequest) -> None:
    """Warn if the last version could not be published."""
    if problem := cache.publish_problem():
        messages.warning(request, problem)
