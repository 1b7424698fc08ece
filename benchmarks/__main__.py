"""The whole benchmark: `make bench`, or `python -m benchmarks` where the group `bench` is installed.

  --brief         rough figures in about five minutes
  --only STAGE    one stage, or several; the others keep the results of the last run
  --write         write the tables into docs/explanation/measurements.md
  --from-last     measure nothing: use the results of the last run

It starts its own Redis-compatible server (REDIS_SERVER selects the binary), and everything that it starts ends with
it. The results are stored as JSON in .cache/bench-results.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from example_project.redis_server import RedisServer, ServerError

from .machine import describe
from .report import print_tables, write_page

ROOT: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = ROOT / ".cache" / "bench-results.json"
#: The stages, and what each measures.
STAGES: Final = {
    "decisions": "time of a decision",
    "trips": "round trips of a decision",
    "keys": "memory of a key",
    "exactness": "eight processes on one key, and a clock that is wrong",
    "capacity": "what one server and one process carry",
    "instructions": "machine instructions of a request",
}


def run_stage(name: str, folder: Path, *, brief: bool) -> dict[str, Any]:
    """Measure in a separate process, on an empty server. A stage that fails reports why; the others continue."""
    results = folder / f"{name}.json"
    with RedisServer() as server:
        environment = os.environ | {"BENCH_REDIS_URL": server.url, "BENCH_REDIS_PID": str(server.pid)}
        command = [sys.executable, "-m", "benchmarks.stages", name, str(results), *(["--brief"] if brief else [])]
        done = subprocess.run(command, env=environment, cwd=ROOT)
    if done.returncode:
        return {"broken": f"It ended with code {done.returncode}."}
    found: dict[str, Any] = json.loads(results.read_text("utf-8"))
    return found


def measure(only: list[str], *, brief: bool, results: dict[str, Any]) -> None:
    """Run these stages one after the other, and store the results of each."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        os.environ |= {"BENCH_FOLDER": folder, "DJANGO_SETTINGS_MODULE": "benchmarks.site.settings"}
        with RedisServer() as server:
            for limiter in ("ours", "ours, tiers"):  # each has its own database
                environment = os.environ | {"BENCH_REDIS_URL": server.url, "BENCH_LIMITER": limiter}
                subprocess.run([sys.executable, "-m", "benchmarks.site.rules"], check=True, env=environment, cwd=ROOT)
        for number, name in enumerate(only, 1):
            print(f"[{number}/{len(only)}] {name}: {STAGES[name]}", file=sys.stderr, flush=True)
            began = time.monotonic()
            found = run_stage(name, Path(folder), brief=brief)
            results[name] = found | {"brief": brief, "run": results["machine"]["date"]}
            RESULTS.parent.mkdir(exist_ok=True)
            RESULTS.write_text(json.dumps(results, indent=1), "utf-8")
            print(f"    {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--brief", action="store_true", help="rough figures in a short time")
    parser.add_argument("--only", nargs="+", choices=STAGES, default=list(STAGES), help="these stages")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/explanation/measurements.md")
    parser.add_argument("--from-last", action="store_true", help="measure nothing, take the last results")
    options = parser.parse_args()
    last = options.from_last or options.only != list(STAGES)
    results: dict[str, Any] = json.loads(RESULTS.read_text("utf-8")) if last and RESULTS.exists() else {}
    if not options.from_last:
        try:
            results["machine"] = describe()
            measure(options.only, brief=options.brief, results=results)
        except ServerError as error:
            print(error, file=sys.stderr)
            return 1
    print_tables(results)
    if options.write:
        write_page(results, ROOT / "docs" / "explanation")
    broken = [name for name in STAGES if "broken" in results.get(name, {})]
    if broken:
        print(f"\nBroken: {', '.join(broken)}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
