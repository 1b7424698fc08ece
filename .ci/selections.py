"""Which tests each stage runs. tests/test_ci.py finds paths that do not exist.

The seconds are those of one process, on the maintainers' machine with two processors.
"""

from __future__ import annotations

from stages import ROOT

#: Tests that need neither Redis nor Django; they are a separate stage.
UNIT = "tests/unit"

#: Random walks that compare the engines: all three if there is Redis.
WALKS = f"{UNIT}/test_twins.py"

#: Read by tests/unit/conftest.py: tests without a server run earlier, in their own stage.
ONLY_REDIS = {"UNIT_TESTS": "redis"}

#: Tests that need not run again after they ran on the Python of .venv.
AGAIN = ("--ignore=tests/test_wheel.py", "--ignore=tests/test_ci.py", "-m", "not long and not once and not browser")

#: On the latest pair: pages are looked at on the Django that most new sites have.
WITH_BROWSER = ("-m", "not long and not once")

#: Run on the latest pair only, if there is one. A test that opens each page in a browser runs on .venv's Django too.
ONLY_LATEST = tuple(
    str(path.relative_to(ROOT))
    for path in sorted((ROOT / "tests/admin").rglob("test_*browser.py"))
    if path.name != "test_csp_browser.py"
)

#: How long random searches take: on the Python of .venv, there with --long, and in all other stages.
SEARCHING = {"HYPOTHESIS_PROFILE": "short", "TWIN_STEPS": "2000"}
SEARCHING_LONG = {"HYPOTHESIS_PROFILE": "nightly", "TWIN_STEPS": "20000"}
BRIEFLY = {"HYPOTHESIS_PROFILE": "brief", "TWIN_STEPS": "500"}

#: How many rows of a parametrized test run on another pair of Python and Django: see `tests/rows.py`. All rows run with
#: the Python of .venv. One is enough: rows call the same code, and of what changes between releases, many tests tell.
#: A whole run takes 20 s less of the processor than with two. --long: all rows run.
ROWS = {"ROWS": "1"}

#: Models, migrations, versions, the collector with its crashes, saves and reports.
ON_MARIADB = (
    *("tests/models", "tests/test_databases.py", "tests/admin/test_saves.py", "tests/api/test_me.py"),
    *("tests/rules/test_compiler.py", "tests/rules/test_versions.py"),
    "tests/projects/test_settings.py::test_the_journey[naive]",
    *(f"tests/usage/test_{name}.py" for name in ("collect", "crash", "partitions")),
)

#: Tests that depend most on packages with a lower bound: connections and their errors, throttles, rules files, metrics.
ON_THE_LOWEST = (
    *(f"tests/entry_points/test_{name}.py" for name in ("drf_rules", "middleware")),
    *(f"tests/engine/redis/connections/test_{name}.py" for name in ("sentinel_outage", "useless_connections")),
    "tests/engine/redis/cluster/test_cluster.py::test_clients_that_connect_at_once_and_those_for_event_loops_will_do",
    *("tests/engine/redis/test_redis_engine.py", "tests/rules/files/test_faults.py", "tests/test_prometheus.py"),
)

#: The recorded traces of usage, in two time zones with clock changes in both directions. Reports compute times in
#: Python, on all databases. So each trace is counted on one database, and each database has both zones and directions.
RECOUNT = "tests/usage/test_recount.py::test_reports_agree_with_a_recount"
ON_SQLITE = tuple(f"{RECOUNT}[{each}]" for each in ("Europe/Berlin-back", "America/New_York-forward"))
ON_POSTGRESQL = tuple(f"{RECOUNT}[{each}]" for each in ("Europe/Berlin-forward", "America/New_York-back"))

#: What is collected of partitions: on SQLite, whose collections never overlap, no more can fail than with other counts.
PARTITIONS_COLLECTED = (
    "tests/usage/test_crash.py::test_what_is_known_of_partitions_comes_in_whole",
    "tests/usage/test_crash.py::test_what_is_known_of_partitions_comes_in_once_from_three_at_once",
)

#: Not on SQLite if there is PostgreSQL: SQLite accepts a NUL character in a text, so nothing can fail there.
ASKED_ON_POSTGRESQL = ("tests/admin/test_nul.py", *ON_POSTGRESQL, *PARTITIONS_COLLECTED)

#: It requests each URL with a method, and finds missing decorators.
NO_METHOD = "tests/admin/test_urls.py::test_no_method_opens_a_page_without_permission"

