"""Checks of identities: that the callables in settings exist, and that callers cannot choose who they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from inspect import isfunction
from ipaddress import IPv4Network, IPv6Network, collapse_addresses
from itertools import chain
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.db import models
from django.db.models.fields.related_descriptors import ReverseManyToOneDescriptor
from django.template import TemplateDoesNotExist, TemplateSyntaxError
from django.template.loader import get_template

from ..conf import django_setting, lacks_fallbacks, settings
from ..plans import is_attribute_path
from ..rules.records import LimitRecord, RuleRecord
from ..values.partitions import IDENTITIES
from .common import Found, are_invalid, check, import_or_none, message, rules_in_force

#: Identities that callers can choose freely.
_CHOSEN: Final = ("session", "header:", "field:", "query:", "cookie:")
#: Of a counter in Redis, as in docs/howto/production.md; and how many new values callers are supposed to send.
_COUNTER_BYTES: Final = 130
_NEW_VALUES: Final = 100
_WEEK: Final = 604_800
#: Networks with shorter prefixes are too large to contain only a site's proxies.
_MIN_PREFIX: Final = {4: 8, 6: 16}
#: Fields whose values are no slugs.
_NO_TEXTS: Final = (models.IntegerField, models.BooleanField, models.DecimalField, models.FloatField, models.DateField)


@check
def check_callables() -> Found:
    """E006: a setting names a callable that cannot be imported or called."""
    return [
        message(
            "E006",
            f"RATELIMITER: {entry}: {path} cannot be imported, or cannot be called.",
            "Name a function of your project by its dotted path.",
        )
        for entry, path in _callables()
        if not callable(import_or_none(path))
    ]


@check
def check_fallbacks() -> Found:
    """W028: aliases and entries from before a rotation of SECRET_KEY cannot be read."""
    if not (are_invalid("HASH_KEY") or are_invalid("HASH_KEY_FALLBACKS")) and lacks_fallbacks():
        yield message(
            "W028",
            "RATELIMITER: HASH_KEY_FALLBACKS lacks a key of SECRET_KEY_FALLBACKS, from which HASH_KEY was derived: "
            "aliases and access entries from before that rotation cannot be read.",
            "Remove HASH_KEY_FALLBACKS: the keys are derived then. Or set HASH_KEY.",
        )


@check
def check_plan_path() -> Found:
    """E012: TIER_RESOLVER is a path of attributes that cannot lead to a tier."""
    path = None if are_invalid("TIER_RESOLVER") else settings.TIER_RESOLVER
    wrong = _what_is_wrong(path) if path is not None and is_attribute_path(path) else ""
    if wrong:
        yield message(
            "E012",
            f"RATELIMITER: TIER_RESOLVER: {path} gives no caller a tier: {wrong}",
            'Name the attributes that lead to the slug of a tier, or to an object with a slug: "user.profile.plan". Or '
            "name a function of your project by its dotted path.",
        )


def _what_is_wrong(path: str) -> str:
    """Return why this path of attributes never leads to a tier, as far as the models say; "" = it may."""
    subject, *names = path.split(".")
    if subject == "api_key":
        alone = "without API_KEY_RESOLVER, an API key has no attributes."
        return "" if are_invalid("API_KEY_RESOLVER") or settings.API_KEY_RESOLVER else alone
    model: Any = get_user_model()
    for place, name in enumerate(names, start=1):
        known = getattr(model, name, None)
        label, is_last = model._meta.label, place == len(names)
        if known is None and not hasattr(model, "__getattr__"):
            return f"{label} has no attribute {name}."
        if isfunction(known) or isinstance(known, ReverseManyToOneDescriptor):
            return f"{label}.{name} is {'a method' if isfunction(known) else 'a manager of many rows'}."
        relation = getattr(known, "related", None) or getattr(known, "field", None)
        if relation is None or not relation.is_relation:  # perhaps a property: only its value says more
            is_text = not is_last or not isinstance(relation, _NO_TEXTS)
            return "" if is_text else f"{label}.{name} is neither a text nor an object with a slug."
        model = relation.related_model
    return "" if hasattr(model, "slug") else f"{model._meta.label} has no slug."


@check
def check_template() -> Found:
    """E007: RESPONSE names a template that does not exist or is invalid."""
    own = None if are_invalid("RESPONSE") else settings.RESPONSE
    if own is None or not own.endswith(".html"):
        return
    try:
        get_template(own)
    except (TemplateDoesNotExist, TemplateSyntaxError) as error:
        yield message(
            "E007",
            f"RATELIMITER: RESPONSE: the template {own} cannot be loaded: {type(error).__name__}: {error}",
            "Rejected callers would get the usual page. Name a template that TEMPLATES can find.",
        )


@check
def check_caller_choices() -> Found:
    """W007: a rule counts by a value that callers choose, and no rule by address limits how often they change it."""
    rules = list(rules_in_force())
    slugs = [rule.slug for rule in _chosen(rules) if not any(_bounds(each, rule) for each in rules)]
    if slugs:
        yield message(
            "W007",
            "Callers can choose the value that these rules count by, and get a new counter with each value: "
            f"{', '.join(slugs)}.",
            "For each, add a rule that counts the same requests by IP address, with a quota that is high "
            "enough for honest callers. If callers cannot choose the value, name it in TRUSTED_IDENTITIES; they cannot "
            "choose a host if ALLOWED_HOSTS names each one, without wildcards.",
        )


@check
def check_unreadable() -> Found:
    """W024: requests whose body cannot be read are counted by address, since the rule is for many views."""
    slugs = [
        rule.slug for rule in rules_in_force() if rule.reads_body and rule.missing_partition == "ip" and rule.is_wide
    ]
    if slugs:
        yield message(
            "W024",
            "Callers can evade these rules by a body that the limiter does not read, such as one above 64 KB, because "
            f"such requests are counted by their address: {', '.join(slugs)}.",
            "Choose that a request without the value is rejected or skips the rule. Or name a view or one whole path: "
            "then all requests whose body cannot be read share one counter.",
        )


@check
def check_kept_choices() -> Found:
    """W027: a rule counts by a value that callers choose, and keeps each value's counter for more than a week."""
    for rule in _chosen(rules_in_force()):
        seconds = max(map(_kept_seconds, chain(*rule.limits.values())), default=0)
        if seconds > _WEEK:
            memory = seconds * _NEW_VALUES * _COUNTER_BYTES / 1e9
            yield message(
                "W027",
                f"Callers can choose the value that {rule.slug} counts by, and each value's counter is kept for "
                f"{seconds / 86_400:.0f} days: {_NEW_VALUES} new values a second would fill {memory:.0f} GB of Redis.",
                "Shorten the window. If callers cannot choose the value, name it in TRUSTED_IDENTITIES.",
            )


