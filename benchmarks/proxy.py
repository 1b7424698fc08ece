"""A proxy before a Redis that counts round trips: how often a client sent data after the server had."""

from __future__ import annotations

import selectors
import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Final

HOST: Final = "127.0.0.1"


class CountingProxy:
    """Listens on its own port and forwards everything to `port`. trips: round trips so far, of all connections."""

    def __init__(self, port: int) -> None:
        self.trips = 0
        self._server = port
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._pass_on, daemon=True)

    def __enter__(self) -> CountingProxy:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()

    def _pass_on(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection((HOST, self._server)) as server, suppress(OSError):
            selector = selectors.DefaultSelector()
            selector.register(client, selectors.EVENT_READ, server)
            selector.register(server, selectors.EVENT_READ, client)
            answered = True
            while True:
                for key, _ in selector.select():
                    source: socket.socket = key.fileobj  # type: ignore[assignment]
                    part = source.recv(65_536)
                    if not part:
                        return
                    if source is client and answered:
                        self.trips += 1
                    answered = source is server
                    key.data.sendall(part)
