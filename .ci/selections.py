"""Which tests a stage runs. A path that is not there is a mistake, and tests/test_ci.py finds it.

The seconds are those of one process, on the maintainers' machine with two processors.
"""

from __future__ import annotations

from stages import ROOT

#: What needs neither Redis nor Django; a stage of its own.
UNIT = "tests/unit"

#: Walks of the engines side by side: where there is Redis, all three walk.
WALKS = f"{UNIT}/test_twins.py"

#: Read by tests/unit/conftest.py: what needs no server is asked before, in the stage of its own.
ONLY_REDIS = {"UNIT_TESTS": "redis"}

#: What need not be asked again once it was asked on the Python of .venv.
AGAIN = ("--ignore=tests/test_wheel.py", "--ignore=tests/test_ci.py", "-m", "not long and not once")

#: How long tests search that draw what they ask: on the Python of .venv, there with --long, and in all other stages.
SEARCHING = {"HYPOTHESIS_PROFILE": "short", "TWIN_STEPS": "2000"}
SEARCHING_LONG = {"HYPOTHESIS_PROFILE": "nightly", "TWIN_STEPS": "20000"}
BRIEFLY = {"HYPOTHESIS_PROFILE": "brief", "TWIN_STEPS": "500"}

#: How many rows of a parametrized test run on another pair of Python and Django: see `tests/rows.py`. All rows are
#: asked with the Python of .venv. Fewer are enough where Python and Django are each seen in a larger run.
ROWS_LATEST, ROWS_BETWEEN, ROWS_SEEN_ALONE = ({"ROWS": count} for count in ("2", "2", "1"))

#: Models, migrations, versions, the collector with its crashes, saves and reports.
ON_MARIADB = (
    *("tests/models", "tests/test_databases.py", "tests/admin/test_saves.py", "tests/api/test_me.py"),
    *("tests/rules/test_compiler.py", "tests/rules/test_versions.py"),
    "tests/projects/test_settings.py::test_the_journey[naive]",
    *(f"tests/usage/test_{name}.py" for name in ("collect", "crash", "partitions")),
)

#: What asks most of packages with a lower bound: connections and their errors, throttles, rules files, metrics.
ON_THE_LOWEST = (
    *(f"tests/doors/test_{name}.py" for name in ("drf_rules", "middleware")),
    *(f"tests/engine/redis/connections/test_{name}.py" for name in ("sentinel_outage", "useless_connections")),
    "tests/engine/redis/cluster/test_cluster.py::test_clients_that_connect_at_once_and_those_for_event_loops_will_do",
    *("tests/engine/redis/test_redis_engine.py", "tests/rules/files/test_faults.py", "tests/test_prometheus.py"),
)

#: The recorded traces of usage, of two places whose clocks go forward and back. Reports read clocks in Python, whatever
#: database holds the rows. So each trace is counted on one database, and each database has both places and directions.
RECOUNT = "tests/usage/test_recount.py::test_reports_agree_with_a_recount"
ON_SQLITE = tuple(f"{RECOUNT}[{each}]" for each in ("Europe/Berlin-back", "America/New_York-forward"))
ON_POSTGRESQL = tuple(f"{RECOUNT}[{each}]" for each in ("Europe/Berlin-forward", "America/New_York-back"))

#: Not asked on SQLite where there is PostgreSQL: SQLite takes a NUL character in a text, so nothing can fail there.
ASKED_ON_POSTGRESQL = ("tests/admin/test_nul.py", *ON_POSTGRESQL)

#: It opens each address by a method, and finds what a decorator lacks.
NO_METHOD = "tests/admin/test_urls.py::test_no_method_opens_a_page_without_permission"

