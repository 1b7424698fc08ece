"""The connections that calls are made on: one per thread at work."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from os import getpid
from time import monotonic
from typing import Any
from weakref import finalize

from redis import Redis
from redis.exceptions import NoScriptError, RedisError

from ....exceptions import EngineUnavailable
from .connection import connect
from .faults import explained, is_outage, raise_if_broken
from .greeting import Greeting
from .pool import Stock


class Links:
    """Connections made as the client's pool makes them and kept between calls, one per thread at work.

    They stand beside the pool, not in it: the pool's `max_connections` is a promise to its other users.

    deadline: seconds that a decision may wait, with all that it has to wait for; a server that keeps failing is then
    not asked until a probe has succeeded. `None` = the client's own timeouts hold, and each call tries anew.
    greeting, probe: as for Stock; without `probe`, the greeting's own.
    """

    def __init__(
        self,
        client: Redis,
        greeting: Greeting,
        deadline: float | None = None,
        probe: Callable[[], tuple[bytes, type]] | None = None,
    ) -> None:
        self._deadline = deadline
        make = partial(connect, client.connection_pool, timeout=deadline)
        self._new_stock = partial(Stock, make, greeting, probe or greeting.probe, deadline)
        self._stock = self._new_stock()
        self._at_end = finalize(self, self._stock.stop)

    def ask(self, packed: bytes, until: float | None = None) -> list[Any]:
        """Send one packed call of a script and read its reply, a list. A call whose reply was lost is not sent again.

        until: monotonic seconds, where an earlier call for the same decision has used up some of the time.
        """
        stock = self._stock
        if stock.pid != getpid():
            stock = self._after_fork()
        if stock.breaker.is_open:
            stock.see_to_probing()
            raise EngineUnavailable(stock.breaker.why())
        whole = until is None
        if whole and self._deadline is not None:
            until = monotonic() + self._deadline
        try:
            wire = stock.take()
            if wire is None:
                wire, whole = stock.wait(until), until is None
            try:
                reply = wire.ask(packed, until, whole=whole)
                if type(reply) is not list:
                    if isinstance(reply, NoScriptError):  # nothing was run: a restart, a flush, a promoted replica
                        reply = wire.ask_loading(packed, until, stock.forgetting)
                    raise_if_broken(reply)
            except BaseException:  # whatever is unread on it would be taken for the next call's reply
                wire.hang_up()
                raise
        except (RedisError, OSError) as error:
            stock.fail(error)
            raise EngineUnavailable(f"Redis gave no decision: {explained(error)}") from error
        stock.give_back(wire)
        if stock.breaker.failures:
            stock.breaker.succeed()
        if type(reply) is not list:
            raise EngineUnavailable(f"Redis gave no decision: {explained(reply)}") from reply
        return reply

    def burst(self, packed: bytes, replies: int) -> Generator[None, None, list[Any]]:
        """Send several calls at once, and in a second step read so many replies, which may be exceptions.

        Each step may take the deadline. An outage raises as in `ask`, after the calls before and behind it were made.
        """
        stock = self._stock if self._stock.pid == getpid() else self._after_fork()
        if stock.breaker.is_open:
            stock.see_to_probing()
            raise EngineUnavailable(stock.breaker.why())
        try:
            wire = stock.take() or stock.wait(self._until())
            try:
                wire.send(packed)
                yield
                found = wire.replies(replies, self._until())
                for reply in found:
                    if isinstance(reply, Exception) and is_outage(reply):
                        raise reply
            except BaseException:
                wire.hang_up()
                raise
        except (RedisError, OSError) as error:
            stock.fail(error)
            raise EngineUnavailable(f"Redis gave no decision: {explained(error)}") from error
        stock.give_back(wire)
        stock.breaker.succeed()
        return found

    @property
    def is_open(self) -> bool:
        """Whether the server is not asked at present."""
        return self._stock.breaker.is_open

    def distrust(self) -> None:
        """Close what is idle: one of these connections has just given a reply that is none."""
        self._stock.hang_up()

    def abandon(self) -> None:
        """Nobody will ask this server any more: no thread is to probe it, nor anybody to know whether it is away."""
        self._at_end()
        self._stock.breaker.retire()

    def _until(self) -> float | None:
        return None if self._deadline is None else monotonic() + self._deadline

    def _after_fork(self) -> Stock:
        """Begin anew: sockets and thread belong to the parent."""
        self._at_end.detach()
        inherited, self._stock = self._stock, self._new_stock()
        self._at_end = finalize(self, self._stock.stop)
        inherited.hang_up()
        return self._stock
