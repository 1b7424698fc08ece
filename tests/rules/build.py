"""Snapshots as the compiler writes them, for tests without a database."""

from __future__ import annotations

from typing import Any


def limit_data(**fields: Any) -> dict[str, Any]:
    """One limit of a snapshot: 100 a minute for every other tier, but for `fields`."""
    return {
        "tier": None,
        "algorithm": "fixed_window",
        "quota": 100,
        "window_seconds": "60.000000",
        "burst": None,
        "soft_quota": None,
        "unlimited": False,
        **fields,
    }


def rule_data(slug: str = "rule", **fields: Any) -> dict[str, Any]:
    """One rule of a snapshot: every request, one counter, 100 a minute, but for `fields`."""
    return {
        "slug": slug,
        "name": slug.title(),
        "mode": "enforce",
        "methods": [],
        "path": "",
        "path_kind": "any",
        "view_name": "",
        "scope": "",
        "partition_by": [],
        "missing_partition": "skip",
        "failure_policy": "local",
        "cost": 1,
        "priority": 100,
        "message": "",
        "limits": [limit_data()],
        **fields,
    }


def snapshot(*rules: dict[str, Any], tiers: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    """A snapshot of these rules, from which nothing was left out."""
    return {"tiers": list(tiers), "rules": list(rules), "left_out": []}
