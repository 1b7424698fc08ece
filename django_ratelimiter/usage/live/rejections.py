"""Recent rejections by rules, from the engine's list."""

from __future__ import annotations

from ...backend import get_engine
from ...engine.usage.rejections import Rejection


def recent(limit: int = 100, rule: str | None = None) -> list[Rejection]:
    """Return the latest rejections, at most `limit`. rule: of this rule only.

    `None` if the project's own engine has no such list. Raises EngineUnavailable.
    """
    read = getattr(get_engine(), "recent_rejections", None)
    found: list[Rejection] = read(limit=limit, rule=rule) if read else []
    return found
