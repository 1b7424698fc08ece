"""The core runs in a Python without Django, parents' imports included, which import-linter cannot see."""

from __future__ import annotations

import subprocess
import sys

WITHOUT_DJANGO = """
import sys
from importlib.abc import MetaPathFinder

class Reject(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"django", "django_redis", "rest_framework", "celery"}:
            raise ImportError(f"{name} is not here")

sys.meta_path.insert(0, Reject())

import django_ratelimiter.decision
import django_ratelimiter.engine.redis
import django_ratelimiter.engine.breaker
from django_ratelimiter.engine import Charge, Limit, MemoryEngine
from django_ratelimiter.rules.ruleset import Facts, RuleSet

engine = MemoryEngine()
charge = Charge("key", Limit.parse("1/minute"))
print(*(engine.check([charge])[0].allowed for _ in range(2)))
print(RuleSet.from_snapshot({"tiers": [], "rules": [], "left_out": []}).match(Facts("GET", "/")))
"""


def test_engine_rule_set_and_decision_run_without_django() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_DJANGO], capture_output=True, text=True)
    assert (done.stdout.splitlines(), done.stderr) == (["True False", "()"], "")
