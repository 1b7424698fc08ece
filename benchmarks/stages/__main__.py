"""Runs one stage and writes its results to a file: `python -m benchmarks.stages NAME FILE [--brief]`."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

from .. import instructions
from ..setting import Setting


def main(name: str, file: str, *options: str) -> None:
    if name == "instructions":  # it uses its own server
        results = instructions.measure()
    else:
        stage = import_module(f"{__package__}.{name}")
        results = stage.measure(Setting.of_environment(brief="--brief" in options))
    Path(file).write_text(json.dumps(results), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
