"""Checks on each new connection whether the server's version was stored since the server started.

A server restored from an older file, or a replica that becomes master before it has all data, holds an old version. The
number alone does not show that. So each shard stores, beside its version, the run that it belongs to: the server's
process, and since when it is a master. A file or a replica has another run. The script itself is never stored in a
file or replicated: if it is missing, no decision was made yet.
In both cases the version is deleted, and the next decision gets the reply that there is none: its process reads the
primary database, publishes the version, and asks again.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any, Final

from ...base import Charge
from ...call import Call
from ...limits import Limit
from ...registry import SIMPLEST
from ..packing import command
from ..protocol import CallEncoder, ScriptMode
from ..scripts import CHECK_SHA
from .connection import LOAD, PING, Pipeline
from .faults import is_elsewhere, is_outage, is_refused

#: The call of a probe: like that of a request, with a short expiry.
_PROBE: Final = Call.of([Charge("probe", Limit(1_000_000, 1, SIMPLEST))])

_ABOUT_IT: Final = command("INFO", "server") + command("INFO", "replication") + command("SCRIPT", "EXISTS", CHECK_SHA)
_RUN: Final = re.compile(rb"^(?:run_id|master_replid):(\w+)", re.MULTILINE)


class Handshake:
    """The commands on new connections to the servers of all shards."""

    def __init__(self, encoder: CallEncoder) -> None:
        shards = range(encoder.shards)
        self._versions = [encoder.version_key(shard) for shard in shards]
        self._runs = [f"{encoder.prefix(shard)}run" for shard in shards]
        at = encoder.time_to_send()
        self._probes = [
            encoder.encode(ScriptMode.CHECK, _PROBE, (), None, at, (at or 0,), shard=shard) for shard in shards
        ]
        self._questions = Pipeline(_ABOUT_IT + b"".join(command("GET", run) for run in self._runs), 3 + encoder.shards)
        #: Deletes the version of every shard, before the script is loaded to a server without it.
        self.version_drop = Pipeline(b"".join(command("DEL", version) for version in self._versions), encoder.shards)

    def steps(self) -> Generator[Pipeline, list[Any], bytes | None]:
        """Yield the commands of each step; their replies are sent back. Raises if the connection cannot be used.

        Returns the run of the server; `None` if it does not report it.
        """
        server, replication, scripts, *stored = yield self._questions
        run, is_lost = _run_of(_checked(server), _checked(replication)), _checked(scripts) == [0]
        sent: list[bytes] = []
        for version, name, known in zip(self._versions, self._runs, stored, strict=True):
            if is_elsewhere(_checked(known)):
                continue
            if is_lost or (run and known and known != run):
                sent.append(command("DEL", version))
            if run and known != run:
                sent.append(command("SET", name, run))
        if is_lost:
            sent.append(LOAD)
        if sent:
            for reply in (yield Pipeline(b"".join(sent), len(sent))):
                if isinstance(reply, Exception) and is_outage(reply):
                    raise reply
        return run

    def probe(self, shard: int | None = 0) -> tuple[bytes, type]:
        """Return a call that only succeeds on a server that can decide, and the type of its reply.

        shard: one of the server's shards; `None` = it has none, and need not decide.
        """
        return (PING, bytes) if shard is None else (self._probes[shard], list)


def _checked(reply: Any) -> Any:
    """Return a reply, or the error of a server that does not support the command. Raises any other error."""
    if isinstance(reply, Exception) and is_outage(reply) and not is_refused(reply):
        raise reply
    return reply


def _run_of(*replies: Any) -> bytes | None:
    """Return the run of a server: its process, and its time as a master. `None` if it does not report them."""
    found = [name for text in replies if isinstance(text, bytes) for name in _RUN.findall(text)]
    return b":".join(found) or None
