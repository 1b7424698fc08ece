"""A server that answers each command as the test says, and all others as a Redis would that knows nothing."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType

from hiredis import ProtocolError, Reader

from django_ratelimiter.engine.redis.scripts import CHECK_SHA

VERDICT = b"*5\r\n:1700000000000000\r\n:7\r\n:0\r\n:86400000\r\n:0\r\n"
USUAL = {
    b"EVALSHA": VERDICT,
    b"SCRIPT": b"$40\r\n%b\r\n" % CHECK_SHA,
    b"GET": b"$-1\r\n",
    b"INFO": b"$0\r\n\r\n",
}


class Answering:
    """answers: by command in capitals; "*" = all, "" = sent when a connection is made, which then is closed.

    pause: the seconds between two bytes of such an answer; without it, each is sent whole.
    open: the connections that nobody has closed yet.
    """

    def __init__(self, answers: Mapping[str, bytes], pause: float = 0) -> None:
        self.answers, self.pause = dict(answers), pause
        self.open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.open.add(client)
                self._threads.append(threading.Thread(target=self._answer, args=(client,)))
                self._threads[-1].start()

    def _answer(self, client: socket.socket) -> None:
        commands = Reader()
        with client, suppress(OSError, ProtocolError):
            if "" in self.answers:
                client.sendall(self.answers[""])
                client.shutdown(socket.SHUT_WR)
            while data := client.recv(65_536):
                commands.feed(data)
                while command := commands.gets():
                    self._reply(client, command)
        self.open.discard(client)

    def _reply(self, client: socket.socket, command: list[bytes]) -> None:
        usual = b"*1\r\n:0\r\n" if command[:2] == [b"SCRIPT", b"EXISTS"] else USUAL.get(command[0], b"+OK\r\n")
        own = self.answers.get("*", self.answers.get(command[0].decode().upper()))
        if own is None or not self.pause:
            client.sendall(usual if own is None else own)
            return
        for byte in own:
            time.sleep(self.pause)
            client.sendall(bytes([byte]))

    def __enter__(self) -> Answering:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in (self._listener, *list(self.open)):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()
