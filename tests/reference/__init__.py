"""The engine's answers, told a second time and in the plainest way: exact fractions, dates one by one.

It shares no code with `django_ratelimiter.engine`, only its data: charges and limits. Each counter says how much of a
limit is used at a moment, straight from the definition (`counters`, `calendars`); everything else follows from that
(`deciding`). A moment that an engine promises is not computed here: it is held against what is used just before it
and at it.
"""

from __future__ import annotations

from .calendars import calendar_window
from .counters import capacity_of, period_of
from .deciding import Answer, First, Reference, differences

__all__ = ["Answer", "First", "Reference", "calendar_window", "capacity_of", "differences", "period_of"]
