"""Access entries: what the database and the forms reject."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core import serializers
from django.core.management import call_command

from django_ratelimiter.models import AccessEntry
from django_ratelimiter.values import access

from .rejections import assert_database_rejects, rejected

pytestmark = pytest.mark.django_db

HASH, DIGEST = "ab" * 32, "aB_-" * 5 + "xy"


def test_choices_are_those_of_the_list() -> None:
    assert set(AccessEntry.Action.values) == set(access.ACTIONS)
    assert set(AccessEntry.Kind.values) == set(access.KINDS)


@pytest.mark.parametrize(
    ("kind", "value", "kept"),
    [
        ("ip", "192.0.2.7/24", "192.0.2.0/24"),
        ("ip", "::ffff:192.0.2.7", "192.0.2.7"),
        ("ip", "2001:DB8::/48", "2001:db8::/48"),
        ("user", "007", "7"),
        ("user", "shop.Device:7", "shop.Device:7"),
        ("api_key", HASH, HASH),
        ("digest", f"ip:{DIGEST}", f"ip:{DIGEST}"),
        ("digest", f"user|header:X-Org or ip:{DIGEST}", f"user|header:X-Org or ip:{DIGEST}"),
    ],
)
def test_a_value_is_kept_as_requests_have_it(kind: str, value: str, kept: str) -> None:
    row = AccessEntry(kind=kind, value=value)
    row.full_clean()
    assert (row.value, row.action) == (kept, "deny")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("ip", "300.0.2.7"),
        ("user", "ada"),
        ("api_key", "raw-key"),
        ("api_key", HASH + "\n"),
        ("digest", DIGEST),
        ("digest", f"ip or:{DIGEST}"),
        ("digest", "ip:192.0.2.7"),
    ],
)
def test_a_value_that_no_request_has_is_rejected(kind: str, value: str) -> None:
    assert set(rejected(AccessEntry(kind=kind, value=value))) == {"value"}


def test_the_database_rejects_a_digest_without_what_it_is_counted_by() -> None:
    assert_database_rejects("ratelimiter_access_entry_digest", AccessEntry(kind="digest", value=DIGEST))


def test_there_is_one_entry_for_each_caller() -> None:
    AccessEntry.objects.create(kind="ip", value="192.0.2.7", action="allow")
    AccessEntry.objects.create(kind="user", value="192.0.2.7")
    row = AccessEntry(kind="ip", value="192.0.2.7", action="deny")
    assert "already" in rejected(row)["__all__"][0]
    assert_database_rejects("ratelimiter_access_entry_value", row)


def test_names_whom_it_is_about_but_never_the_whole_hash() -> None:
    assert str(AccessEntry(kind="ip", value="192.0.2.7")) == "deny 192.0.2.7"
    assert str(AccessEntry(kind="user", value="7", action="allow")) == "allow user 7"
    assert str(AccessEntry(kind="api_key", value=HASH)) == "deny API key abababab…"


def test_natural_keys_carry_everything(tmp_path: Path) -> None:
    AccessEntry.objects.create(kind="ip", value="192.0.2.7", reason="noisy")
    text = serializers.serialize("json", AccessEntry.objects.all(), use_natural_primary_keys=True)
    (tmp_path / "entries.json").write_text(text, encoding="utf-8")
    call_command("loaddata", tmp_path / "entries.json", verbosity=0)
    assert AccessEntry.objects.get().reason == "noisy"
