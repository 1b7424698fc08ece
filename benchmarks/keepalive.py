"""A minimal HTTP client: GET over an open connection, so that the server is measured and not the client."""

from __future__ import annotations

import socket
from typing import Final

HOST: Final = "127.0.0.1"


class Connection:
    """One open connection to a server on this machine."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def get(self, path: str, headers: dict[str, str]) -> int:
        """Send a request, wait for its response, and return the status."""
        self.send(path, headers)
        return self.receive()

    def send(self, path: str, headers: dict[str, str]) -> None:
        """Send a request, whose response `receive` reads."""
        lines = [f"GET {path} HTTP/1.1", "Host: bench", *(f"{name}: {value}" for name, value in headers.items())]
        self._socket.sendall("\r\n".join([*lines, "\r\n"]).encode())

    def receive(self) -> int:
        """Read a whole response, of known length or in chunks. ConnectionError if the server hangs up."""
        got = b""
        while (end := got.find(b"\r\n\r\n")) < 0:
            got += self._part()
        head = got[:end].lower()
        status = int(head.split(b" ", 2)[1])
        if b"\r\ntransfer-encoding: chunked" in head:
            while not got.endswith(b"\r\n0\r\n\r\n"):
                got += self._part()
            return status
        length = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        missing = length - (len(got) - end - 4)
        while missing > 0:
            missing -= len(self._part())
        return status

    def _part(self) -> bytes:
        part = self._socket.recv(65_536)
        if not part:
            raise ConnectionError("The server has hung up.")
        return part
