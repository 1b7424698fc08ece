"""Recent rejections in Redis, as rejected.lua writes them: in each shard's hash "recent", beside the open minutes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from redis import Redis

from ..usage import COUNTER
from ..usage.rejections import FORGOTTEN_US, STEP_US, RejectionCounts, RejectionEntry
from .commands import fields_of
from .packing import RECENT

#: Maximum number of fields that one command deletes.
MAX_DELETED: Final = 1_000

#: The number of an entry is its latest step times this factor, plus the number of rejections.
_STEP: Final = 1 << 19

_PREFIX: Final = re.compile(r"\n\t\{[^}]*\}:")


def split(found: Mapping[Any, Any] | list[Any]) -> tuple[list[int], RejectionCounts]:
    """Return the open minutes and the rejections, with their names in Redis.

    found: the reply to HGETALL. Fields of another form are ignored.
    """
    fields = fields_of(found)
    minutes, entries, sampled, tails = [], dict[str, RejectionEntry](), dict[str, int](), dict[str, str]()
    for name, value in fields.items():
        if name.startswith("\t"):
            tails[name[1:]] = value
        elif name.isdigit() and not value:
            minutes.append(int(name))
        elif name.endswith("\n") or not value.isdigit():
            continue
        elif COUNTER in name:
            last, times = divmod(int(value), _STEP)
            entries[name] = RejectionEntry(last, int(fields.get(f"{name}\n", last)), times)
        elif "\n" in name:
            sampled[name] = int(value)
    return minutes, RejectionCounts(entries, sampled, tails)


def remembered_in(found: Mapping[Any, Any] | list[Any]) -> RejectionCounts:
    """Return the rejections, with names without the common prefix of all keys. found: the reply to HGETALL."""
    counts = split(found)[1]
    return counts._replace(entries={_PREFIX.sub(COUNTER, name): entry for name, entry in counts.entries.items()})


def forget_old(client: Redis, prefix: str, remembered: RejectionCounts, now_us: int) -> None:
    """Delete old rejections of a shard; it can safely be repeated."""
    oldest = (now_us - FORGOTTEN_US) // STEP_US
    old, held = [field for field, step in remembered.sampled.items() if step <= oldest], set[str]()
    for name, entry in remembered.entries.items():
        if entry.last <= oldest:
            old += name, f"{name}\n"
        else:
            held.update(re.split("[:\n]", name))
    old += [f"\t{caller}" for caller in remembered.tails if caller not in held]
    for place in range(0, len(old), MAX_DELETED):
        client.hdel(f"{prefix}{RECENT}", *old[place : place + MAX_DELETED])
