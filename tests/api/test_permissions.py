"""Every address of the JSON API, asked with every method by those who may not: the answer tells nothing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from rest_framework.test import APIClient

from django_ratelimiter.api.urls import urlpatterns

from .conftest import MakeRule

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.api.urls")]

EVERYBODYS = {"me"}  # callers see their own limits
METHODS = ("get", "post", "put", "patch", "delete", "head", "options")


@pytest.mark.parametrize("who", ["anonymous", "user", "staff", "device"])
def test_whoever_lacks_the_permission_learns_nothing(client: Client, make_rule: MakeRule, who: str) -> None:
    """401 or 403, or 405 for a method that nobody may use; the same for a rule that exists and one that does not."""
    make_rule("export", path_kind="prefix", path="/export/")
    if who == "device":  # of another model than the users, and without their permissions
        client = APIClient()
        client.force_authenticate(SimpleNamespace(pk=1, is_authenticated=True, has_perm=lambda name: True))
    elif who != "anonymous":
        client.force_login(User.objects.create_user("somebody", is_staff=who == "staff"))
    for pattern in urlpatterns:
        name = str(pattern.name)
        takes_slug = "slug" in str(pattern.pattern)
        if name in EVERYBODYS:
            continue
        for method in METHODS:
            answers = [
                getattr(client, method)(reverse(f"ratelimiter_api:{name}", args=args)).status_code
                for args in ([["export"], ["none"]] if takes_slug else [[]])
            ]
            assert set(answers) <= {401, 403, 405}, (name, method, answers)
            assert len(set(answers)) == 1, (name, method, answers)
