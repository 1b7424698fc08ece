"""Saves in the admin: each makes one version of the rule set, with a warning if it could not be published."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from django.contrib import messages
from django.db import transaction
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext as _

from ..rules import cache
from ..rules.stored.storage import primary
from .lists import NulSafeAdmin


class SaveAborted(Exception):
    """Raised within `saved_as_version` to roll back, without a new version."""


@contextmanager
def saved_as_version(request: HttpRequest, summary: str, reason: str = "") -> Iterator[None]:
    """Save all changes within as one version, by this user, and warn if it could not be published."""
    try:
        with cache.editing(author=request.user, summary=summary[:200], reason=reason):
            yield
    except SaveAborted:
        return
    # Publishing waits for the commit, which with ATOMIC_REQUESTS is still to come; so this waits behind it.
    transaction.on_commit(partial(warn_if_unpublished, request), using=primary())


class VersionedAdmin(NulSafeAdmin):
    """An admin of rows that are part of the rule set.

    The lock is taken before the form reads a row: two who save at once see each other's work, and none deadlocks.
    """

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        if request.method != "POST":
            return super().changeform_view(request, object_id, form_url, extra_context)
        done = _("saved") if object_id else _("added")
        with saved_as_version(request, f"{self.opts.verbose_name} {request.POST.get('slug', '')} {done}"):
            response = super().changeform_view(request, object_id, form_url, extra_context)
            if not getattr(request, "ratelimiter_saved", False):
                raise SaveAborted
        return response

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        super().save_related(request, form, formsets, change)
        request.ratelimiter_saved = True  # type: ignore[attr-defined]

    def delete_model(self, request: HttpRequest, obj: Model) -> None:
        with saved_as_version(request, _("%(kind)s %(name)s deleted") % {"kind": self.opts.verbose_name, "name": obj}):
            super().delete_model(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        names = ", ".join(map(str, queryset))
        with saved_as_version(
            request, _("%(kinds)s deleted: %(names)s") % {"kinds": self.opts.verbose_name_plural, "names": names}
        ):
            super().delete_queryset(request, queryset)


def warn_if_unpublished(request: HttpRequest) -> None:
    """Warn if the last version could not be published."""
    if cache.last_publish_failed():
        messages.warning(
            request,
            _(
                "Saved, not yet in force everywhere: the Redis server could not be told. "
                "It is told again each time the usage is collected."
            ),
        )
