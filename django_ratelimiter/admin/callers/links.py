"""Links from a caller's page into Django's own forms of assignments and access entries, and back to that page."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from django.db import models
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.translation import gettext as _

from ...inspection.caller import Caller, by_key
from ...inspection.caller_report import CallerReport
from ...models import AccessEntry, TierAssignment
from ...rules import cache, inline
from ...rules.tiers import callers_differ
from ...values.access import DIGEST_MARK, digest_value
from ..lists import NulSafeAdmin
from ..viewer import Viewer
from .forms import HASHED

#: In the URL of a form, the query of the caller's page that led there.
BACK: Final = "_caller"


class CallerRowAdmin(NulSafeAdmin):
    """An admin of rows about callers: its forms can be filled in by their URL, and lead back to a caller's page."""

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Also take dates, as "ends_at", or "ends_at_0" and "ends_at_1". A wrong one is shown, and not saved."""
        initial: dict[str, Any] = super().get_changeform_initial_data(request)
        for name in (field.name for field in self.opts.fields if isinstance(field, models.DateTimeField)):
            day, _space, hour = initial.pop(name, "").replace("T", " ").partition(" ")
            parts = [initial.pop(f"{name}_0", day), initial.pop(f"{name}_1", hour)]
            initial |= {name: parts} if any(parts) else {}
        return initial

    def response_post_save_add(self, request: HttpRequest, obj: Any) -> HttpResponseRedirect:
        return self._back(request) or super().response_post_save_add(request, obj)

    def response_post_save_change(self, request: HttpRequest, obj: Any) -> HttpResponseRedirect:
        return self._back(request) or super().response_post_save_change(request, obj)

    def response_delete(self, request: HttpRequest, obj_display: str, obj_id: Any) -> HttpResponse:
        response = super().response_delete(request, obj_display, obj_id)  # with its message
        return self._back(request) or response

    def _back(self, request: HttpRequest) -> HttpResponseRedirect | None:
        """Return to the caller's page that led here; `None` = none did."""
        query, viewer = request.GET.get(BACK), Viewer(request, self.admin_site)
        url = viewer.url("caller") if query and viewer.sees_callers else ""
        return HttpResponseRedirect(f"{url}?{query}") if url else None


class ActLink(NamedTuple):
    """A link to a form that does something for the caller. name: in the page."""

    name: str
    url: str
    text: str


def act_links(report: CallerReport, viewer: Viewer, back: str) -> Iterator[ActLink]:
    """Yield the links to forms that this operator may save. back: the query of the caller's page.

    A caller whose own access entry is in force has no link to another one: the page lists that entry.
    """
    caller, today = report.caller, timezone.localdate(datetime.now(UTC))  # without USE_TZ, Django's default is naive
    if caller.is_unknown_user:
        return
    friday = today + timedelta(days=(4 - today.weekday() - 1) % 7 + 1)
    entry = _entry_of(caller)
    if callers_differ(report.rules) and (whom := _assigned_to(caller, entry)):
        whom |= {"ends_at_0": friday.isoformat(), BACK: back}
        if url := viewer.form_url("add", TierAssignment, multiplier="2", **whom):
            yield ActLink("more", url, _("Allow more"))
            yield ActLink("tier", viewer.form_url("add", TierAssignment, **whom), _("Change tier"))
    if entry is not None and not any(_is_own(row, caller, entry) for row in report.grounds.entries):
        kind, value = entry
        shown = {"user": by_key(value), "api_key": f"{HASHED}{value}"}.get(kind, value)
        until = {"expires_at_0": (today + timedelta(days=1)).isoformat(), BACK: back}
        for action, text in (("allow", _("Allow past all rules")), ("deny", _("Deny every request"))):
            if url := viewer.form_url("add", AccessEntry, action=action, **{kind: shown}, **until):
                yield ActLink(action, url, text)


def _assigned_to(caller: Caller, entry: tuple[str, str] | None) -> dict[str, str]:
    """Return the caller as the field of an assignment's form; empty if nothing can be assigned to it."""
    if caller.kind == "user":
        return {"user": str(caller.user.pk)}
    if caller.kind == "api_key" and caller.api_key:
        return {"api_key": f"{HASHED}{caller.api_key}"}
    if caller.kind == "digest":
        return {"partition": f"{DIGEST_MARK}{entry[1]}"} if entry else {}
    return {"partition": caller.partition(_names(caller)) or ""}


def _entry_of(caller: Caller) -> tuple[str, str] | None:
    """Return kind and value of an entry that names exactly this caller; `None` = there can be none."""
    value = {"user": caller.user_id, "api_key": caller.api_key, "ip": caller.address}.get(caller.kind)
    if value is not None:
        return caller.kind, value
    ways = [] if caller.is_everybody or caller.is_nobody or caller.is_unreadable else _ways_of(caller)
    return ("digest", digest_value(ways, caller.digest)) if ways else None


def _is_own(row: AccessEntry, caller: Caller, entry: tuple[str, str]) -> bool:
    """Return whether this entry in force is about exactly this caller. One of several keys has no digest of its own."""
    digests = [] if caller.is_one_key else [caller.digest, *caller.digests_by(_names(caller))]
    return (row.kind, row.value) == entry or (row.kind == "digest" and row.value.rpartition(":")[2] in digests)


def _names(caller: Caller) -> tuple[str, ...]:
    return tuple(caller.known) if caller.kind == "partition" else (caller.kind,)


def _ways_of(caller: Caller) -> list[tuple[str, ...]]:
    """Return by what rules may count this caller. Of a digest it is not known, unless it comes with its rule."""
    if caller.kind != "digest":
        return [_names(caller)]
    split = [rule for rule in cache.latest_rules().rules if rule.partition_by]
    rules = [rule for rule in split if rule.slug == caller.rule] or (
        [] if caller.rule.startswith(inline.PREFIX) else split
    )
    stand_in = [("ip",)] if any(rule.missing_partition == "ip" for rule in rules) else []
    return list(dict.fromkeys([*(rule.partition_by for rule in rules), *stand_in]))
