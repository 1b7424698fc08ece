"""Failure policies: what a rule does while the engine is out of reach."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class FailurePolicy(NamedTuple):
    """One policy. Both fields are required, so that a new policy cannot be open by mistake.

    counts: each process counts requests itself, with a share of the quota.
    rejects: a request that was not counted is rejected.
    """

    counts: bool
    rejects: bool


#: The policies by name, the default first. Code uses these fields instead of comparing names.
FAILURE_POLICIES: Final[Mapping[str, FailurePolicy]] = {
    "local": FailurePolicy(counts=True, rejects=False),
    "open": FailurePolicy(counts=False, rejects=False),
    "closed": FailurePolicy(counts=False, rejects=True),
}
