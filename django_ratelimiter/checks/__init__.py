"""The system checks: problems in this project that keep rules from working as expected.

Checks that need the rules read them from the database. They report nothing if it is missing or not migrated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Final

from django.core import checks
from django.core.checks import CheckMessage

from ..rules.ruleset import RuleSet
from ..values.terminal import visible
from .callers import (
    check_callables,
    check_caller_choices,
    check_identities,
    check_leftovers,
    check_template,
    check_trust,
)
from .collecting import check_collecting
from .common import TAG, by_rules
from .gateways import check_gateways
from .other_limiters import check_settings_of_django_ratelimit
from .paths import check_admin, check_exempt, check_prefix, check_targets
from .project import check_engine, check_middleware, check_proxies, check_rules, check_settings
from .servers import check_clock, check_eviction, check_pools, check_scripts
from .tables import check_tables, check_tenants
from .views import check_addresses, check_rates, check_views


def register() -> None:
    """Register every check of this module for `manage.py check`."""
    for check in _REGISTERED:
        checks.register(check, TAG)
    for check in _DEPLOY_REGISTERED:
        checks.register(check, TAG, deploy=True)


def _on_terminal(check: Callable[..., list[CheckMessage]]) -> Callable[..., list[CheckMessage]]:
    """Return a check whose messages name rules and the like without control characters."""

    @wraps(check)
    def run(**options: Any) -> list[CheckMessage]:
        found = check(**options)
        for each in found:
            each.msg, each.hint = visible(each.msg), each.hint and visible(each.hint)
        return found

    return run


CHECKS: Final[Sequence[Callable[..., list[CheckMessage]]]] = (
    check_settings,
    check_engine,
    check_middleware,
    check_views,
    check_proxies,
    check_rules,
    check_callables,
    check_template,
    check_caller_choices,
    check_identities,
    check_trust,
    check_settings_of_django_ratelimit,
    check_addresses,
    check_rates,
    check_admin,
    check_exempt,
    check_collecting,
    check_pools,
    check_prefix,
    check_tables,
    check_tenants,
    check_targets,
    check_clock,
    check_gateways,
)

#: Checks that call Redis, or read many rows, which is only done with `check --deploy`.
DEPLOY_CHECKS: Final[Sequence[Callable[..., list[CheckMessage]]]] = (check_eviction, check_scripts, check_leftovers)

# Made once: Django drops a check that is registered again.
_REGISTERED: Final = [*map(_on_terminal, CHECKS)]
_DEPLOY_REGISTERED: Final = [*map(_on_terminal, DEPLOY_CHECKS)]


def messages_about(rules: RuleSet) -> list[CheckMessage]:
    """Return the messages of the checks for this project and these rules, which are not read again.

    Without silenced messages, and without W006: the rule set itself lists the rules that it leaves out.
    """
    with by_rules(rules):
        found = [message for check in CHECKS if check is not check_rules for message in check()]
    return [message for message in found if not message.is_silenced()]
