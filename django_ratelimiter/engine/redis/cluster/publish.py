"""A version put in force in all shards of a cluster: what is meant for one node is sent to it in one go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from redis.exceptions import NoScriptError

from ....exceptions import EngineUnavailable
from ...base import Version
from ..connections.clients import Address
from ..connections.connection import LOAD, Pipeline
from ..connections.faults import explain
from ..packing import command
from ..protocol import CallEncoder, ScriptMode
from .topology import Redirection, Topology

#: How often a call is sent on, from node to node.
MAX_REDIRECTIONS: Final = 5

ASKING: Final = command("ASKING")


class VersionBroadcast:
    """One version and the shards that are still to be told of it.

    Turn by turn: send what is `due`, and `feed` what each node has answered; in the end, `finish`.
    """

    def __init__(self, encoder: CallEncoder, topology: Topology, version: int | Version) -> None:
        self._topology, self._shards = topology, encoder.shards
        at = encoder.time_to_send()
        self._calls = {
            shard: encoder.encode(ScriptMode.PUBLISH, (), (), version, at, (at or 0,), shard=shard)
            for shard in range(encoder.shards)
        }
        self._sent_on: dict[int, Redirection] = {}
        self._missed: dict[int, Address] = {}  # who did not answer for a shard
        self._sent: dict[Address, list[tuple[int, bool]]] = {}  # shards, and whether it is asked in advance of a move
        self._problem: EngineUnavailable | None = None
        self._turns = 0

    def due(self) -> Mapping[Address, Pipeline]:
        """What is to be sent now, by node; empty = nothing, or nothing more."""
        self._sent = {}
        self._turns += 1
        if self._turns <= MAX_REDIRECTIONS:
            for shard in self._calls:
                sent_on = self._sent_on.pop(shard, None)
                address, asking = sent_on or (self._topology.node_of(shard), False)
                if address is not None and address != self._missed.get(shard):
                    self._sent.setdefault(address, []).append((shard, asking))
        return {address: self._pipeline(shards) for address, shards in self._sent.items()}

    def _pipeline(self, shards: list[tuple[int, bool]]) -> Pipeline:
        """The script itself comes first: to find out that it was lost would take one more turn.

        Before each call stand two commands: what leads it to a node that is taking its slot over, or what asks whether
        all agree on the number of shards, which a flush has made forget.
        """
        before = (ASKING * 2 if asking else self._shard_count_commands(shard) for shard, asking in shards)
        calls = (self._calls[shard] for shard, _ in shards)
        return Pipeline(LOAD + b"".join(map(bytes.__add__, before, calls)), 1 + 3 * len(shards))

    def _shard_count_commands(self, shard: int) -> bytes:
        return b"".join(command(*words) for words in self._topology.shard_count_commands(shard))

    def feed(self, address: Address, answer: list[Any] | EngineUnavailable) -> None:
        """Note what a node has answered: its replies, errors among them, or that there are none.

        Raises EngineUnavailable if a shard is one of another number of them.
        """
        if isinstance(answer, EngineUnavailable):
            for shard, _ in self._sent[address]:
                self._miss(shard, address, answer)
            return
        for (shard, _), number, reply in zip(self._sent[address], answer[2::3], answer[3::3], strict=True):
            if isinstance(number, bytes) and number.isdigit() and int(number) != self._shards:
                raise self._topology.shard_count_error(int(number))
            self._note(shard, address, reply)

    def _note(self, shard: int, address: Address, reply: Any) -> None:
        if isinstance(reply, list) and reply:
            del self._calls[shard]  # it is in force there, or a later one is
        elif not isinstance(reply, NoScriptError):  # lost on the way, and loaded again the next time
            error = EngineUnavailable(f"Redis did not decide: {explain(reply)}")
            error.__cause__ = reply if isinstance(reply, Exception) else None
            self._miss(shard, address, error)

    def _miss(self, shard: int, address: Address, error: EngineUnavailable) -> None:
        redirection = self._topology.redirection(shard, address, error)
        if redirection is not None:
            self._sent_on[shard] = redirection
        else:
            self._missed[shard], self._problem = address, error

    @property
    def is_done(self) -> bool:
        """Whether all shards were told."""
        return not self._calls

    def finish(self) -> None:
        """Raises EngineUnavailable if a shard was not told."""
        if self._calls:
            problem = self._problem or "no node serves them."
            missed = f"{len(self._calls)} of {self._shards} shards could not be reached: {problem}"
            raise EngineUnavailable(missed) from self._problem
