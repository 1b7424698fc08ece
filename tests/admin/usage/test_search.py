"""From a caller to its usage: staff type who it is, and the report tells of the digest that stands for it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from django_ratelimiter import limiter
from django_ratelimiter.identity import digest, hash_api_key, identify, partition
from django_ratelimiter.testing import RulesInForce, override_rules
from django_ratelimiter.usage.reports.coverage import HOUR

from ..pages import shown, text_of
from .test_admin import REPORT
from .test_pages import count, weigh

pytestmark = pytest.mark.django_db

SEARCH = f"{REPORT}caller/?rule=search&period=7d"
KEY = "key-of-carol"


@pytest.fixture
def split_by(ratelimit_rules: RulesInForce) -> Any:
    """`split_by("user", …)`: have a rule that is split by these, with usage."""

    def make(*names: str, **fields: Any) -> None:
        ratelimit_rules({"slug": "search", "limits": ["5/minute"], "partition_by": list(names), **fields})
        count(3 * HOUR, allowed=50)

    return make


def find(staff: Client, **typed: str) -> Any:
    """The report after a search."""
    return staff.post(SEARCH, {f"caller-{name}": value for name, value in typed.items()}, follow=True)


def found(response: Any) -> str:
    """The digest that was found."""
    [(address, status)] = response.redirect_chain
    assert status == 302
    return re.search(r"[?&]caller=([\w-]+)", address)[1]  # type: ignore[index]


def test_a_user_by_name_or_primary_key(staff: Client, split_by: Any) -> None:
    split_by("user")
    ann = User.objects.create(username="ann")
    mine = digest(f"user:{ann.pk}")
    weigh(3 * HOUR, mine, 1_200, 34)
    for typed in ("ann", str(ann.pk)):
        response = find(staff, user=typed)
        assert found(response) == mine
        assert "1,200 allowed and 34 rejected, in hours in which it was among the top callers" in text_of(response)
    assert "caller=" not in re.search(r'href="([^"]*)">All rules', shown(response))[1]  # type: ignore[index]


def test_one_who_was_not_among_the_top_callers(staff: Client, split_by: Any) -> None:
    split_by("user")
    User.objects.create(username="ann")
    assert "was not among the top callers of any hour of this period" in text_of(find(staff, user="ann"))


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("192.0.2.7", "192.0.2.7"), (" ::ffff:192.0.2.7 ", "192.0.2.7"), ("2001:db8:0:1:2::3", "2001:db8:0:1::/64")],
)
def test_an_address_as_requests_have_it(staff: Client, split_by: Any, typed: str, meant: str) -> None:
    split_by("ip")
    assert found(find(staff, ip=typed)) == digest(f"ip:{meant}")


def test_an_api_key_is_typed_in_secret(staff: Client) -> None:
    count(3 * HOUR, allowed=50)
    with override_rules({"slug": "search", "limits": ["5/minute"], "partition_by": ["api_key"]}, api_keys=[KEY]):
        response = find(staff, api_key=KEY)
    assert found(response) == digest(f"api_key:{hash_api_key(KEY)}")
    assert KEY not in response.content.decode()
    assert KEY not in "".join(address for address, _status in response.redirect_chain)
    assert 'type="password"' in response.content.decode()


@pytest.mark.parametrize(
    "names", [("user", "header:X-Org"), ("path:pk", "session"), ("field:email",), ("query:app", "cookie:cart")]
)
def test_all_of_several_names(staff: Client, split_by: Any, names: tuple[str, ...]) -> None:
    split_by(*names)
    ann = User.objects.create(username="ann")
    values = {name: "ann" if name == "user" else "a|b%" for name in names}
    written = "|".join(f"{name}:{ann.pk if name == 'user' else 'a%7Cb%25'}" for name in names)
    assert found(find(staff, **values)) == digest(written)
    assert "Fill in all of these" in text_of(find(staff))


def test_the_address_of_one_who_has_no_account(staff: Client, split_by: Any, rf: Any) -> None:
    split_by("user", missing_partition="ip")
    request = rf.get("/", REMOTE_ADDR="203.0.113.9")
    limiter.check(request)
    assert found(find(staff, ip="203.0.113.9")) == digest(partition(identify(request), ("ip",)) or "")


@pytest.mark.parametrize(
    ("name", "typed"),
    [("user", "nobody"), ("user", "a\0"), ("user", "9" * 99), ("api_key", "unknown")],
)
def test_one_whom_nobody_knows(staff: Client, split_by: Any, name: str, typed: str) -> None:
    split_by(name)
    response = find(staff, **{name: typed})
    assert response.redirect_chain == []
    assert re.search("No user or API key matches this|Null characters are not allowed", text_of(response))
    assert ("by login name or primary key" in text_of(response)) is (name == "user")


@pytest.mark.parametrize(("typed", "says"), [("here", "This is not an IP address."), ("\0", "Null characters are not")])
def test_what_is_no_address(staff: Client, split_by: Any, typed: str, says: str) -> None:
    split_by("ip")
    assert says in text_of(find(staff, ip=typed))


def test_only_where_callers_are_told_apart(staff: Client, split_by: Any) -> None:
    split_by()
    assert "Find a caller" not in text_of(staff.get(f"{REPORT}rule/?rule=search"))
    assert staff.post(SEARCH).status_code == 404
    assert staff.post(f"{REPORT}caller/?rule=gone").status_code == 404


def test_a_link_on_the_answer_leads_back_to_the_rule(staff: Client, split_by: Any) -> None:
    split_by("ip")
    response = staff.get(SEARCH)
    assert (response.status_code, response["Location"]) == (302, f"{REPORT}rule/?rule=search&period=7d")


def test_a_caller_that_no_database_would_look_for(staff: Client, split_by: Any) -> None:
    split_by("ip")
    assert staff.get(f"{REPORT}rule/?rule=search&caller=%00").status_code == 404
    assert staff.get(f"{REPORT}rule/?rule=search&caller={'x' * 5_000}").status_code == 200