#: Not asked on a second server and PostgreSQL: what meets servers of its own making or none, and no database; what
#: shows pages or headers made of rows that other tests read there.
ASKS_NEITHER_SERVER_NOR_DATABASE = (
    # Connections, forks, counters and time limits of our own side.
    *("tests/engine/test_processes.py", "tests/engine/local", "tests/test_workers.py"),
    *(f"tests/engine/redis/test_{name}.py" for name in ("strange_replies", "strict_servers", "deadline")),
    "tests/engine/redis/cluster/test_far_cluster.py",
    "tests/engine/redis/connections/test_slow_connections.py",
    # These start both servers themselves, in each run.
    "tests/engine/redis/connections/test_useless_connections.py",
    # What holds of the engine in memory holds on each server on which tests/unit/test_twins.py finds no difference.
    *(f"tests/unit/test_{name}.py" for name in ("bounds", "every_algorithm", "properties")),
    # Whole sites: what they show is done by their processes, and neither server has a part in it (60 s).
    *(
        f"tests/system/test_{name}.py"
        for name in ("prefixes", "outage", "tasks", "metrics", "responses", "concurrency")
    ),
    # Saves under traffic stay, by one editor and by two; these ask what publishing does when it fails.
    "tests/system/test_saves.py::test_nor_is_one_if_redis_is_flushed_after_the_save",
    "tests/system/test_saves.py::test_a_save_whose_publishing_fails_once_is_in_force_when_it_returns",
    "tests/system/test_saves.py::test_a_save_that_cannot_be_published_stands_and_the_collector_puts_it_in_force",
    # Requests, texts and settings (80 s).
    *("tests/checks", "tests/doors", "tests/headers", "tests/identity", "tests/testing"),
    # What asks Redis by the engine alone, as the tests of the engine do, and reads a row or two (30 s).
    *("tests/limiter", "tests/explain", "tests/values", "tests/admin/test_explain.py"),
    *(f"tests/admin/rules/test_{name}.py" for name in ("counters", "presets", "targets", "views", "windows")),
    # Who may open a page does not depend on the database. That no address fails is asked there.
    NO_METHOD,
    "tests/admin/test_urls.py::test_each_page_is_for_whom_it_is_for",
    "tests/admin/test_urls.py::test_whether_a_row_exists_is_told_to_nobody_who_may_not_see_it",
    "tests/admin/test_two_editors.py",  # one after the other: numbers of versions are compared in Python
    *ON_SQLITE,
    *(f"tests/test_{name}.py" for name in ("benchmarks", "conf", "demo", "docs", "layers", "names", "prometheus")),
    *(f"tests/test_{name}.py" for name in ("redis_server", "translations")),
    *(f"tests/admin/rules/test_{name}.py" for name in ("confirming", "form_browser", "limit_fields")),
    *(f"tests/admin/rules/test_{name}.py" for name in ("offered_is_enforced", "rule_form", "sentences")),
    *(f"tests/admin/test_{name}.py" for name in ("page_queries", "permissions", "themes", "words")),
    # Our own side of the connection, as above; a cluster whose other nodes go on is asked with all of its slots.
    "tests/engine/redis/cluster/test_slow_cluster.py",
    *(f"tests/engine/redis/test_{name}.py" for name in ("async_engine", "redis_failures")),
    "tests/engine/redis/connections/test_failover.py::test_a_master_of_a_cluster_dies[False]",
    # What forecasts compute of samples that are read there, and what their form shows; the form's conflicts are asked.
    *(f"tests/forecast/test_{name}.py" for name in ("advice", "cells", "command", "difference", "expected_memory")),
    *(f"tests/forecast/test_{name}.py" for name in ("logs", "many_callers", "multipliers", "odd_lines")),
    *("tests/admin/forecast/test_panel.py", "tests/rules/files/test_traffic.py", "tests/rules/files/test_drift.py"),
    # Addresses, answers and permissions of the API; that its rows are read and written is asked of the rest of it.
    *(f"tests/api/test_{name}.py" for name in ("me_edges", "permissions", "schema", "without_framework")),
    # Pages that show what tests/usage, tests/callers and tests/rules read and write there. None fails: test_urls.py.
    "tests/admin/usage/test_search.py",
    *(f"tests/admin/callers/test_{name}.py" for name in ("links", "page", "permissions", "secrets", "unknown")),
    *(f"tests/admin/test_{name}.py" for name in ("enforcement", "refusals")),
    *(f"tests/admin/overview/test_{name}.py" for name in ("clients", "few_permissions", "processes", "search")),
    *("tests/admin/history/test_undo.py", "tests/admin/rules/test_publishing.py"),
    # A whole site; that such rows cost their own rules only is asked of the compiler.
    "tests/system/test_bad_rows.py",
)

#: Not asked of another Python or Django: the engine imports no Django, and what is tested with whole servers depends
#: little on either (416 of 705 s). NUL characters (206 forms, 43 s) are the database's affair.
WITHOUT_SERVERS = (
    *(UNIT, "tests/engine", "tests/system", "tests/outages", "tests/test_demo.py", "tests/admin/test_nul.py"),
    *("tests/usage/test_crash.py", "tests/usage/test_recount.py"),
)

#: What of these another Python may change: it is tested on the latest pair, too.
ON_THE_LATEST = {
    *("test_async_engine.py", "test_examples.py", "test_redis_engine.py", "test_redis_failures.py", "test_twins.py"),
    *("test_concurrency.py", "test_responses.py"),
}
LATEST_SPARED = tuple(
    str(file.relative_to(ROOT))
    for path in WITHOUT_SERVERS
    for file in sorted((ROOT / path).rglob("test_*.py")) or [ROOT / path]
    if file.name not in ON_THE_LATEST
)

