"""What is asked on each new connection: whether the version that the server holds was put there since it began.

A server that was restored from an older file, or a replica that takes over before it has heard everything, holds a
version that others have replaced since. Nobody could tell by the number alone. So each shard keeps, beside its version,
the run that it belongs to: which process, since when a master. A file or a replica holds another run's. And the script
itself is kept by no file and passed on to no replica: where it is missing, nobody has decided anything yet.
In both cases the version is dropped, and the next decision is answered that there is none: its process reads the
primary database, publishes what it finds, and asks again.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any, Final

from ...base import Charge
from ...limits import Limit
from ...registry import SIMPLEST
from ..packing import command
from ..protocol import CallEncoder, ScriptMode
from ..scripts import CHECK_SHA
from .connection import LOAD, PING, Pipeline
from .faults import is_elsewhere, is_outage, is_refused

#: What a server is asked to decide to see whether it can: what a request would be, and soon forgotten.
_PROBE: Final = Charge("probe", Limit(1_000_000, 1, SIMPLEST))

_ABOUT_IT: Final = command("INFO", "server") + command("INFO", "replication") + command("SCRIPT", "EXISTS", CHECK_SHA)
_RUN: Final = re.compile(rb"^(?:run_id|master_replid):(\w+)", re.MULTILINE)


class Handshake:
    """What is said on new connections to the servers of these shards.

    forgetting: what drops the version of every shard, to be sent before the script is loaded to a server without it.
    """

    def __init__(self, encoder: CallEncoder) -> None:
        shards = range(encoder.shards)
        self._versions = [encoder.version_key(shard) for shard in shards]
        self._runs = [f"{encoder._prefix(shard)}run" for shard in shards]
        at = encoder.time_to_send()
        self._probes = [
            encoder.encode(ScriptMode.CHECK, [_PROBE], (), None, at, (at or 0,), shard=shard) for shard in shards
        ]
        self._questions = Pipeline(_ABOUT_IT + b"".join(command("GET", run) for run in self._runs), 3 + encoder.shards)
        self.version_drop = Pipeline(b"".join(command("DEL", version) for version in self._versions), encoder.shards)

    def steps(self) -> Generator[Pipeline, list[Any], None]:
        """What is to be sent, step by step, each to be answered with its replies; raises what makes it useless."""
        server, replication, scripts, *held = yield self._questions
        run, is_lost = _run_of(_checked(server), _checked(replication)), _checked(scripts) == [0]
        sent: list[bytes] = []
        for version, name, known in zip(self._versions, self._runs, held, strict=True):
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

    def probe(self, shard: int | None = 0) -> tuple[bytes, type]:
        """A call that only a server answers well which can decide, and the kind of its reply.

        shard: one that the server has; `None` = it has none, and need not decide.
        """
        return (PING, bytes) if shard is None else (self._probes[shard], list)


def _checked(reply: Any) -> Any:
    """A reply, or the error that says that this server does not tell that. Raises what is wrong with it besides."""
    if isinstance(reply, Exception) and is_outage(reply) and not is_refused(reply):
        raise reply
    return reply


def _run_of(*told: Any) -> bytes | None:
    """The run that a server is in: its process, and its time as a master. `None` if it does not tell."""
    found = [name for text in told if isinstance(text, bytes) for name in _RUN.findall(text)]
    return b":".join(found) or None
