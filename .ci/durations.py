"""How long each stage usually takes.

On a machine that has not run it: the value in `.ci/durations.json`, measured on two processors with little other load.
Otherwise its last duration there, from `.cache/durations.json`.
"""

from __future__ import annotations

import json
from pathlib import Path

COMMITTED = Path(__file__).with_name("durations.json")


class Durations:
    """Seconds by the name of a stage. Only stages that passed are recorded, because one that fails may end early."""

    def __init__(self, file: Path, committed: Path = COMMITTED) -> None:
        self._file = file
        self._own = _read(file)
        self._usual = _read(committed) | self._own

    def usual(self, name: str) -> float | None:
        """Return the seconds of the stage's last run, here or on the maintainers' machine."""
        return self._usual.get(name)

    def record(self, name: str, seconds: float) -> None:
        """Store the seconds of the stage on this machine."""
        self._own[name] = round(seconds, 1)
        self._file.write_text(json.dumps(self._own, indent=2, sort_keys=True) + "\n")


def _read(file: Path) -> dict[str, float]:
    """Return the content of the file; empty if it cannot be read: then only the estimate is missing."""
    try:
        return {str(name): float(seconds) for name, seconds in json.loads(file.read_text()).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def clock(seconds: float) -> str:
    """Return `4:05`, minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
