"""A site of several processes admits exactly the quota of a key, and each process tells the metrics of all."""

from __future__ import annotations

import os
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from django_ratelimiter.rules import cache

from .conftest import MakeRule, StartSite
from .load import Client, send
from .site import Site

#: 3; 20 in `make test ARGS=--long`.
ROUNDS = max(3, int(os.environ.get("TWIN_STEPS", "2_000")) // 1_000)
CLIENTS = 32
REQUESTS = 224
QUOTA = 100


def test_32_clients_on_one_key_admit_exactly_the_quota(site: Site, make_rule: MakeRule) -> None:
    make_rule(1, QUOTA, "token_bucket", partition_by=["ip"])
    clients = site.connect(CLIENTS, "/items/1/")
    for number in range(ROUNDS):
        answers = send(clients, "/items/1/", REQUESTS, f"198.51.100.{number}")
        assert {answer.process for answer in answers} == site.workers
        assert {answer.status for answer in answers} == {200, 429}
        assert sum(answer.admitted for answer in answers) == QUOTA, f"round {number}"


PAGE = "/items/1/"

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scraped(client: Client) -> Samples:
    client.connection.request("GET", "/metrics/")
    text = client.connection.getresponse().read().decode()
    return {
        (sample.name.removeprefix("ratelimiter_"), frozenset(sample.labels.items())): sample.value
        for metric in text_string_to_metric_families(text)
        for sample in metric.samples
    }


def allowed(samples: Samples) -> float:
    labels = {"rule": "items-1", "tier": "", "outcome": "allowed"}
    return samples["decisions_total", frozenset(labels.items())]


def test_each_worker_tells_of_all(start_site: StartSite, make_rule: MakeRule, tmp_path: Path) -> None:
    folder = tmp_path / "metrics"
    folder.mkdir()
    make_rule(1, 1_000)
    variables = {"PROMETHEUS_MULTIPROC_DIR": str(folder), "SYSTEM_URLCONF": "tests.system.measured"}
    site = start_site("--preload", application="tests.system.measured", **variables)
    clients = site.connect(2, PAGE)
    before = allowed(scraped(clients[0]))
    send(clients, PAGE, 40)
    for client in clients:
        samples = scraped(client)
        assert allowed(samples) == before + 40
        assert samples["collector_lag_seconds", frozenset()] < 61
        assert samples["breakers_open", frozenset()] == 0
        versions = {dict(labels)["pid"]: value for (name, labels), value in samples.items() if name == "rules_version"}
        current = cache.current_rules().version.number
        assert {versions[str(worker)] for worker in site.workers} == {current}