@check
def check_identities() -> Found:
    """W008: a rule counts by an unknown identity, which is missing in every request."""
    if are_invalid("IDENTITIES"):
        return []
    known = {*IDENTITIES, *settings.IDENTITIES}
    return [
        message(
            "W008",
            f"Rule {rule.slug} counts by {name}, which is not an identity, so it is missing from every request.",
            f"Define it in RATELIMITER['IDENTITIES'], or choose another: {', '.join(sorted(known))}.",
        )
        for rule in rules_in_force()
        for name in rule.partition_by
        if name.isidentifier() and name not in known
    ]


@check
def check_trust() -> Found:
    """W009: TRUSTED_PROXIES contains large parts of the internet, so that callers can choose their address."""
    if are_invalid("TRUSTED_PROXIES"):
        return
    networks = settings.TRUSTED_PROXIES.networks
    v4 = collapse_addresses(network for network in networks if isinstance(network, IPv4Network))
    v6 = collapse_addresses(network for network in networks if isinstance(network, IPv6Network))
    merged: list[IPv4Network | IPv6Network] = [*v4, *v6]
    wide = [str(each) for each in merged if each.prefixlen < _MIN_PREFIX[each.version] and not each.is_private]
    if wide:
        yield message(
            "W009",
            f"RATELIMITER['TRUSTED_PROXIES'] trusts {', '.join(wide)}: callers in these networks can claim any "
            "address.",
            "Name only the networks of your own proxies, or give their number.",
        )


def _callables() -> Iterator[tuple[str, str]]:
    for entry in ("ENGINE", "API_KEY_RESOLVER", "API_KEY_FORM", "TIER_RESOLVER", "RESPONSE"):
        path = None if are_invalid(entry) else getattr(settings, entry)
        if (
            path is not None
            and not path.endswith(".html")
            and not (entry == "TIER_RESOLVER" and is_attribute_path(path))
        ):
            yield entry, path
    if not are_invalid("IDENTITIES"):
        for name, path in settings.IDENTITIES.items():
            yield f"IDENTITIES: {name}", path


def _chosen(rules: Iterable[RuleRecord]) -> list[RuleRecord]:
    """Return those that count by a value that callers choose."""
    trusted = () if are_invalid("TRUSTED_IDENTITIES") else settings.TRUSTED_IDENTITIES
    kinds = (*_CHOSEN, "host") if _accepts_any_host() else _CHOSEN
    return [rule for rule in rules if any(name.startswith(kinds) and name not in trusted for name in rule.partition_by)]


def _kept_seconds(record: LimitRecord) -> float:
    """Return how long the counter of one request is kept: its window, or until a bucket is full again."""
    limit = record.limit
    return limit.window_us / 1_000_000 / (limit.quota if limit.is_bucket and limit.refill != "interval" else 1)


def _accepts_any_host() -> bool:
    """Return whether ALLOWED_HOSTS has a wildcard, so that callers can make up hosts."""
    return any(host.startswith((".", "*")) for host in django_setting("ALLOWED_HOSTS", ()))


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
