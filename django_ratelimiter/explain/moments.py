"""Moments in words, in the one format that all pages have: Django's DATETIME_FORMAT, in the reader's time zone."""

from __future__ import annotations

from datetime import datetime, timedelta
from math import ceil
from typing import Final

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _

from ..rules.formatting import duration

#: A moment that is nearer than this is also told by how far away it is: the format knows no seconds.
NEAR: Final = timedelta(minutes=2)


def moment_in_words(moment: datetime) -> str:
    """Return a moment, as "Nov. 22, 2026, 4:30 p.m."."""
    return str(date_format(timezone.localtime(moment) if timezone.is_aware(moment) else moment, "DATETIME_FORMAT"))


def until_in_words(moment: datetime, now: datetime | None = None) -> str:
    """Return a moment at which something ends: "Nov. 22, 2026, 4:30 p.m. (in 47 seconds)", rounded up to the minute."""
    rest = moment - (now or timezone.now())
    whole = moment.replace(second=0, microsecond=0)
    text = moment_in_words(whole if whole == moment else whole + timedelta(minutes=1))
    if not timedelta(0) < rest < NEAR:
        return text
    return _("%(moment)s (in %(time)s)") % {"moment": text, "time": duration(ceil(rest.total_seconds()) * 1_000_000)}
