"""Checks of identities: that the callables in settings exist, and that callers cannot choose who they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import collapse_addresses
from itertools import chain
from typing import Any, Final

from django.apps import apps
from django.template import TemplateDoesNotExist, TemplateSyntaxError
from django.template.loader import get_template

from .. import customers
from ..conf import django_setting, identities, lacks_fallbacks, settings
from ..conf.values import CALLERS, SUBJECTS, is_attribute_path
from ..models import TierAssignment
from ..rules.records import LimitRecord, RuleRecord
from .common import Found, check, import_or_none, rules_in_force, together

#: Identities that callers can choose freely.
_CHOSEN: Final = ("session", "header:", "field:", "query:", "cookie:")
_WEEK: Final = 604_800
#: Networks with shorter prefixes are too large to contain only a site's proxies.
_MIN_PREFIX: Final = {4: 8, 6: 16}


@check(
    "E006",
    "RATELIMITER: {}: {} cannot be imported, or cannot be called.",
    "Name a function of your project by its dotted path.",
)
def check_callables() -> Found:
    """Return the settings that name a callable which cannot be imported or called, each with the name."""
    return [(entry, path) for entry, path in _callables() if not callable(import_or_none(path))]


@check(
    "W028",
    "HASH_KEY_FALLBACKS lacks a key of SECRET_KEY_FALLBACKS: aliases and access entries from before cannot be read.",
    "Remove HASH_KEY_FALLBACKS: the keys are derived then. Or set HASH_KEY.",
)
def check_fallbacks() -> Found:
    """Return something if aliases and entries from before a rotation of SECRET_KEY cannot be read."""
    return [()] if lacks_fallbacks() else []


#: The settings with paths of attributes: what these begin with, and lead to.
_PATHS: Final = {
    "TIER_RESOLVER": (SUBJECTS, "tier"), "EXEMPT": (SUBJECTS, "truth value"), "CUSTOMER": (CALLERS, "customer")
}  # fmt: skip


@check(
    "E012",
    "RATELIMITER: {}: {} leads to no {}: {}",
    'Name attributes that lead there, such as "user.profile.plan" to the slug of a tier or an object with a slug, '
    '"user.is_staff" to True or False, and "user.account" and "api_key.account" to rows of one model.',
)
def check_paths() -> Found:
    """Return the paths of attributes that cannot lead to an answer, and of CUSTOMER also functions, and why not."""
    for entry, (subjects, wanted) in _PATHS.items():
        first: Any = None
        for path in _paths_in(entry):
            is_path = is_attribute_path(path, subjects)
            model, wrong = customers.model_at(path, subjects) if is_path or wanted == "customer" else (None, "")
            if is_path and import_or_none(path):
                wrong = f"{path} is also a function of your project: name it by another path."
            elif model and wanted == "customer":
                first = first or model
                wrong = "" if model is first else f"{model._meta.label} is not {first._meta.label}."
            elif model and not (wanted == "tier" and hasattr(model, "slug")):
                wrong = f"{model._meta.label} {'has no slug' if wanted == 'tier' else 'is a row'}."
            if wrong:
                yield entry, path, wanted, wrong


@check(
    "W029",
    "RATELIMITER: CUSTOMER: the pages of the admin cannot find customers: {}.",
    "Annotate what your functions return, such as `-> Account | None`, API_KEY_RESOLVER too, and register a ModelAdmin "
    "of that model with search_fields, such as its name: the overview uses its search.",
)
def check_customer_search() -> Found:
    """Return why the model of customers, or its rows, cannot be found."""
    model = customers.customer_model()
    if settings.CUSTOMER and model is None and not any(customers.model_at(path)[1] for path in settings.CUSTOMER):
        yield ("their model is not known",)
    if model is None or not apps.is_installed("django.contrib.admin"):
        return
    from django.contrib.admin.sites import all_sites

    for site in (each for each in all_sites if each.is_registered(TierAssignment)):
        if not (site.is_registered(model) and site.get_model_admin(model).search_fields):
            yield (f"{model._meta.label} has no ModelAdmin with search_fields on the site {site.name}",)


@check(
    "E007",
    "RATELIMITER: RESPONSE: the template {} cannot be loaded: {}",
    "Rejected callers would get the usual page. Name a template that TEMPLATES can find.",
)
def check_template() -> Found:
    """Return the template of RESPONSE if it does not exist or is invalid, and the error."""
    own = settings.RESPONSE
    if own is not None and own.endswith(".html"):
        try:
            get_template(own)
        except (TemplateDoesNotExist, TemplateSyntaxError) as error:
            yield own, f"{type(error).__name__}: {error}"


@check(
    "W007",
    "Callers can choose the value that these rules count by, and get a new counter with each value: {}.",
    "For each, add a rule that counts the same requests by IP address, with a high quota. If callers cannot choose the "
    "value, name it in TRUSTED_IDENTITIES, or each host in ALLOWED_HOSTS, without wildcards.",
)
def check_caller_choices() -> Found:
    """Return rules by a value that callers choose, unless a rule by address limits how often they change it."""
    rules = list(rules_in_force())
    return together(rule.slug for rule in _chosen(rules) if not any(_bounds(each, rule) for each in rules))


@check(
    "W024",
    "Callers can evade these rules by a body that is not read, such as one above 64 KB, counted by address: {}.",
    "Choose that a request without the value is rejected or skips the rule. Or name a view or one whole path: then all "
    "requests whose body cannot be read share one counter.",
)
def check_unreadable() -> Found:
    """Return rules for many views that count requests by address if their body cannot be read."""
    rules = [rule for rule in rules_in_force() if rule.reads_body and rule.is_wide]
    return together(rule.slug for rule in rules if rule.missing_partition == "ip")


@check(
    "W027",
    "Callers can choose the value that {} counts by, and each value's counter fills Redis for {} days.",
    "Shorten the window. If callers cannot choose the value, name it in TRUSTED_IDENTITIES.",
)
def check_kept_choices() -> Found:
    """Return rules by a value that callers choose whose counters are kept for more than a week, with the days."""
    for rule in _chosen(rules_in_force()):
        seconds = max(map(_kept_seconds, chain(*rule.limits.values())), default=0)
        if seconds > _WEEK:
            yield rule.slug, f"{seconds / 86_400:.0f}"


@check(
    "W008",
    "Rule {} counts by {}, which is not an identity, so it is missing from every request.",
    "Define it in RATELIMITER['IDENTITIES'], customer by CUSTOMER, or choose another: {2}.",
)
def check_identities() -> Found:
    """Return the rules that count by an unknown identity, each with that, and with the known ones."""
    known = identities()
    for rule in rules_in_force():
        for name in rule.partition_by:
            if name.isidentifier() and name not in known:
                yield rule.slug, name, ", ".join(sorted(known))


@check(
    "W009",
    "RATELIMITER['TRUSTED_PROXIES'] trusts {}: callers in these networks can claim any address.",
    "Name only the networks of your own proxies, or give their number.",
)
def check_trust() -> Found:
    """Return the large parts of the internet in TRUSTED_PROXIES: callers there can choose their address."""
    trusted: Any = settings.TRUSTED_PROXIES.networks
    merged = (collapse_addresses([each for each in trusted if each.version == version]) for version in _MIN_PREFIX)
    wide = (each for each in chain(*merged) if each.prefixlen < _MIN_PREFIX[each.version] and not each.is_private)
    return together(map(str, wide))


def _paths_in(entry: str) -> Iterable[str]:
    named = getattr(settings, entry) or ()
    return [named] if isinstance(named, str) else named


def _callables() -> Iterator[tuple[str, str]]:
    for entry in ("ENGINE", "API_KEY_RESOLVER", "API_KEY_FORM", *_PATHS, "CUSTOMER_CALLERS", "RESPONSE"):
        subjects, _ = _PATHS.get(entry, ((), ""))
        for path in _paths_in(entry):
            if not path.endswith(".html") and not is_attribute_path(path, subjects):
                yield entry, path
    for name, path in settings.IDENTITIES.items():
        yield f"IDENTITIES: {name}", path


def _chosen(rules: Iterable[RuleRecord]) -> list[RuleRecord]:
    """Return those that count by a value that callers choose."""
    trusted, hosts = settings.TRUSTED_IDENTITIES, django_setting("ALLOWED_HOSTS", ())
    kinds = (*_CHOSEN, "host") if any(host.startswith((".", "*")) for host in hosts) else _CHOSEN
    return [rule for rule in rules if any(name.startswith(kinds) and name not in trusted for name in rule.partition_by)]


def _kept_seconds(record: LimitRecord) -> float:
    """Return how long the counter of one request is kept: its window, or until a bucket is full again."""
    limit = record.limit
    return limit.window_us / 1_000_000 / (limit.quota if limit.is_bucket and limit.refill != "interval" else 1)


def _bounds(rule: RuleRecord, chosen: RuleRecord) -> bool:
    """Return whether `rule` surely matches each request that `chosen` matches, and counts it by its address."""
    return (
        rule.partition_by == ("ip",)
        and rule.mode in ("enforce", chosen.mode)
        and (not rule.methods or (bool(chosen.methods) and chosen.methods <= rule.methods))
        and rule.scope in ("", chosen.scope)
        and rule.view_name in ("", chosen.view_name)
        and _holds_path(rule, chosen)
    )


def _holds_path(rule: RuleRecord, chosen: RuleRecord) -> bool:
    if rule.path_kind == "any" or (rule.path_kind, rule.path) == (chosen.path_kind, chosen.path):
        return True
    return rule.path_kind == "prefix" and chosen.path_kind in ("exact", "prefix") and chosen.path.startswith(rule.path)
