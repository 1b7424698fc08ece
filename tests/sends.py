"""How often a thread sends something."""

from __future__ import annotations

import socket
from collections import Counter
from threading import get_ident
from typing import Any

import pytest


def count_sends(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Return how often this thread sends something from now on, by the port that it is sent to.

    To be called before an engine connects: its connections keep the method of their socket.
    """
    counted: Counter[int] = Counter()
    own, send = get_ident(), socket.socket.sendall

    def sendall(self: socket.socket, *args: Any) -> None:
        if get_ident() == own:
            counted[self.getpeername()[1]] += 1
        send(self, *args)

    monkeypatch.setattr(socket.socket, "sendall", sendall)
    return counted
