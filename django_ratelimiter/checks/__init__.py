"""The system checks: problems in this project that keep rules from working as expected.

Checks that need the rules read them from the database. They report nothing if it is missing or not migrated.
"""

from __future__ import annotations

from django.core.checks import CheckMessage

from ..rules.ruleset import RuleSet
from . import callers, views  # noqa: F401  their checks are registered
from .common import CHECKS, TAG, known_rules
from .project import check_rules

__all__ = ["TAG", "messages_about"]


def messages_about(rules: RuleSet) -> list[CheckMessage]:
    """Return the messages of the checks for this project and these rules, which are not read again.

    Without silenced messages, and without W006: the rule set itself lists the rules that it leaves out.
    """
    token = known_rules.set(rules)
    try:
        found = [message for check in CHECKS if check is not check_rules for message in check()]
    finally:
        known_rules.reset(token)
    return [message for message in found if not message.is_silenced()]