#: Nor are these asked of the latest pair, but with --long. What they could find there depends neither on Python nor on
#: Django, and the whole suite has asked it: numbers of the engine, behind a form or not, and sums over rows; whom a
#: gateway is believed about, and how it reads a path.
LATEST_SPARED_BRIEFLY = (
    *(WALKS, "tests/usage/test_coverage.py", "tests/rules/files/test_killed.py"),
    *(f"tests/admin/rules/test_{name}.py" for name in ("counters", "offered_is_enforced")),
    "tests/doors/test_gateway.py::test_nobody_else_is_believed",
    "tests/doors/test_gateway.py::test_a_path_that_servers_read_in_different_ways_is_refused",
    "tests/doors/test_gateway.py::test_the_client_is_the_one_that_the_gateway_names",
    # What the server's script counts for many; that a fork shares no connection is asked.
    "tests/system/test_concurrency.py::test_32_clients_on_one_key_admit_exactly_the_quota",
    # What forecasts compute, from lines of logs or from samples. The command that does it is asked, and so is the form.
    *(f"tests/forecast/test_{name}.py" for name in ("advice", "cells", "difference", "expected_memory", "logs")),
    *(f"tests/forecast/test_{name}.py" for name in ("many_callers", "multipliers", "odd_lines", "samples", "tally")),
    *("tests/admin/forecast/test_panel.py", "tests/rules/files/test_traffic.py", "tests/rules/files/test_drift.py"),
    # What is written about the code, in the docs and in catalogues, and what examples and sentences say.
    *(
        f"tests/test_{name}.py"
        for name in ("benchmarks", "contributing", "docs", "house", "layers", "names", "release")
    ),
    *("tests/test_translations.py", "tests/admin/rules/test_presets.py", "tests/admin/rules/test_sentences.py"),
    "tests/values/test_failure_policies.py",
    # Numbers of versions, compared in Python: each form, its errors and its save are asked by tests/admin/rules, and
    # what brings a version back by tests/admin/history/test_history.py.
    *("tests/admin/test_two_editors.py", "tests/admin/history/test_undo.py", "tests/rules/test_bring_back.py"),
    "tests/rules/test_recovery.py",
    # What a page says of whom, and which link leads where. Each page is opened by tests/admin/test_urls.py.
    *(f"tests/admin/callers/test_{name}.py" for name in ("links", "unknown")),
    *(f"tests/admin/overview/test_{name}.py" for name in ("few_permissions", "processes", "search")),
    "tests/admin/usage/test_search.py",
    # What a decorator lacks, and a permission. A page for each kind of user is asked there.
    NO_METHOD,
    "tests/admin/test_urls.py::test_whether_a_row_exists_is_told_to_nobody_who_may_not_see_it",
    # What rules leave behind on the way to the engine; an explanation that agrees with that.
    *("tests/limiter/test_edited_away.py", "tests/explain/test_agreement.py"),
)

#: Rows, and the pages and answers that show them.
ROWS = (
    *(f"tests/admin/{name}" for name in ("callers", "files", "forecast", "history", "overview", "usage")),
    *(f"tests/{name}" for name in ("api", "callers", "forecast", "models", "rules", "usage")),
)


def asked_twice_elsewhere() -> tuple[str, ...]:
    """Return the tests of rows that PostgreSQL and, on SQLite, the latest pair are asked.

    Where both run, the whole suite is not asked them a third time. What fails on SQLite with the Python of .venv alone
    is found by the tests of rows that are marked `once`, or with --long. Where other databases skip rows, the whole
    suite is asked them: the latest pair runs some of them only.
    """
    elsewhere = {*LATEST_SPARED, *LATEST_SPARED_BRIEFLY, *ASKS_NEITHER_SERVER_NOR_DATABASE}
    files = [file for folder in ROWS for file in sorted((ROOT / folder).rglob("test_*.py"))]
    texts = {str(file.relative_to(ROOT)): file.read_text("utf-8") for file in files}
    asked = [name for name, text in texts.items() if "mark.once" not in text and "vendor != 'sqlite'" not in text]
    return tuple(name for name in asked if name not in elsewhere)


#: A pair whose Python and whose Django are both in other pairs is asked only where the two meet: in requests, in
#: threads and on event loops, and in models.
SEEN_ALONE = (
    *(f"tests/doors/test_{name}.py" for name in ("async", "decorators", "drf_rules", "middleware", "slot_tasks")),
    *("tests/limiter/test_leases.py", "tests/limiter/test_refunds.py", "tests/models"),
)

#: A Python and a Django between the oldest and the latest. What all of these two pass fails there hardly ever, so it
#: is asked where either has changed most from one release to the next: of the pages, the largest form and each address.
BETWEEN = (
    *("tests/api", "tests/checks", "tests/doors", "tests/limiter", "tests/models"),
    *(f"tests/admin/rules/test_{name}.py" for name in ("rule_form", "rule_list")),
    *("tests/admin/test_urls.py", "tests/admin/test_saves.py", "tests/usage/test_reports.py"),
    # The latest pair asks these, or the whole suite alone: see LATEST_SPARED_BRIEFLY.
    *(f"--ignore=tests/{name}.py" for name in ("doors/test_gateway", "api/test_schema", "api/test_permissions")),
    *(f"--ignore=tests/limiter/test_{name}.py" for name in ("charges", "edited_away", "metered")),
    f"--deselect={NO_METHOD}",
    "--deselect=tests/admin/test_urls.py::test_each_page_is_for_whom_it_is_for",
    "--deselect=tests/admin/test_urls.py::test_whether_a_row_exists_is_told_to_nobody_who_may_not_see_it",
)


def ignored(*paths: str) -> tuple[str, ...]:
    """Return the options that leave these out: files, folders, and tests by name."""
    return tuple(f"--{'deselect' if '::' in path else 'ignore'}={path}" for path in paths)
