"""Rules for requests in this process, which other processes see, and a cluster whose nodes may go away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clusters import Cluster
from tests.system.conftest import MakeRule, database, make_rule

__all__ = ["MakeRule", "database", "make_rule"]


@pytest.fixture(scope="package")
def bare_cluster() -> Iterator[Cluster]:
    """Three masters without replicas that keep their data: what happens to one happens to its shards only."""
    with Cluster(replicas=0, full_coverage=False, appendonly="yes") as cluster:
        yield cluster
