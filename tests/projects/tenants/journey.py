"""A program: a project with django-tenants, whose users and sessions are each tenant's own. Prints what it met."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from typing import Any
from urllib.parse import urlsplit

import django
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.urls import path

TENANTS = ("acme", "globex")
OF_TENANTS = ["django.contrib.auth", "django.contrib.sessions"]


def configure(url: str) -> None:
    at = urlsplit(url)
    shared = ["django_tenants", "tests.projects.tenants", "django.contrib.contenttypes", "django_ratelimiter"]
    settings.configure(
        SECRET_KEY="only for this test",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=__name__,
        USE_TZ=True,
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        DATABASES={
            "default": {
                "ENGINE": "django_tenants.postgresql_backend",
                "NAME": at.path[1:],
                "USER": at.username,
                "HOST": at.hostname,
                "PORT": at.port,
            }
        },
        DATABASE_ROUTERS=["django_tenants.routers.TenantSyncRouter"],
        SHARED_APPS=shared,
        TENANT_APPS=OF_TENANTS,
        INSTALLED_APPS=[*shared, *OF_TENANTS],
        TENANT_MODEL="tenants.Tenant",
        TENANT_DOMAIN_MODEL="tenants.Domain",
        MIGRATION_MODULES={"tenants": None},
        MIDDLEWARE=[
            "django_tenants.middleware.main.TenantMainMiddleware",
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django_ratelimiter.middleware.RateLimitMiddleware",
        ],
        RATELIMITER={"TIER_CACHE_SECONDS": 0},
    )


def hello(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


urlpatterns = [path("hello/", hello)]


def main(url: str) -> dict[str, Any]:
    configure(url)
    django.setup()
    from django.contrib.auth import get_user_model
    from django.core.checks import run_checks
    from django.core.management import call_command
    from django.test import Client
    from django_tenants.utils import schema_context

    from django_ratelimiter.inspection.caller import caller_of
    from django_ratelimiter.models import AccessEntry, Rule, RuleLimit, Tier, TierAssignment
    from tests.projects.tenants.models import Domain, Tenant

    call_command("migrate_schemas", shared=True, run_syncdb=True, verbosity=0)
    for schema in TENANTS:
        with redirect_stdout(sys.stderr):
            tenant = Tenant.objects.create(schema_name=schema, name=schema)
        Domain.objects.create(domain=f"{schema}.example.com", tenant=tenant)
    rule = Rule.objects.create(slug="hello", name="Hello", mode="enforce", partition_by=["user"])
    pro = Tier.objects.create(slug="pro", name="Pro", rank=1)
    for tier, quota in ((None, 2), (pro, 4)):
        RuleLimit.objects.create(rule=rule, tier=tier, quota=quota, window_seconds=86_400, algorithm="fixed_window")
    users, clients = {}, {}
    for schema in TENANTS:
        clients[schema] = Client(headers={"host": f"{schema}.example.com"})
        with schema_context(schema):
            users[schema] = get_user_model().objects.create_user("ann")
            clients[schema].force_login(users[schema])

    def ask(times: int) -> list[list[int]]:
        return [[clients[schema].get("/hello/").status_code for _ in range(times)] for schema in TENANTS]

    met: dict[str, Any] = {"keys": [users[schema].pk for schema in TENANTS], "counted": ask(3)}
    with schema_context("acme"):
        TierAssignment.objects.create(tier=pro, user=users["acme"])
        met["caller"] = caller_of("user", "ann").known
    met["tiers"] = ask(1)
    with schema_context("globex"):
        entry = AccessEntry(kind="user", value=str(users["globex"].pk), action="deny")
        entry.full_clean()
        entry.save()
    met["denied"] = ask(1)
    met["checks"] = [each.id for each in run_checks() if each.is_serious() and "django_ratelimiter" in str(each.id)]
    settings.TENANT_APPS = [*OF_TENANTS, "django_ratelimiter"]
    met["rejected"] = [each.id for each in run_checks() if each.is_serious() and "django_ratelimiter" in str(each.id)]
    return met


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
