"""The answer of a forecast, in one sentence: the same on the page, in commands and in their JSON."""

from __future__ import annotations

from math import ceil
from typing import Final

from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...rules.formatting import units
from . import words
from .doubts import is_partial
from .estimates import Range
from .forecast import Forecast

#: "About 9 in 100": the numbers of callers that a share is told of, the first for which it is at least one.
_OUT_OF: Final = (100, 1_000, 10_000, 100_000)

#: The indexes of the saved rule, and of the new one.
NOW, THEN = 0, 1


def answer(forecast: Forecast) -> str:
    """Return whom the new rule would reject, and whether that differs from now."""
    if not forecast.sampled and forecast.requests:
        text = _("It is not known whom this would reject: there is no sample of the %s recorded requests.")
        if forecast.awaits_samples:
            text = _(
                "It is not known whom this would reject: the samples of the %s recorded requests may still be missing. "
                "They come a few minutes after the counts. Look again then."
            )
        return text % units(forecast.requests)
    if not forecast.sampled:
        return _("It is not known whom this would reject: nothing is recorded in this time.")
    limits = [record.limit for records in forecast.after.limits.values() for record in records]
    if limits and all(limit.holds_leases for limit in limits):
        return _("It is not known whom this would reject: requests in progress at once are not recorded.")
    sentences = [_rejected_requests(forecast) if forecast.is_shared else _rejected_callers(forecast)]
    if forecast.before is not None:
        is_equal = forecast.limits[NOW] == forecast.limits[THEN]
        sentences.append(_("Now it is the same.") if is_equal else _("Now: %s.") % _now(forecast))
        if forecast.unexplained:
            sentences.insert(0, _unexplained(forecast))
        elif forecast.differs:
            text = _("Do not rely on this: %(rejected)s requests were rejected; by this sample it would be %(found)s.")
            found = words.number(forecast.rejected_requests(NOW))
            sentences.insert(0, text % {"rejected": units(forecast.counted), "found": found})
    if is_partial(forecast):
        sentences.append(_("But not all is recorded: see what samples cannot know."))
    return " ".join(sentences)


def callers_in_words(share: Range, counts: tuple[int, int, int], sampled: int, callers: int) -> str:
    """Return who would be rejected. counts: of the sampled ones, at the three thresholds of a cell; share: of all."""
    if not any(counts):
        text = ngettext(
            "The one sampled caller (of about %(callers)s) would not be rejected.",
            "Nobody of %(sampled)s sampled callers (of about %(callers)s) would be rejected.",
            sampled,
        )
    elif not counts[1]:
        text = ngettext(
            "The one sampled caller (of about %(callers)s) would probably not be rejected.",
            "Probably nobody of %(sampled)s sampled callers (of about %(callers)s) would be rejected, at worst "
            "%(most)s of them.",
            sampled,
        )
    elif counts[1] == sampled:
        text = ngettext(
            "The one sampled caller (of about %(callers)s) would be rejected at least once.",
            "All %(sampled)s sampled callers (of about %(callers)s) would be rejected at least once.",
            sampled,
        )
    else:
        base = _base(share)
        text = _("About %(about)s in %(base)s callers would be rejected at least once, at worst %(worst)s.")
        return text % {"about": round(share.about * base), "base": units(base), "worst": ceil(share.high * base)}
    return text % {"sampled": units(sampled), "callers": units(callers), "most": units(max(counts))}


def _rejected_callers(forecast: Forecast) -> str:
    counts, share = forecast.rejected_callers(THEN)
    return callers_in_words(share, counts, forecast.sampled, forecast.callers)


def _rejected_requests(forecast: Forecast) -> str:
    """Return how many requests would be rejected: all callers share one counter."""
    found = forecast.rejected_requests(THEN)
    if round(found.high):
        text = _("%(number)s of %(all)s requests would be rejected.")
    else:
        text = _("None of %(all)s requests would be rejected.")
    return capfirst(text % {"number": words.number(found), "all": units(forecast.requests)})


def _unexplained(forecast: Forecast) -> str:
    """Return that more was rejected than the sample explains."""
    text = ngettext(
        "%(rejected)s of %(all)s requests was rejected, of a caller that the sample does not hold, or by other limits "
        "than now.",
        "%(rejected)s of %(all)s requests were rejected, some or all of callers that the sample does not hold, or by "
        "other limits than now.",
        forecast.unexplained,
    )
    return text % {"rejected": units(forecast.unexplained), "all": units(forecast.requests)}


def _now(forecast: Forecast) -> str:
    if forecast.is_shared:
        return words.number(forecast.rejected_requests(NOW))
    counts, share = forecast.rejected_callers(NOW)
    if counts[1] in (0, forecast.sampled):
        if forecast.unexplained and not counts[1]:
            return _("nobody in the sample")
        return _("all of them") if counts[1] else _("nobody")
    base = _base(share)
    return _("about %(about)s in %(base)s callers") % {"about": round(share.about * base), "base": units(base)}


def _base(share: Range) -> int:
    return next((base for base in _OUT_OF if share.about * base >= 1), _OUT_OF[-1])
