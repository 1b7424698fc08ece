"""A TCP proxy that passes everything on a while later, and can lose a reply on its way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any


class SlowProxy:
    """Passes every byte between its own port and a server's after `seconds` each way; one thread, for all connections.

    seconds: may be changed at any time, for what arrives from then on. silent: whether it passes nothing on.
    server_port: may be changed too, for connections from then on, as where an address moves.
    lose: whether the next reply is thrown away, together with the connection.
    script_turns: how often somebody has sent calls of scripts and then waited for the replies.
    """

    def __init__(self, port: int, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.silent = self.lose = False
        self.script_turns = 0
        self.server_port = port
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="slow proxy")
        self._thread.start()
        self._listener = self._run(asyncio.start_server(self._come, "127.0.0.1", 0))

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}/0"

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _come(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)  # not in the task, which may be cancelled before it begins
        self._do(self._accept(reader, writer))

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.server_port)
        except OSError:
            writer.close()
            return
        self._writers.add(far_writer)
        turns = _Turns()
        for source, target, asks in ((reader, far_writer, True), (far_reader, writer, False)):
            self._do(self._pass_on(source, target, turns, asks))

    async def _pass_on(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, turns: _Turns, asks: bool
    ) -> None:
        try:
            while data := await source.read(65_536):
                if self.lose and not asks:
                    self.lose = False
                    break
                self.script_turns += turns.begins(data, asks)
                if not self.silent:
                    self._loop.call_later(self.seconds, _write, target, data)
        except OSError:
            pass
        finally:
            self._loop.call_later(self.seconds, target.close)

    def __enter__(self) -> SlowProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        for listening in self._listener.sockets:
            self._loop.remove_reader(listening.fileno())
        for _ in range(3):  # those who have just come begin: a closed listener would leave their sockets open
            await asyncio.sleep(0)
        self._listener.close()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:  # also of those who have just come
            for task in others:
                task.cancel()
            await asyncio.wait(others)
        for writer in self._writers:
            writer.transport.abort()
        for _ in range(3):  # transports are closed in the next turns of the loop
            await asyncio.sleep(0)


class _Turns:
    """Who speaks on one connection, and whether the client has called a script since it began to."""

    def __init__(self) -> None:
        self._is_counted = False

    def begins(self, data: bytes, asks: bool) -> bool:
        """Whether this is the first call of a script in the client's turn. asks: it is the client who speaks."""
        first = asks and b"EVALSHA" in data and not self._is_counted
        self._is_counted = asks and (self._is_counted or first)
        return first


def _write(target: asyncio.StreamWriter, data: bytes) -> None:
    if not target.is_closing():
        target.write(data)
