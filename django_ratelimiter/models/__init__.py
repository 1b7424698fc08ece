"""Rows that operators edit (tiers, rules, limits, access entries), versions of the rule set, and usage.

The database guarantees that rows are consistent: uniqueness, relations, no negative limits. Whether a row can be
*enforced* (a known algorithm, a window that the engine supports, a valid route) is validated by `clean()` in forms,
and by `rules.compiler` for other rows: a row that this release cannot read, for example one written by a later
release, must only affect one rule and not the site.
"""

from .access import AccessEntry
from .limits import RuleLimit
from .rules import Rule
from .tiers import Tier, TierAssignment
from .usage import CallerUsage, TopCaller, TopPartition, UsageBatch, UsageBucket, UsageEpisode, UsageSample, UsageTotal
from .versions import RuleSetState, RuleSetVersion

__all__ = [
    "AccessEntry",
    "CallerUsage",
    "Rule",
    "RuleLimit",
    "RuleSetState",
    "RuleSetVersion",
    "Tier",
    "TierAssignment",
    "TopCaller",
    "TopPartition",
    "UsageBatch",
    "UsageBucket",
    "UsageEpisode",
    "UsageSample",
    "UsageTotal",
]
