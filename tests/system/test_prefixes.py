"""Sites below a prefix under real servers: the paths of rules, and exempt paths, are paths within the site."""

from __future__ import annotations

from pathlib import Path

from example_project.redis_server import HOST, free_port

from .conftest import MakeRule
from .load import get
from .site import Site, running, wait_until
from .test_responses import UVICORN


def test_no_client_of_gunicorn_chooses_by_script_name_what_is_exempt(site: Site, make_rule: MakeRule) -> None:
    """gunicorn takes a header SCRIPT_NAME from `forwarded_allow_ips`, which is 127.0.0.1 by default."""
    rule = make_rule(1, 2, partition_by=["ip"])
    connection = site.connect(2, rule.path)[0].connection
    statuses = []
    for prefix in ("/static", "/shop", "", "/static", "/admin"):
        connection.request("GET", f"{prefix}/items/1/", headers={"SCRIPT_NAME": prefix} if prefix else {})
        response = connection.getresponse()
        response.read()
        statuses.append(response.status)
    assert statuses == [200, 200, 429, 429, 429]


def test_a_rule_below_the_root_path_of_uvicorn_matches_the_path_within_the_site(
    make_rule: MakeRule, tmp_path: Path
) -> None:
    """Behind a proxy that strips it."""
    make_rule(1, 2)
    port = free_port()
    options = (*UVICORN.split(), "--host", HOST, "--port", str(port), "--root-path", "/static")
    with running(tmp_path, *options, is_ready=lambda: get(port, "/hello/").status == 200, SYSTEM_ALL_ASYNC="1"):
        wait_until(lambda: get(port, "/items/1/").status == 429)
