"""Doubts whether a rule matches any request: names that no view has, and the prefix of the site."""

from __future__ import annotations

from django.utils.html import format_html
from django.utils.translation import gettext as _

from ...conf import script_name
from ...models import Rule
from ...rules.routes import UnknownName, unknown_names
from ..formatting import place_in_words


def doubts(rule: Rule) -> list[str]:
    """Return sentences about why this rule may match no request; empty = nothing is known against it."""
    sentences = [_in_words(each) for each in unknown_names(rule)]
    prefix = script_name()
    if prefix and rule.path_kind in ("exact", "prefix") and f"{rule.path}/".startswith(f"{prefix}/"):
        text = _(
            "The path begins with %(prefix)s, below which this site is mounted. Paths of rules do not contain that "
            "prefix, so this rule probably matches no request."
        )
        sentences.append(text % {"prefix": prefix})
    return sentences


def place_with_doubts(rule: Rule) -> str:
    """Return which requests a rule is for, in words, and what no view has of it."""
    texts = {"view_name": _("no such view"), "route": _("no such route")}
    notes = [texts[each.field] for each in unknown_names(rule) if each.field in texts]
    if not notes:
        return place_in_words(rule)
    return format_html('{} <span class="ratelimiter-left-out">({})</span>', place_in_words(rule), ", ".join(notes))


def _in_words(unknown: UnknownName) -> str:
    texts = {
        "view_name": _("No view is named “%(name)s”, so this rule matches no request."),
        "route": _("No route is “%(name)s”, so this rule matches no request."),
        "scope": _(
            "No view has the scope “%(name)s”. This rule applies only where code asks for it, as "
            "limiter.check(request, scope=…) does."
        ),
    }
    text = texts[unknown.field] % {"name": unknown.name}
    return f"{text} {_('Did you mean “%(close)s”?') % {'close': unknown.close}}" if unknown.close else text
