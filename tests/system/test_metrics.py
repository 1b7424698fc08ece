"""The metrics of a site of several processes: whichever is asked, it tells of all."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from django_ratelimiter.rules import cache

from .conftest import MakeRule, StartSite
from .load import Client, send

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


def all_told(clients: list[Client]) -> float:
    """What has been allowed by all workers, each of which writes what it still holds when it is asked."""
    return [allowed(scraped(client)) for client in clients][-1]


def test_each_worker_tells_of_all(start_site: StartSite, make_rule: MakeRule, tmp_path: Path) -> None:
    folder = tmp_path / "metrics"
    folder.mkdir()
    make_rule(1, 1_000)
    variables = {"PROMETHEUS_MULTIPROC_DIR": str(folder), "SYSTEM_URLCONF": "tests.system.measured"}
    site = start_site("--preload", application="tests.system.measured", **variables)
    clients = site.connect(2, PAGE)
    before = all_told(clients)
    send(clients, PAGE, 40)
    all_told(clients)
    for client in clients:
        samples = scraped(client)
        assert allowed(samples) == before + 40
        assert samples["collector_lag_seconds", frozenset()] < 61
        assert samples["breakers_open", frozenset()] == 0
        versions = {dict(labels)["pid"]: value for (name, labels), value in samples.items() if name == "rules_version"}
        current = cache.current_rules().version.number
        assert {versions[str(worker)] for worker in site.workers} == {current}
