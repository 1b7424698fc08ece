"""What a user may see of an explanation: counters, tiers and access entries need one permission each."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from django.utils.translation import gettext as _

from .question import Question

SEES_COUNTERS: Final = "django_ratelimiter.view_usage_report"
SEES_TIERS: Final = "django_ratelimiter.view_tierassignment"
SEES_ACCESS: Final = "django_ratelimiter.view_accessentry"

#: The caller's values: only for readers that may see what is known about callers.
CALLER_FIELDS: Final = ("user", "api_key", "session")


class CallerHidden(Exception):
    """The question names a caller, which this reader must not do; the message names the permission."""


class Rights(NamedTuple):
    """Which parts a reader may see."""

    counters: bool = True
    tiers: bool = True
    entries: bool = True

    @property
    def hidden(self) -> tuple[str, ...]:
        """The names of the other parts."""
        return tuple(name for name, sees in zip(("counters", "tiers", "access entries"), self, strict=True) if not sees)

    @property
    def names_callers(self) -> bool:
        """True if the reader may ask about a certain user, API key or session."""
        return self.counters or self.tiers

    def check(self, question: Question) -> None:
        """Raise CallerHidden if the question names a caller, which this reader must not do."""
        if not self.names_callers and any(
            getattr(question, name) or name in question.identities for name in CALLER_FIELDS
        ):
            text = _("To use %(names)s you need the permission to view usage reports or tier assignments.")
            raise CallerHidden(text % {"names": ", ".join(CALLER_FIELDS)})


def rights_of(reader: Any) -> Rights:
    """Return what this user may see; `None` = everything."""
    if reader is None:
        return Rights()
    return Rights(*map(reader.has_perm, (SEES_COUNTERS, SEES_TIERS, SEES_ACCESS)))
