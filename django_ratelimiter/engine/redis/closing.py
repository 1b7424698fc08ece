"""How past minutes become batches in one shard: they are listed, and then closed one by one. And recent rejections.

A batch's name contains the time when its usage key began. If a crash or a failover undoes the closing, the same counts
get the same name again, and are not added twice. The name must be known before the script runs, because a script may
only use keys that it is given. So the script checks that the usage key is still the one that was listed. Two collectors
at once close it only once.

Rejections are in the same hash as the open minutes, "recent", as rejected.lua writes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

from redis import Redis

from ...logs import logger
from ..partition_stats import MINUTE_US
from ..usage import COUNTER
from ..usage.rejections import FORGOTTEN_US, STEP_US, RejectionCounts, RejectionEntry
from .commands import fields_of
from .packing import RECENT, text_of
from .scripts import TAKE_USAGE

USAGE_SECONDS: Final = 8 * 86_400

#: Number of minutes that are closed in one pipeline.
MAX_CLOSED: Final = 200

_BEGAN: Final = re.compile(r"\d+\.\d+")

#: Maximum number of fields that one command deletes.
MAX_DELETED: Final = 1_000

#: The number of an entry is its latest step times this factor, plus the number of rejections.
_STEP: Final = 1 << 19

_PREFIX: Final = re.compile(r"\n\t\{[^}]*\}:")


def close_minutes(client: Redis, prefix: str, shard: int, now_us: int | None) -> list[str]:
    """Close the past minutes in a shard, and return the names of all its batches that wait.

    prefix: of the names of its keys. now_us: the time in microseconds; `None` = the server's.
    It can safely be repeated.
    """
    source, minutes, now_us = _listed(client, prefix, now_us)
    passed = sorted(minute for minute in minutes if minute < now_us // MINUTE_US)
    for place in range(0, len(passed), MAX_CLOSED):
        _close(client, prefix, source, shard, passed[place : place + MAX_CLOSED])
    return waiting(client, prefix)


def waiting(client: Redis, prefix: str) -> list[str]:
    """Return the names of the batches of a shard that wait to be collected."""
    return [text_of(batch) for batch in client.smembers(f"{prefix}batches")]


def _listed(client: Redis, prefix: str, now_us: int | None) -> tuple[str, list[int], int]:
    """Return an id of this server's counts, the minutes that are not closed, and the time."""
    with client.pipeline(transaction=False) as pipeline:
        pipeline.set(f"{prefix}source", uuid4().hex, nx=True)
        pipeline.get(f"{prefix}source")
        pipeline.expire(f"{prefix}source", USAGE_SECONDS)
        pipeline.hgetall(f"{prefix}{RECENT}")
        pipeline.smembers(f"{prefix}batches")  # before a minute is closed, which adds to it
        if now_us is None:
            pipeline.time()
        replies = pipeline.execute(raise_on_error=False)
    if _were_dropped(client, [None, f"{prefix}source", None, f"{prefix}{RECENT}", f"{prefix}batches", None], replies):
        return _listed(client, prefix, now_us)
    _, source, _, recent, _, *time = replies
    if now_us is None:
        seconds, microseconds = time[0]
        now_us = int(seconds) * 1_000_000 + int(microseconds)
    minutes, rejections = _split(recent)
    _forget_old(client, prefix, rejections, now_us)
    return text_of(source), minutes, now_us


def _were_dropped(client: Redis, keys: Sequence[str | None], replies: Sequence[Any]) -> bool:
    """Delete the keys to which another program has written a value of another type. Raise any other error."""
    wrong = [(key, reply) for key, reply in zip(keys, replies, strict=False) if isinstance(reply, Exception)]
    for key, error in wrong:
        if key is None or "WRONGTYPE" not in str(error):
            raise error
        logger.error("The key %s holds a value of another program, so it is deleted.", key)
        client.delete(key)
    return bool(wrong)


def _close(client: Redis, prefix: str, source: str, shard: int, minutes: list[int]) -> None:
    with client.pipeline(transaction=False) as pipeline:
        for minute in minutes:
            pipeline.hget(f"{prefix}usage:{minute}", "")
        replies = pipeline.execute(raise_on_error=False)
        if _were_dropped(client, [f"{prefix}usage:{minute}" for minute in minutes], replies):
            return _close(client, prefix, source, shard, minutes)
        began = [_BEGAN.match(text_of(found or "")) for found in replies]
        for minute, found in zip(minutes, began, strict=True):
            unique = f"{source}-{found[0]}" if found else uuid4().hex
            batch = f"{minute}:{unique}:{shard}" if shard else f"{minute}:{unique}"
            keys = (f"{prefix}usage:{minute}", f"{prefix}batch:{batch}", f"{prefix}{RECENT}", f"{prefix}batches")
            pipeline.eval(TAKE_USAGE, len(keys), *keys, str(minute), batch, found[0] if found else "")
        pipeline.execute()


def _split(found: Mapping[Any, Any] | list[Any]) -> tuple[list[int], RejectionCounts]:
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
    counts = _split(found)[1]
    return counts._replace(entries={_PREFIX.sub(COUNTER, name): entry for name, entry in counts.entries.items()})


def _forget_old(client: Redis, prefix: str, remembered: RejectionCounts, now_us: int) -> None:
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
