"""A caller's counters together with the recent rejections and denials, from one pipeline for each node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from ...exceptions import EngineUnavailable
from ..base import Charge, Verdict
from ..call import Answer, Call
from ..usage.rejections import CounterRejections, Denial, RejectionCounts, latest
from .callers import denials_in
from .commands import Send, ShardCommands
from .connections.faults import NOT_A_REPLY
from .packing import RECENT, command
from .protocol import ScriptMode
from .rejections import remembered_in

T = TypeVar("T")


def peek_at_caller(
    commands: ShardCommands,
    charges: Sequence[Charge],
    denials: str,
    send: Send,
    peek: Callable[[Sequence[Charge]], list[Verdict]],
) -> CounterRejections:
    """Return the verdicts on these charges, and all recent rejections and denials.

    denials: the name of the list, in the first shard. send: sends packed calls to the node of a shard.
    peek: the engine's, if a pipeline lacks verdicts. Raises EngineUnavailable as `peek` does; rejections and denials of
    nodes that do not answer are missing.
    """
    encoder, now_us = commands.encoder, commands.encoder.time_to_send()
    places: dict[int, list[int]] = {}  # of the charges, by shard
    for place, charge in enumerate(charges):
        places.setdefault(encoder.shard_of(charge), []).append(place)
    asked = {shard: Call.of([charges[place] for place in them]) for shard, them in places.items()}
    times = (encoder.estimate_time(now_us),)
    pipelines = []
    for shards in commands.nodes():
        words = [("HGETALL", commands.key(shard, RECENT)) for shard in shards]
        words += [("HGETALL", denials)] if 0 in shards else []
        peeked = [shard for shard in shards if shard in asked]
        calls = [
            encoder.encode(ScriptMode.PEEK, asked[shard], (), None, now_us, times, shard=shard) for shard in peeked
        ]
        calls += [command(*each) for each in words]
        read = _attempt(partial(send, shards[0], b"".join(calls), len(calls)))
        pipelines.append((shards, words, peeked, read))
    verdicts: dict[int, Verdict] = {}
    remembered, denied = list[RejectionCounts](), list[Denial]()
    for shards, words, peeked, read in pipelines:
        replies: list[Any] = (read and _attempt(read)) or []
        for shard, reply in zip(peeked, replies, strict=False):
            with suppress(*NOT_A_REPLY):
                if not isinstance(reply, Exception) and reply[0] >= 0:  # else it has another time
                    found = Answer(asked[shard], reply).peeked()
                    verdicts |= zip(places[shard], found, strict=True)
        hashes = replies[len(peeked) :]
        if not hashes or not all(isinstance(each, list) for each in hashes):
            hashes = _attempt(partial(commands.execute_slowly, shards[0], words)) or []
        remembered += map(remembered_in, hashes[: len(shards)])
        denied += [denial for found in hashes[len(shards) :] for denial in denials_in(found)]
    if not charges and not remembered:  # no node has answered, and no `peek` says so
        remembered += map(remembered_in, commands.execute_slowly(shards[0], words)[: len(shards)])
    if len(verdicts) < len(charges):  # for example, a shard has moved, or a server has lost the script
        verdicts = dict(enumerate(peek(charges)))
    found = [verdicts[place] for place in range(len(charges))]
    return CounterRejections(found, latest(remembered, commands.now_us()), denied)


def _attempt(step: Callable[[], T]) -> T | None:
    """Return the result of a step; `None` after an outage."""
    try:
        return step()
    except EngineUnavailable:
        return None
