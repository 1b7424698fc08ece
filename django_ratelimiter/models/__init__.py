"""Rows that operators edit (tiers, rules, limits, access), versions of the rule set, and usage.

The database keeps rows whole: what is unique, what belongs together, what is never negative. Whether a row can be
*enforced* (a known algorithm, a window the engine can reckon, a readable route) is judged by `clean()` at the form
and by `rules.compiler` for rows that came another way: a row that this program cannot read, written by a later
version of it, say, must cost one rule and not the site.
"""

from .access import AccessEntry
from .episodes import UsageEpisode
from .limits import RuleLimit
from .rules import Rule
from .tiers import Tier, TierAssignment
from .usage import TopPartition, UsageBatch, UsageBucket, UsageSample
from .versions import RuleSetState, RuleSetVersion

__all__ = [
    "AccessEntry",
    "Rule",
    "RuleLimit",
    "RuleSetState",
    "RuleSetVersion",
    "Tier",
    "TierAssignment",
    "TopPartition",
    "UsageBatch",
    "UsageBucket",
    "UsageEpisode",
    "UsageSample",
]
