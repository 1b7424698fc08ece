"""`manage.py ratelimit advise`: limits for a rule, from recorded usage."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from django.core.management.base import CommandError
from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...inspection.report import encoded
from ...models import Rule, RuleLimit
from ...rules.formatting import per, units
from ...rules.records import RuleRecord
from ...rules.routes import views
from ...rules.ruleset import rule_from
from ...rules.stored.compiler import rule_data
from . import words
from .advice import Advice, Proposal, advise
from .answer import callers_in_words
from .cells import MICROSECONDS
from .doubts import multiplier_doubts
from .estimates import SAMPLED_ONE_IN
from .periods import WEEK, read_period


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("rule", nargs="?", help="The slug of a rule.")
    what.add_argument("--view", help="The name of a view: list the rules that have recorded its requests.")
    parser.add_argument(
        "--share",
        type=float,
        default=0.1,
        help="The share of callers that may be rejected, in percent. Default: %(default)s.",
    )
    parser.add_argument(
        "--period", default=WEEK, help="yesterday, 7d, or a day such as 2026-11-22. Default: %(default)s."
    )
    parser.add_argument("--attack", help="A day of an attack: show what each proposal would reject on that day.")


def run(options: Mapping[str, Any]) -> tuple[Iterable[str], Any]:
    """Return the proposals as text, and the report. Raises CommandError."""
    if options["view"]:
        rules = _of_view(options["view"])
        return _view_in_words(rules), {"view": options["view"], "rules": rules}
    if not 0 < options["share"] <= 50:
        raise CommandError(_("--share: must be above 0 and at most 50 percent."))
    try:
        period = read_period(options["period"])
        attack = read_period(options["attack"]) if options["attack"] else None
    except ValueError as error:
        raise CommandError(str(error)) from error
    rule = _rule(options["rule"])
    advice = advise(rule, period.period, options["share"] / 100, attack and attack.period)
    periods = [each.period for each in (period, attack) if each is not None]
    notes = [*multiplier_doubts(*periods)] if advice.sampled and not rule.is_shared else []
    return [*lines_of(rule, advice, period.name, options["share"]), *notes], encoded(advice) | {"notes": notes}


def _rule(slug: str) -> RuleRecord:
    row = Rule.objects.filter(slug=slug).first()
    if row is None:
        raise CommandError(_("There is no rule %(slug)r.") % {"slug": slug})
    try:
        return rule_from(rule_data(row, RuleLimit.objects.filter(rule=row).select_related("tier")))
    except (ValueError, TypeError, KeyError) as error:
        raise CommandError(f"{slug}: {error}") from error


def _of_view(name: str) -> list[str]:
    """Return the slugs of the rules that have recorded requests of a view: samples are stored by rule only."""
    found = [view for view in views() if view.name == name]
    if not found:
        raise CommandError(_("There is no view %(name)r.") % {"name": name})
    rules = Rule.objects.exclude(mode=Rule.Mode.OFF)
    return [rule.slug for rule in rules if any(view.may_match(rule) for view in found)]


def _view_in_words(rules: Sequence[str]) -> Iterator[str]:
    if not rules:
        yield _(
            "Nothing is recorded for this view: only rules record requests, and no rule matches it. Save a rule "
            "for it in shadow with a high quota, which rejects nothing, and look again after some days. Or "
            "replay an access log: manage.py ratelimit replay."
        )
        return
    yield _("The requests of this view are recorded by these rules, perhaps with those of other views:")
    for rule in rules:
        yield f"  manage.py ratelimit advise {rule}"


def lines_of(rule: RuleRecord, advice: Advice, name: str, percent: float) -> Iterator[str]:
    """Yield the advice as text."""
    if not advice.sampled:
        yield _("No caller of %(rule)s was sampled (%(period)s).") % {"rule": rule.slug, "period": name}
        return
    callers = ngettext("%(count)s sampled caller", "%(count)s sampled callers", advice.sampled)
    days = number_format(round(advice.days, 1))
    yield _("%(rule)s, %(period)s: %(callers)s, %(days)s days, at most %(percent)s %% of callers rejected") % {
        "rule": rule.slug, "period": name, "callers": callers % {"count": units(advice.sampled)},
        "days": days, "percent": number_format(percent),
    }  # fmt: skip
    for each in advice.proposals:
        yield f"  {each.tier or _('no tier')}: {proposal_in_words(each)}"
        busiest = {key: units(value) for key, value in each.busiest._asdict().items()}
        yield (
            "    "
            + _("busiest window of a caller: p50 %(p50)s, p90 %(p90)s, p99 %(p99)s, largest %(largest)s") % busiest
        )
        if rule.partition_by:
            of_all = each.callers * SAMPLED_ONE_IN
            yield f"    {callers_in_words(each.share, (each.above,) * 3, each.callers, of_all)}"
        if each.attack_share is not None:
            yield f"    {attack_in_words(each)}"
    if not all(each.is_certain for each in advice.proposals):
        text = _("Too few callers for %(percent)s %%: some of these quotas are what the largest caller needs.")
        yield text % {"percent": percent}
    if advice.largest is not None:
        yield _("The largest caller that is known made %(count)s requests in an hour.") % {
            "count": units(advice.largest)
        }
    yield _(
        "Samples count requests per minute: they say nothing about limits under a minute, bursts within a "
        "minute, or requests in progress at once."
    )


def proposal_in_words(proposal: Proposal) -> str:
    """Return the limit: "60 per minute", or that of a bucket with its burst."""
    rate = per(units(proposal.quota), proposal.window * MICROSECONDS)
    if proposal.burst is None:
        return rate
    return _("token bucket: %(rate)s, burst %(burst)s") % {"rate": rate, "burst": units(proposal.burst)}


def attack_in_words(proposal: Proposal) -> str:
    """Return the part of the attack that it would have rejected."""
    assert proposal.attack_share is not None
    found = {
        "share": words.decimal(100 * proposal.attack_share.about),
        "requests": units(round(proposal.attack_requests or 0)),
    }
    return _("in the attack: %(share)s %% of the callers, about %(requests)s requests") % found
