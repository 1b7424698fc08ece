"""Recent rejections in Redis: the list of each shard, as refused.lua writes it, and the names of callers.

A shard's hash "recent" contains rejections beside the minutes that are not closed. The application writes the names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar
from zlib import crc32

from redis import Redis

from ...exceptions import EngineUnavailable
from ..base import Charge, Verdict
from ..usage import COUNTER
from ..usage.refusals import (
    FORGOTTEN_US,
    STEP_US,
    CounterRefusals,
    Denial,
    RefusalCounts,
    RefusalEntry,
    latest,
    shares_of,
)
from .connections.commands import Run, Send, execute
from .connections.faults import NOT_A_REPLY
from .packing import RECENT, command, text_of
from .protocol import CallEncoder, ScriptMode, decode

#: Names expire after this number of seconds. They are in at most this number of keys, all in the first shard.
NAME_SECONDS: Final = 7 * 86_400
MAX_NAMES: Final = 16_384

#: Maximum number of denied callers in the list; above that, only this number remains: the latest of each entry.
MAX_DENIALS, KEPT_DENIALS = 600, 400

#: Seconds after which a denied caller is deleted.
DENIAL_SECONDS: Final = 86_400

#: Maximum number of fields that one command deletes.
_MAX_DELETED: Final = 1_000


#: The number of an entry is its latest step times this factor, plus the number of rejections.
_STEP: Final = 1 << 20

T = TypeVar("T")

_PREFIX: Final = re.compile(r"\n\t\{[^}]*\}:")


def split(found: Mapping[Any, Any] | list[Any]) -> tuple[list[int], RefusalCounts]:
    """Return the minutes and the rejections, with their names in Redis.

    found: the reply to HGETALL; fields and values may alternate, depending on the client. Other fields are ignored.
    """
    pairs = found.items() if isinstance(found, Mapping) else zip(found[::2], found[1::2], strict=True)
    fields = {text_of(name): text_of(value) for name, value in pairs}
    minutes, entries, sampled = [], dict[str, RefusalEntry](), dict[str, int]()
    for name, value in fields.items():
        if name.isdigit() and not value:
            minutes.append(int(name))
        elif name.endswith("\n") or not value.isdigit():
            continue
        elif COUNTER in name:
            last, times = divmod(int(value), _STEP)
            entries[name] = RefusalEntry(last, int(fields.get(f"{name}\n", last)), times)
        elif "\n" in name:
            sampled[name] = int(value)
    return minutes, RefusalCounts(entries, sampled)


def remembered_in(found: Mapping[Any, Any] | list[Any]) -> RefusalCounts:
    """Return the rejections, with names without the common prefix of all keys."""
    entries, sampled = split(found)[1]
    return RefusalCounts({_PREFIX.sub(COUNTER, name): entry for name, entry in entries.items()}, sampled)


def denials_in(found: Mapping[Any, Any] | list[Any]) -> list[Denial]:
    """Return the denied callers. found: the reply to HGETALL, as for `split`."""
    pairs = found.items() if isinstance(found, Mapping) else zip(found[::2], found[1::2], strict=True)
    fields = {text_of(name): int(value) for name, value in pairs}
    return [
        Denial(what, at, fields.get(f"{what}\n", at), fields.get(f"{what}\n\n", 1))
        for what, at in fields.items()
        if not what.endswith("\n")
    ]


def forget_old(client: Redis, prefix: str, remembered: RefusalCounts, now_us: int) -> None:
    """Delete old rejections of a shard; it can safely be repeated."""
    oldest = (now_us - FORGOTTEN_US) // STEP_US
    old = [field for field, step in remembered.sampled.items() if step <= oldest]
    for name, entry in remembered.entries.items():
        if entry.last <= oldest:
            old += name, f"{name}\n"
    for place in range(0, len(old), _MAX_DELETED):
        client.hdel(f"{prefix}{RECENT}", *old[place : place + _MAX_DELETED])


class RedisNames:
    """Texts by digest, such as a caller's name.

    prefix: of the first shard's keys. run: runs a command in a shard. send: sends packed calls within the
    deadline, and returns a function that reads this number of replies; `None` = use `run`.
    """

    def __init__(
        self,
        prefix: str,
        run: Run,
        send: Send | None = None,
    ) -> None:
        self._prefix, self._run, self._send = prefix, run, send

    def write(self, texts: Mapping[str, str]) -> None:
        """Store these texts. A text replaces another one with the same key."""
        words = [("SET", self._key(what), f"{what}\n{text}", "EX", str(NAME_SECONDS)) for what, text in texts.items()]
        if words:
            execute(self._run, self._send, 0, words)

    def read(self, whats: Sequence[str]) -> dict[str, str]:
        """Return those of these texts that are known, in one call."""
        keys = [self._key(what) for what in whats]
        found: list[Any] = self._run(0, lambda client: client.mget(keys)) if keys else []
        texts = {}
        for what, entry in zip(whats, found, strict=True):
            known, _, text = text_of(entry or "").partition("\n")
            if known == what:
                texts[what] = text
        return texts

    def delete(self, whats: Sequence[str]) -> None:
        """Delete these texts, in one call."""
        if whats:
            execute(self._run, self._send, 0, [("DEL", *map(self._key, whats))])

    def _key(self, what: str) -> str:
        return f"{self._prefix}name:{crc32(what.encode()) % MAX_NAMES}"


class RedisDenials:
    """Callers that access entries deny, in one hash of the first shard; it expires if no caller is denied for a day.

    Each has three fields: the last time; the first time (plus a line break); how often (plus another). See RedisNames.
    """

    def __init__(self, prefix: str, run: Run, send: Send | None = None) -> None:
        #: The name of the hash.
        self.key = f"{prefix}denials"
        self._run, self._send = run, send

    def add(self, denials: Sequence[Denial]) -> None:
        """Add these to the stored ones, in one call; in two if there are too many. Raises EngineUnavailable."""
        words: list[tuple[str, ...]] = []
        for what, at, since, times in denials:
            words += (
                ("HSET", self.key, what, str(at)),
                ("HSETNX", self.key, f"{what}\n", str(since)),
                ("HINCRBY", self.key, f"{what}\n\n", str(times)),
            )
        words += ("EXPIRE", self.key, str(DENIAL_SECONDS)), ("HLEN", self.key)
        *_, fields = execute(self._run, self._send, 0, words)
        if isinstance(fields, int) and fields > 3 * MAX_DENIALS:
            self._trim()

    def read(self) -> list[Denial]:
        """Return all stored ones, including those older than a day. Raises EngineUnavailable."""
        [found] = execute(self._run, self._send, 0, [("HGETALL", self.key)])
        return denials_in(found)

    def _trim(self) -> None:
        by_entry: dict[str, list[Denial]] = {}
        for each in sorted(self.read(), key=lambda each: -each.at):
            by_entry.setdefault(each.what.partition(" ")[0], []).append(each)
        kinds = sorted(by_entry.values(), key=len)
        shares = shares_of([[each.at for each in kind] for kind in kinds], KEPT_DENIALS)
        left_out = [each.what for kind, share in zip(kinds, shares, strict=True) for each in kind[share:]]
        fields = [f"{what}{mark}" for what in left_out for mark in ("", "\n", "\n\n")]
        places = range(0, len(fields), _MAX_DELETED)
        words = [("HDEL", self.key, *fields[place : place + _MAX_DELETED]) for place in places]
        if words:
            execute(self._run, self._send, 0, words)


#: Sends packed calls to the node of a shard. Returns a function that reads this number of replies.
SendTo = Callable[[int, bytes, int], Callable[[], list[Any]]]


class CounterPipeline:
    """Peeks at a caller's counters and reads the rejections of all shards, in one pipeline for each node.

    encoder: names keys and packs calls. peek: the engine's, which follows a moved shard. denials: the key of
    the denied callers, in the first shard. send: to a node, within the deadline. node_of: see RedisHeartbeats.
    """

    def __init__(
        self,
        encoder: CallEncoder,
        peek: Callable[[Sequence[Charge]], list[Verdict]],
        denials: str,
        run: Run,
        send: SendTo,
        node_of: Callable[[int], object] = lambda shard: None,
    ) -> None:
        self._encoder, self._peek, self._denials = encoder, peek, denials
        self._run, self._send, self._node_of = run, send, node_of

    def read(self, charges: Sequence[Charge]) -> CounterRefusals:
        """Read all. Raises EngineUnavailable as `peek` does; rejections of nodes that do not answer are missing."""
        pipelines = self._pipelines(charges)
        readers = [_attempt(partial(self._send, *each.to_send())) for each in pipelines]
        answers = [reader and _attempt(reader) for reader in readers]
        verdicts = dict(pair for each, answer in zip(pipelines, answers, strict=True) for pair in each.verdicts(answer))
        if len(verdicts) < len(charges):  # such as a shard that has moved, or a lost script
            verdicts = dict(enumerate(self._peek(charges)))
        remembered, denials = list[RefusalCounts](), list[Denial]()
        for each, answer in zip(pipelines, answers, strict=True):
            hashes = each.hashes(answer) or self._read_slowly(each)
            remembered += map(remembered_in, hashes[: len(each.shards)])
            denials += [denial for found in hashes[len(each.shards) :] for denial in denials_in(found)]
        now_us = self._encoder.estimate_time(self._encoder.time_to_send())
        return CounterRefusals([verdicts[place] for place in range(len(charges))], latest(remembered, now_us), denials)

    def _pipelines(self, charges: Sequence[Charge]) -> list[_NodePipeline]:
        asked: dict[int, list[int]] = {}
        for place, charge in enumerate(charges):
            asked.setdefault(self._encoder.shard_of(charge), []).append(place)
        nodes: dict[object, list[int]] = {}
        for shard in range(self._encoder.shards):
            nodes.setdefault(self._node_of(shard), []).append(shard)
        return [_NodePipeline(self._encoder, charges, asked, shards, self._denials) for shards in nodes.values()]

    def _read_slowly(self, pipeline: _NodePipeline) -> list[Any]:
        """Read what did not arrive within the deadline; empty if it cannot be read."""
        with suppress(EngineUnavailable):
            return execute(self._run, None, pipeline.shards[0], pipeline.words)
        return []


class _NodePipeline:
    """The calls to one node: peeks at the charges in some of its shards, then reads the hashes of all of them.

    asked: the places of all charges, by shard. shards: of this node. denials: as for CounterPipeline.
    """

    def __init__(
        self,
        encoder: CallEncoder,
        charges: Sequence[Charge],
        asked: Mapping[int, Sequence[int]],
        shards: Sequence[int],
        denials: str,
    ) -> None:
        self._encoder, self._charges, self.shards = encoder, charges, shards
        self._asked = {shard: asked[shard] for shard in shards if shard in asked}
        self.words = [("HGETALL", f"{encoder._prefix(shard)}{RECENT}") for shard in shards]
        if 0 in shards:
            self.words.append(("HGETALL", denials))

    def to_send(self) -> tuple[int, bytes, int]:
        """Return a shard of the node, the packed calls, and their number."""
        encoder, now_us = self._encoder, self._encoder.time_to_send()
        times = (encoder.estimate_time(now_us),)
        calls = [
            encoder.encode(ScriptMode.PEEK, self._in(shard), (), None, now_us, times, shard=shard)
            for shard in self._asked
        ]
        calls += [command(*each) for each in self.words]
        return self.shards[0], b"".join(calls), len(calls)

    def verdicts(self, answer: Sequence[Any] | None) -> Iterator[tuple[int, Verdict]]:
        """Return the node's verdicts by the places of their charges. answer: its replies."""
        for (shard, places), reply in zip(self._asked.items(), answer or (), strict=False):
            with suppress(*NOT_A_REPLY):
                if not isinstance(reply, Exception) and reply[0] >= 0:  # else it has another time
                    yield from zip(places, decode(reply, self._in(shard), spending=False), strict=True)

    def hashes(self, answer: Sequence[Any] | None) -> list[Any]:
        """Return the replies to HGETALL; empty if one is missing."""
        found = list(answer or ())[len(self._asked) :]
        return found if all(isinstance(each, list) for each in found) else []

    def _in(self, shard: int) -> list[Charge]:
        return [self._charges[place] for place in self._asked[shard]]


def _attempt(step: Callable[[], T]) -> T | None:
    """Return the result of a step; `None` after an outage."""
    try:
        return step()
    except EngineUnavailable:
        return None
