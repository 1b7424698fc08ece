"""The outputs of a command: whatever it writes of others cannot control the terminal."""

from __future__ import annotations

from typing import Any

from django.core.management.base import OutputWrapper

from ..values.terminal import on_terminal


class Terminal(OutputWrapper):
    """An output of a command on which only line breaks act. Styles are passed as `style_func`, not within a text."""

    def __init__(self, output: Any) -> None:
        super().__init__(output)
        self._output = output

    def write(self, msg: str = "", style_func: Any = None, ending: str | None = None) -> None:  # type: ignore[override]
        self._output.write(on_terminal(msg.split("\n")), style_func, ending)
