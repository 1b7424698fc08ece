"""Recent rejections by rules, as the engine remembers them."""

from __future__ import annotations

from ..backend import get_engine
from ..engine.usage.refusals import Refusal


def recent(limit: int = 100, rule: str | None = None) -> list[Refusal]:
    """Return the latest refusals, at most so many; those of one rule only if it is named.

    None where the project's own engine keeps no such list. Raises EngineUnavailable.
    """
    read = getattr(get_engine(), "recent_refusals", None)
    found: list[Refusal] = read(limit=limit, rule=rule) if read else []
    return found