#: Not on a second server and PostgreSQL: tests with a stub server or none, and without a database; tests of
#: pages or headers made from rows that other tests read there.
ASKS_NEITHER_SERVER_NOR_DATABASE = (
    # Connections, forks, counters and time limits on our side.
    *("tests/engine/test_processes.py", "tests/engine/local"),
    *(f"tests/engine/redis/test_{name}.py" for name in ("strange_replies", "strict_servers", "deadline")),
    "tests/engine/redis/cluster/test_far_cluster.py",
    "tests/engine/redis/connections/test_slow_connections.py",
    # These always start both servers themselves.
    "tests/engine/redis/connections/test_useless_connections.py",
    # If the memory engine passes, so does each server on which tests/unit/test_twins.py finds no difference.
    *(f"tests/unit/test_{name}.py" for name in ("bounds", "every_algorithm", "properties")),
    # Whole sites: their processes determine the result, not the server or database (60 s).
    *(f"tests/system/test_{name}.py" for name in ("prefixes", "outage", "metrics", "responses", "concurrency")),
    # Saves under traffic, by one editor and by two, run there.
    "tests/system/test_saves.py::test_nor_is_one_if_redis_is_flushed_after_the_save",
    # Requests, texts and settings (80 s).
    *("tests/checks", "tests/entry_points", "tests/headers", "tests/identity", "tests/testing"),
    # These only use Redis through the engine, which the engine's tests cover, and read a row or two (30 s).
    *("tests/limiter", "tests/values", "tests/admin/test_explain.py"),
    *(f"tests/inspection/test_{name}.py" for name in ("agreement", "curl", "explain", "explain_command", "gateway")),
    *(f"tests/admin/rules/test_{name}.py" for name in ("counters", "presets", "targets", "views", "windows")),
    # Permissions to open a page do not depend on the database. The test that no URL fails runs there.
    NO_METHOD,
    "tests/admin/test_urls.py::test_each_page_is_for_whom_it_is_for",
    "tests/admin/test_urls.py::test_whether_a_row_exists_is_told_to_nobody_who_may_not_see_it",
    "tests/admin/test_two_editors.py",  # one after the other: versions are compared in Python
    *ON_SQLITE,
    *(f"tests/test_{name}.py" for name in ("benchmarks", "conf", "demo", "docs", "layers", "names", "prometheus")),
    *(f"tests/test_{name}.py" for name in ("redis_server", "translations")),
    *(f"tests/admin/rules/test_{name}.py" for name in ("confirming", "form_browser", "limit_fields")),
    *(f"tests/admin/rules/test_{name}.py" for name in ("offered_is_enforced", "rule_form", "sentences")),
    *(f"tests/admin/test_{name}.py" for name in ("page_queries", "permissions", "themes", "words")),
    # Our side of the connection, as above; a test of a cluster whose other nodes continue runs there, with all slots.
    *(f"tests/engine/redis/test_{name}.py" for name in ("async_engine", "redis_failures")),
    "tests/engine/redis/connections/test_failover.py::test_a_master_of_a_cluster_dies[False]",
    # What forecasts compute from samples, and what their form shows; the form's conflicts run there.
    *(f"tests/forecast/test_{name}.py" for name in ("advice", "command", "changes")),
    *(f"tests/forecast/test_{name}.py" for name in ("logs", "odd_lines")),
    *("tests/admin/forecast/test_panel.py", "tests/rules/files/test_traffic.py", "tests/rules/files/test_drift.py"),
    # URLs, responses and permissions of the API; other API tests read and write its rows there.
    *(f"tests/api/test_{name}.py" for name in ("permissions", "schema", "without_framework")),
    # Pages with data that tests/usage, tests/inspection and tests/rules read and write there. Their URLs: test_urls.py.
    "tests/admin/usage/test_search.py",
    *(f"tests/admin/callers/test_{name}.py" for name in ("links", "page", "permissions", "secrets", "unknown")),
    *(f"tests/admin/test_{name}.py" for name in ("enforcement", "rejections")),
    *(f"tests/admin/overview/test_{name}.py" for name in ("callers", "few_permissions", "processes", "search")),
    *("tests/admin/history/test_undo.py", "tests/admin/rules/test_publishing.py"),
    # A whole site; a test of the compiler checks there that such rows affect only their own rules.
    "tests/system/test_saves.py::test_bad_rows_leave_the_site_up_and_the_other_rules_in_force",
)

#: Not on another Python or Django: the engine imports no Django, and tests with whole servers depend
#: little on either (416 of 705 s). NUL characters (206 forms, 43 s) depend on the database.
WITHOUT_SERVERS = (
    *(UNIT, "tests/engine", "tests/system", "tests/outages", "tests/test_demo.py", "tests/admin/test_nul.py"),
    *("tests/usage/test_crash.py", "tests/usage/test_recount.py"),
)

#: Of these, tests that another Python may affect: they run on the latest pair, too.
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

