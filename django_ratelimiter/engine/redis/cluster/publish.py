"""Publishing a version in all shards of a cluster: all calls for one node are sent to it at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from redis.exceptions import NoScriptError

from ....exceptions import EngineUnavailable
from ...base import Version
from ...call import NO_CHARGES
from ..connections.clients import Address
from ..connections.connection import LOAD, Pipeline
from ..connections.faults import explain
from ..packing import command
from ..protocol import CallEncoder, ScriptMode
from .topology import Redirection, Topology

#: How often a call follows a redirection.
MAX_REDIRECTIONS: Final = 5

ASKING: Final = command("ASKING")


class VersionBroadcast:
    """One version, and the shards that do not have it yet.

    Repeat: send what is `due`, and pass the replies of each node to `feed`; at the end, call `finish`.
    """

    def __init__(self, encoder: CallEncoder, topology: Topology, version: int | Version) -> None:
        self._topology, self._shards = topology, encoder.shards
        at = encoder.time_to_send()
        self._calls = {
            shard: encoder.encode(ScriptMode.PUBLISH, NO_CHARGES, (), version, at, (at or 0,), shard=shard)
            for shard in range(encoder.shards)
        }
        self._sent_on: dict[int, Redirection] = {}
        self._missed: dict[int, Address] = {}  # the node that did not answer, by shard
        self._sent: dict[Address, list[tuple[int, bool]]] = {}  # shards, and whether ASKING is sent first
        self._problem: EngineUnavailable | None = None
        self._turns = 0

    def due(self) -> Mapping[Address, Pipeline]:
        """Return the calls to send now, by node; empty = none, or no more."""
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
        """Return the calls for these shards. The script is loaded first, so that no call fails for lack of it.

        Before each call come two commands: ASKING for a node that is taking over the slot, else those that check the
        number of shards, which a flush deletes.
        """
        before = (ASKING * 2 if asking else self._shard_count_commands(shard) for shard, asking in shards)
        calls = (self._calls[shard] for shard, _ in shards)
        return Pipeline(LOAD + b"".join(map(bytes.__add__, before, calls)), 1 + 3 * len(shards))

    def _shard_count_commands(self, shard: int) -> bytes:
        return b"".join(command(*words) for words in self._topology.shard_count_commands(shard))

    def feed(self, address: Address, answer: list[Any] | EngineUnavailable) -> None:
        """Process the reply of a node: a list that may contain errors, or no reply.

        Raises EngineUnavailable if a shard has another number of shards.
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
            del self._calls[shard]  # it, or a later version, is current there
        elif not isinstance(reply, NoScriptError):  # the script was lost, and is loaded again next time
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
        """True if all shards have the version."""
        return not self._calls

    def finish(self) -> None:
        """Raise EngineUnavailable if a shard does not have the version."""
        if self._calls:
            problem = self._problem or "no node serves them."
            missed = f"{len(self._calls)} of {self._shards} shards could not be reached: {problem}"
            raise EngineUnavailable(missed) from self._problem
