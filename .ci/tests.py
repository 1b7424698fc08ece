"""Runs the environments of tox.toml; says what failed, how to run it again, and what this machine lacks.

Names of environments: only those, and each must be able to run. After --: what pytest gets in the place of their tests.
--strict: more of them, and fail for all that was left out but a missing Python. --long: search much longer.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / ".cache/reports"
LONG = {"HYPOTHESIS_PROFILE": "nightly", "TWIN_STEPS": "20000", "ROWS": "0"}
#: Environments without a report of tests.
CHECKS = ("lint", "docs")


def missing_for_mariadb() -> str | None:
    needed = ("mariadb-install-db", "mariadb_config", "gcc", "pkg-config")
    return None if all(map(shutil.which, needed)) else "apt-get install mariadb-server libmariadb-dev gcc pkg-config"


def missing_for_postgresql() -> str | None:
    from tests.databases import find_postgres

    return None if find_postgres() else "apt-get install postgresql"


def missing_for_redis() -> str | None:
    return None if shutil.which(os.environ.get("REDIS_SERVER", "redis-server")) else "apt-get install redis-server"


#: What says what an environment lacks.
NEEDS: dict[str, Callable[[], str | None]] = {
    "mariadb": missing_for_mariadb,
    "postgresql": missing_for_postgresql,
    "redis": missing_for_redis,
}


def results_in(report: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each test, with which pytest runs it again; passed, failed or skipped; why it was skipped."""
    for case in ElementTree.parse(report).iter("testcase") if report.exists() else ():
        file, kinds = case.get("file", ""), {element.tag for element in case}
        dotted = file.removesuffix(".py").replace("/", ".")
        inside = case.get("classname", "").removeprefix(dotted).strip(".").replace(".", "::")
        # A module that cannot be imported has its own name in the place of a test's.
        name = file if case.get("name") == dotted else "::".join(filter(None, (file, inside, case.get("name"))))
        left = case.find("skipped")
        kind = "failed" if kinds & {"failure", "error"} else "passed" if left is None else "skipped"
        yield name, kind, "" if left is None else left.get("message", "")


def summary(found: dict[str, dict[str, object]], reports: Path, again: str) -> tuple[list[str], list[str], list[str]]:
    """Return what failed with a line that runs it again, what was left out, and the Pythons that are missing.

    found: the result of each environment, as tox writes it. again: what such a line begins with.
    """
    failed, unavailable, ran, skipped = [], [], set[str](), dict[str, str]()
    for name, result in found.items():
        if result["skipped"]:
            unavailable.append(name)
            continue
        tests = list(results_in(reports / f"{name}.xml"))
        wrong = [test for test, kind, _ in tests if kind == "failed"]
        ran |= {test for test, kind, _ in tests if kind != "skipped"}
        skipped |= {test: why for test, kind, why in tests if kind == "skipped"}
        command = f"{again} run -e {name}"
        failed += [f"{test} ({name})\n    {command} -- {shlex.quote(test)}" for test in dict.fromkeys(wrong)]
        if not wrong and (not result["success"] or not (tests or name in CHECKS)):
            failed.append(f"{name}\n    {command}")
    ran |= {test.partition("::")[0] for test in ran}  # a module may be skipped as a whole
    left_out = [f"{test} (skipped: {skipped[test]})" for test in sorted(skipped.keys() - ran)]
    return failed, left_out, unavailable


def main(given: list[str]) -> int:
    """Run them, and print the summary. The code is 0 only if nothing failed, and what must run did."""
    given, tests = (given[: given.index("--")], given[given.index("--") :]) if "--" in given else (given, [])
    strict, named = "--strict" in given, [name for name in given if name[0] != "-"]
    seed = os.environ.setdefault("SEED", str(random.SystemRandom().randrange(2**32)))
    os.environ.update(LONG if "--long" in given else {})
    for name in ("REDIS_URL", "TEST_DATABASE", "PYTHONDONTWRITEBYTECODE"):  # else each program compiles Django again
        os.environ.pop(name, None)
    config = tomllib.loads((ROOT / "tox.toml").read_text("utf-8"))
    asked = named or [name for name in config["env_list"] if strict or name not in config["labels"]["strict"]]
    lacking = {name: why for name in asked if (why := NEEDS.get(name, lambda: None)())}
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir(parents=True)
    written = REPORTS / "tox.json"
    names = ",".join(name for name in asked if name not in lacking)
    if names:
        print(f"Running {names}; output is shown for those that fail, and kept in .tox/NAME/log/.", flush=True)
    side_by_side = str((os.cpu_count() or 2) + 1)  # one more than processors, because tests wait for servers
    options = ("--parallel", side_by_side, "--parallel-no-spinner", "--result-json", written, "-e", names)
    tox = (".ci/tox", "run-parallel", *options, *tests)
    code = subprocess.run(tox, cwd=ROOT, stdin=subprocess.DEVNULL).returncode if names else 0
    results = json.loads(written.read_text())["testenvs"] if written.exists() else {}
    found = {name: results[name]["result"] for name in names.split(",") if "result" in results.get(name, {})}
    failed, left_out, unavailable = summary(found, REPORTS, f"SEED={seed} .ci/tox")
    failed += [f"{name}: it has not run" for name in names.split(",") if name and name not in found]
    if code and not failed and len(unavailable) < len(found):
        failed.append(f"tox itself, with the code {code}")
    left_out = [f"{name} ({why})" for name, why in lacking.items()] + left_out
    for title, lines in (
        ("not run, for this Python is not on this machine", unavailable),
        ("left out", left_out),
        ("failed; to run it again", failed),
    ):
        print("\n".join([f"\n{title}:", *(f"  {line}" for line in lines)]) if lines else "", end="\n" if lines else "")
    must = left_out if strict else [*lacking, *unavailable] if named else []
    print(f"\n{len(failed)} failed" + (f", {len(must)} left out that must run" if must else ""))
    return 1 if failed or must else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
