"""Commands that are not decisions: several to one shard, in one pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from redis import Redis

from ....exceptions import EngineUnavailable
from ..packing import command
from .faults import explain

#: Runs a command in a shard, outside of the request path.
Run = Callable[[int, Callable[[Redis], Any]], Any]

#: Sends packed calls to the only server, within the deadline. Returns a function that reads this number of replies.
Send = Callable[[bytes, int], Callable[[], list[Any]]]


def execute(run: Run, send: Send | None, shard: int, words: Sequence[tuple[str, ...]]) -> list[Any]:
    """Send these commands to the node of a shard in one pipeline, and return the replies. Raises EngineUnavailable.

    send: `None` = use `run`.
    """
    if send is not None:
        replies = send(b"".join(command(*each) for each in words), len(words))()
        for reply in replies:
            if isinstance(reply, Exception):  # such as a command that the user may not run
                raise EngineUnavailable(explain(reply)) from reply
        return replies

    def through(client: Redis) -> list[Any]:
        with client.pipeline(transaction=False) as pipeline:
            for each in words:
                pipeline.execute_command(*each)
            return pipeline.execute()

    found: list[Any] = run(shard, through)
    return found