#: Not on the latest pair either, except with --long. Their results depend neither on Python nor on
#: Django, and the whole suite runs them: numbers of the engine, also in forms, and sums over rows; which proxies a
#: gateway trusts, and how it reads a path.
LATEST_SPARED_BRIEFLY = (
    *(WALKS, "tests/usage/test_coverage.py", "tests/rules/files/test_killed.py"),
    *(f"tests/admin/rules/test_{name}.py" for name in ("counters", "offered_is_enforced")),
    "tests/entry_points/test_gateway.py::test_nobody_else_is_believed",
    "tests/entry_points/test_gateway.py::test_a_path_that_servers_read_in_different_ways_is_rejected",
    "tests/entry_points/test_gateway.py::test_the_client_is_the_one_that_the_gateway_names",
    # What the server's script counts for many callers; the test that a fork shares no connection runs there.
    "tests/system/test_concurrency.py::test_32_clients_on_one_key_admit_exactly_the_quota",
    # What forecasts compute from lines of logs or from samples. The command and the form are tested there.
    *(f"tests/forecast/test_{name}.py" for name in ("advice", "changes", "logs")),
    *(f"tests/forecast/test_{name}.py" for name in ("odd_lines", "samples", "tally")),
    *("tests/admin/forecast/test_panel.py", "tests/rules/files/test_traffic.py", "tests/rules/files/test_drift.py"),
    # Texts about the code, in the docs and in catalogues, and of examples and sentences.
    *(
        f"tests/test_{name}.py"
        for name in ("benchmarks", "contributing", "docs", "house", "layers", "names", "release")
    ),
    *("tests/test_translations.py", "tests/admin/rules/test_presets.py", "tests/admin/rules/test_sentences.py"),
    "tests/rules/test_failure_policies.py",
    # Numbers of versions, compared in Python: tests/admin/rules tests each form, its errors and its save, and
    # tests/admin/history/test_history.py tests restoring a version.
    *("tests/admin/test_two_editors.py", "tests/admin/history/test_undo.py", "tests/rules/test_bring_back.py"),
    "tests/rules/test_recovery.py",
    # Texts and links of pages. tests/admin/test_urls.py opens each page.
    *(f"tests/admin/callers/test_{name}.py" for name in ("links", "unknown")),
    *(f"tests/admin/overview/test_{name}.py" for name in ("few_permissions", "processes", "search")),
    "tests/admin/usage/test_search.py",
    # Missing decorators and permissions. That module also opens a page for each kind of user.
    NO_METHOD,
    "tests/admin/test_urls.py::test_whether_a_row_exists_is_told_to_nobody_who_may_not_see_it",
    # What rules cause on the way to the engine; an explanation that agrees with it.
    *("tests/limiter/test_edited_away.py", "tests/inspection/test_agreement.py"),
)

#: Rows of the database, and the pages and responses that show them.
OF_THE_DATABASE = (
    *(f"tests/admin/{name}" for name in ("callers", "files", "forecast", "history", "overview", "usage")),
    *(f"tests/{name}" for name in ("api", "inspection", "forecast", "models", "rules", "usage")),
)


def asked_twice_elsewhere() -> tuple[str, ...]:
    """Return the tests of rows that run on PostgreSQL and, with SQLite, on the latest pair.

    If both run, the whole suite does not run them a third time. Failures that need SQLite with the Python of .venv
    are found by the tests of rows marked `once`, or with --long. If other databases skip some rows, the whole
    suite runs them, because the latest pair runs only some of them.
    """
    elsewhere = {*LATEST_SPARED, *LATEST_SPARED_BRIEFLY, *ASKS_NEITHER_SERVER_NOR_DATABASE}
    files = [file for folder in OF_THE_DATABASE for file in sorted((ROOT / folder).rglob("test_*.py"))]
    texts = {str(file.relative_to(ROOT)): file.read_text("utf-8") for file in files}
    asked = [name for name, text in texts.items() if "mark.once" not in text and "vendor != 'sqlite'" not in text]
    return tuple(name for name in asked if name not in elsewhere)


#: A pair whose Python and Django are both in other pairs runs only tests that depend on both: requests,
#: threads, event loops, and models.
SEEN_ALONE = (
    *(
        f"tests/entry_points/test_{name}.py"
        for name in ("async", "decorators", "drf_rules", "middleware", "slot_tasks")
    ),
    *("tests/limiter/test_leases.py", "tests/limiter/test_refunds.py", "tests/models"),
)

#: A Python and a Django between the oldest and the latest. What passes on those hardly ever fails here, so only tests
#: run that depend on the parts with most changes between releases: pages, the largest form, and each URL.
BETWEEN = (
    *("tests/api", "tests/checks", "tests/entry_points", "tests/limiter", "tests/models"),
    *(f"tests/admin/rules/test_{name}.py" for name in ("rule_form", "rule_list")),
    *("tests/admin/test_urls.py", "tests/admin/test_saves.py", "tests/usage/test_reports.py"),
    # The latest pair runs these, or only the whole suite: see LATEST_SPARED_BRIEFLY.
    *(f"--ignore=tests/checks/test_{name}.py" for name in ("paths", "servers")),
    *(f"--ignore=tests/{name}.py" for name in ("entry_points/test_gateway", "api/test_schema", "api/test_permissions")),
    *(f"--ignore=tests/limiter/test_{name}.py" for name in ("charges", "edited_away", "metered")),
    f"--deselect={NO_METHOD}",
    "--deselect=tests/admin/test_urls.py::test_each_page_is_for_whom_it_is_for",
    "--deselect=tests/admin/test_urls.py::test_whether_a_row_exists_is_told_to_nobody_who_may_not_see_it",
)


def ignored(*paths: str) -> tuple[str, ...]:
    """Return the options that exclude these: files, folders, and tests by name."""
    return tuple(f"--{'deselect' if '::' in path else 'ignore'}={path}" for path in paths)
