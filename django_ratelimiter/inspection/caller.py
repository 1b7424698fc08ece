"""A caller: its known values, from which the names of all its counters are computed."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, NamedTuple

from django.contrib.auth import get_user_model
from django.core.exceptions import ObjectDoesNotExist
from django.db.models import Model
from django.http import HttpRequest
from django.utils.translation import gettext as _

from ..conf import has_identity, is_alias, is_secret, settings, unknown_identity
from ..customers import key_model, of_row, row_of, value_of
from ..databases import spelled
from ..exceptions import raised_at
from ..identity import MAX_API_KEY, MAX_SESSION_KEY, digest, digests, hash_api_key, is_of_unreadable
from ..identity.proxies import client_address, client_ip, network_around
from ..limiter.templates import missing
from ..logs import logger
from ..plans import CallerIdentity
from ..rules.records import RuleRecord
from ..rules.tiers import find_api_key, is_known_api_key
from ..rules.ttl_cache import OwnCodeFailed
from ..tenants import names_row, row_key, rows_named, rows_of, user_key
from ..values.digests import alias_of, keyed_digest, whole
from ..values.partitions import encode_partition, is_identity, partition_names
from ..values.references import parse_reference
from .references import Name, digests_of, everybody, is_hash, known_rules, revealed_to, row_keys, rules_of, with_tail


class UnknownCaller(ValueError):
    """The input is not a caller; the message says what would be."""


def find_user(text: str) -> Any:
    """Return the user with this primary key or login name; `None` if there is none.

    "id:42" and "pk:42" are only primary keys, and "name:42" is only a login name. Raises UnknownCaller if two match.
    """
    if "\0" in text:
        return None
    prefix, colon, rest = text.partition(":")
    if colon and prefix in ("id", "pk"):
        return _of_key(rest)
    if colon and prefix == "name":
        return _of_name(rest)
    named, keyed = _of_name(text), _of_key(text)
    if named is not None and keyed is not None and named.pk != keyed.pk:
        words = _(
            "Two users match: login name %(text)s (id %(pk)s) and id %(text)s. Enter name:%(text)s or id:%(text)s."
        )
        raise UnknownCaller(words % {"text": text, "pk": named.pk})
    return keyed if named is None else named


def by_key(pk: Any) -> str:
    """Return a text that names only the user with this primary key."""
    return f"id:{pk}"


def _of_key(text: str) -> Any:
    return next(iter(rows_of(get_user_model(), [text])), None)


def _of_name(text: str) -> Any:
    users = get_user_model()
    try:
        return users._default_manager.get_by_natural_key(text)
    except (ObjectDoesNotExist, AttributeError):  # a project's own manager may lack it
        return None


KINDS: Final = ("user", "api_key", "ip", "customer", "partition")

#: Longer texts are never valid.
MAX_TEXT: Final = 1_000

_DIGEST: Final = re.compile(r"[A-Za-z0-9_-]{22}")
#: The prefix for a result of API_KEY_RESOLVER. Without it, a text that is not a known key is read as a key, too.
RESOLVED: Final = "value:"
#: What stands for one of several keys in URLs: its hash, and the result of API_KEY_RESOLVER.
_ONE_OF: Final = re.compile(r"key:([0-9a-f]{64}):(.+)", re.DOTALL)
_PART: Final = re.compile(
    r"((?:header|path|field|query|cookie):[^:=|]+|ip/[0-9]+|[A-Za-z_][A-Za-z0-9_]*)[:=](.+)", re.DOTALL
)


@dataclass(frozen=True)
class Caller:
    """A caller, by its known values."""

    MEMBERS: ClassVar = ("kind", "value", "digest")

    kind: str  # as it was looked up; digest = only the digest of its counters is known
    value: str  # a known API key by its hash
    #: Values by the names that rules are split by.
    known: Mapping[str, str] = field(default_factory=dict)
    #: The whole IP address.
    address: str | None = None
    #: The hash of the key; of a row if it has that.
    api_key: str | None = None
    #: The text for an API key in URLs.
    open_api_key: str = ""
    #: Why the API key does not count as an identity; empty = it does, or is none.
    unknown: str = ""
    #: The row of the user; `None` = there is none, or another kind of caller.
    user: Any = None
    #: The row of the customer: the caller itself, or that of a user or an API key; `None` = there is none.
    customer: Any = None
    #: It is identified by a key that must not be in a URL or be stored.
    is_secret: bool = False
    #: The slug in the reference from the input.
    rule: str = ""

    @property
    def open_value(self) -> str:
        """The value that identifies the caller in a URL, together with the kind. Empty for a secret one."""
        if self.kind == "user":
            return by_key(self.value)
        return self.open_api_key if self.kind == "api_key" else whole(self.value)

    @property
    def owner(self) -> str:
        """What API_KEY_RESOLVER returned for the key or keys, which share their counters; "" if it is the key's row."""
        is_row = self.api_key is not None and self.open_api_key.startswith(RESOLVED)
        return self.value if self.kind == "api_key" and self.value != self.api_key and not is_row else ""

    @property
    def is_one_key(self) -> bool:
        """True if this is one key of an owner, who may have several."""
        return bool(self.owner) and self.api_key is not None

    @property
    def is_unknown_row(self) -> bool:
        """True if the input is a user or customer that is not in the database."""
        return self.kind in ("user", "customer") and getattr(self, self.kind) is None

    @property
    def is_everybody(self) -> bool:
        """True if this is the digest of all callers together, in rules that are not split."""
        return self.kind == "digest" and self.value == everybody()

    @property
    def is_nobody(self) -> bool:
        """True if this is the digest of all requests that lack the value that a rule is split by."""
        return self.kind == "digest" and self.value == missing()

    @property
    def is_unreadable(self) -> bool:
        """True if this is the digest of all requests whose body cannot be read."""
        return self.kind == "digest" and is_of_unreadable(self.value)

    def value_of(self, name: str) -> str | None:
        """Return the caller's value for a name that rules are split by; `None` = it is not known."""
        if name not in self.known and name.startswith("ip/"):
            return network_around(self.address, name)
        return self.known.get(name)

    def partition(self, names: Collection[str]) -> str | None:
        """Return the value that splits the counters of rules by these names; `None` = one of them is not known."""
        known = [(name, value) for name in names if (value := self.value_of(name)) is not None]
        return encode_partition(known) if len(known) == len(names) else None

    def missing(self, rule: RuleRecord) -> list[str]:
        """Return the names that this rule is split by and that are not known for the caller."""
        if self.kind == "digest":
            return []
        return [name for name in rule.partition_by if self.value_of(name) is None]

    def digest_for(self, rule: RuleRecord) -> str | None:
        """Return the caller's digest in the names of a rule's counters; `None` = not known.

        For an address, also if the rule is split by another value, but counts requests without that by address.
        By a rule with exact usage it has a tail, whatever REVEAL is.
        """
        if self.kind == "digest" and rule.partition_by:
            return self.value
        value = self.partition(rule.partition_by)
        if value is None and self.stands_in(rule):
            value = self.partition(("ip",))
        if value is not None and rule.exact_usage:
            return keyed_digest(settings.HASH_KEY, value, partition_names(value))
        return None if value is None else digest(value)

    def stands_in(self, rule: RuleRecord) -> bool:
        """Return whether the rule counts the caller by address because another value is missing."""
        return rule.missing_partition == "ip" and self.kind == "ip" and bool(self.missing(rule))

    def digests_by(self, names: Collection[str]) -> list[str]:
        """Return the digests of the caller as counted by these names; none if a value is not known."""
        if self.kind == "digest":
            return [self.value]
        value = self.partition(names)
        return [] if value is None else digests(value)

    @property
    def digest(self) -> str:
        """The digest of the caller alone, as in reports, logs and the names of keys in Redis."""
        if self.kind == "digest":
            return self.value
        if self.kind in self.known:
            return digest(encode_partition([(self.kind, self.known[self.kind])]))
        return digest(encode_partition(self.known.items()))

    def __str__(self) -> str:
        """Return the caller as text that may be stored: no address or key, but the start of the digest."""
        rows = {"user": _("user %s"), "customer": _("customer %s")}
        if self.kind in rows:
            return rows[self.kind] % self.value
        labels = {"api_key": _("API key"), "ip": _("address"), "partition": _("partition"), "digest": _("caller")}
        return f"{labels[self.kind]} {str(self.api_key if self.is_one_key else self.digest)[:8]}…"


def caller_of(kind: str, value: str, others: Iterable[str] = (), *, must_count: bool = True) -> Caller:
    """Return the caller of this kind. others: more known partitions, such as "header:X-Org=acme".

    A user is found by primary key or login name; "id:42" and "name:42" say which. An API key is the key, its hash, or
    "value:" and the result of API_KEY_RESOLVER. A "reference" is that of a rejection; only the digest of its caller
    is known. must_count: an API key that is no identity is an error. Raises UnknownCaller; for a reference
    EngineUnavailable, too.
    """
    value = value.strip()
    if kind == "reference":
        return _caller_of_reference(value)
    if not value or len(value) > MAX_TEXT or "\0" in value:
        raise UnknownCaller(_("Enter who the caller is."))
    if kind == "digest":
        if not (_DIGEST.fullmatch(value) or is_alias(value)):
            raise UnknownCaller(_("This is not the digest of a caller. A digest has 22 letters, digits, “-” and “_”."))
        return Caller(kind, alias_of(value))
    if kind not in KINDS:
        values = {"kind": kind, "kinds": ", ".join((*KINDS, "digest", "reference"))}
        raise UnknownCaller(_("%(kind)r is unknown; choose one of %(kinds)s.") % values)
    parts = parts_of(value) if kind == "partition" else {kind: value}
    if parts.keys() == {"customer"}:  # a page of its own, however it is named
        kind, value = "customer", parts["customer"]
    for text in others:
        for name, known in parts_of(text).items() if text.strip() else ():
            parts.setdefault(name, known)
    caller = _caller(kind, value, parts)
    if caller.unknown and must_count:
        raise UnknownCaller(caller.unknown)
    return caller


def named(caller: Caller, reader: Any = None, others: Iterable[str] = ()) -> Caller:
    """Return the caller of a digest by the name that this user may see (`None` = may see all).

    The same if the name cannot be read, or is no identity any more: reports say that.
    """
    if caller.kind != "digest":
        return caller
    name = revealed_to(reader, [with_tail(caller.value)]).get(caller.value)
    found = _kind_and_value(name) if name else None
    by_name = caller_of(*found, others, must_count=False) if found else caller
    return caller if by_name.unknown else replace(by_name, rule=caller.rule)


def _kind_and_value(name: Name) -> tuple[str, str] | None:
    """Return the input of `caller_of` for a name; `None` for a credential, which must not be in a URL."""
    if name.kind == "user":
        return "user", by_key(name.value)
    if name.kind == "api_key":
        return "api_key", name.value if settings.API_KEY_RESOLVER is None else f"{RESOLVED}{name.value}"
    if name.kind in ("ip", "customer"):
        return name.kind, name.value
    text = name.value if name.kind == "partition" else encode_partition([(name.kind, name.value)])
    return None if any(map(is_secret, partition_names(text))) else ("partition", text)


def _caller_of_reference(text: str) -> Caller:
    """Return the caller of a rejection's reference, which may be in the text of a whole response."""
    reference = parse_reference(text, known_rules())
    if reference is None:
        raise UnknownCaller(_("This is not the reference of a rejection. Enter it as “export#eJL8d1F2”."))
    digests = digests_of(reference)
    if not digests:
        text = _("No recent rejection by the rule %(rule)s has this reference. Ask who the caller is.")
        raise UnknownCaller(text % {"rule": reference.rule})
    if len(digests) > 1:
        raise UnknownCaller(_("Several callers match. Enter one of their digests: %s") % ", ".join(digests))
    return Caller("digest", digests[0], rule=rules_of(reference)[0])


def parts_of(text: str) -> dict[str, str]:
    """Return the values by name in a partition as text: "user:7|ip:192.0.2.7", "header:X-Org=acme"."""
    found: dict[str, str] = {}
    for part in text.strip().split("|"):
        match = _PART.fullmatch(part.strip()) if "\0" not in part and len(part) <= MAX_TEXT else None
        if match is None or not is_identity(match[1]):
            raise UnknownCaller(_("Enter a kind of value and the value, such as “user:42” or “header:X-Org=acme”."))
        if not has_identity(match[1]):
            raise UnknownCaller(unknown_identity(match[1]))
        found[match[1]] = match[2].replace("%7C", "|").replace("%25", "%").strip()
    return found


def _caller(kind: str, value: str, parts: Mapping[str, str], row: Any = None, customer: Any = None) -> Caller:
    """Return the caller, with each value as a request would have it. row: of a user or key. `None` = not known."""
    known = {name: spelled(name, value) for name, value in parts.items()}
    if len(known.get("session", "")) > MAX_SESSION_KEY:  # it would be that of a request, and is another
        raise UnknownCaller(_("This is the content of a session, not its key. Look for a digest or a reference."))
    address, key, user = None, _Key("", None, ""), row if kind == "user" else None
    if "user" in known:
        known["user"], user = (known["user"], user) if user else _user_of(known["user"])
    if "ip" in known:
        known["ip"], address = _addresses(known["ip"])
    if "api_key" in known:
        key = _api_key(known["api_key"])
        known["api_key"] = key.value
        if key.hashed is None:
            row = row if kind == "api_key" and row else rows_named([key.value]).get(key.value)
            key = key._replace(hashed=_hash_in(row))
    if "customer" in known:
        customer = customer or row_of(known["customer"])
    elif kind in ("user", "api_key") and settings.CUSTOMER:
        customer = _customer_of(known, key.hashed, user)
        known |= {"customer": value_of(customer)} if customer is not None else {}
    typed = parts_of(value) if kind == "partition" else {kind: value}
    is_hidden = kind != "api_key" and (any(map(is_secret, typed)) or typed.get("api_key", key.opened) != key.opened)
    if kind != "partition" and kind in known:
        value = known[kind]
    return Caller(kind, value, known, address, key.hashed, key.opened, key.unknown, user, customer, is_hidden)


def _hash_in(row: Any) -> str | None:
    """Return the hash of an API key in its row; `None` = it has none, or several."""
    found = [each for each in vars(row).values() if isinstance(each, str) and is_hash(each)] if row else []
    return found[0] if len(found) == 1 else None


def _customer_of(known: Mapping[str, str], api_key: str | None, user: Any) -> Any:
    """Return the row of the customer of this user or API key; `None` = there is none, or CUSTOMER fails."""
    try:
        identity = CallerIdentity(known.get("user"), api_key, lambda name: user if name == "user" else known.get(name))
        return identity.customer if of_row(identity.customer) else None
    except Exception as error:  # the project's own code
        logger.error("RATELIMITER['CUSTOMER'] failed, so a caller is shown without it: %s", raised_at(error))
        return None


def member_in(pair: Any, model: type[Model] | None) -> tuple[str, str]:
    """Return kind and value of a caller, as rules count by it, from a pair of CUSTOMER_CALLERS.

    model: of the rows of API keys, if it is known. Whether the caller exists is not looked up. Raises UnknownCaller.
    """
    kind, given = pair if isinstance(pair, tuple) and len(pair) == 2 else (type(pair).__name__, None)
    if given in (None, "") or kind == "customer":
        raise UnknownCaller(_unread(kind, "", _('give pairs such as ("user", 42).')))
    given = given.pk if kind == "user" and isinstance(given, get_user_model()) else given
    text = row_key(given) if isinstance(given, Model) else str(given)
    if kind == "user":
        return kind, text if ":" in text else user_key(text)
    if kind != "api_key":
        return str(kind), text
    value = text.removeprefix(RESOLVED)
    if settings.API_KEY_RESOLVER is None:
        return kind, value if is_hash(value) else hash_api_key(value)
    if is_hash(text) or not (model or isinstance(given, str | Model)):
        why = only_a_hash() if is_hash(text) else _("give a row, or annotate what API_KEY_RESOLVER returns.")
        raise UnknownCaller(_unread(kind, text, why))
    return kind, value if model is None or names_row(value) else f"{model._meta.label}:{value}"


def members_of(customer: Caller, named: Collection[tuple[str, str]]) -> tuple[list[Caller], list[str]]:
    """Return these callers of a customer, see `member_in`, and in words which others cannot be read, and why.

    One query for each model of their rows.
    """
    keys, keyed = row_keys(named), key_model()
    rows = rows_named(keys.values())
    found, unread = [], []
    for kind, value in named:
        key, is_alone = keys.get((kind, value), ""), kind in ("user", "api_key", "ip")
        text = f"{RESOLVED}{value}" if kind == "api_key" else value if is_alone else f"{kind}={value}"
        try:
            wanted = (kind == "api_key" and keyed) or Model
            is_known = isinstance(row := rows.get(key), wanted) or not names_row(key)
            if kind == "api_key" and settings.API_KEY_RESOLVER is None:
                is_known = is_known_api_key(value)
            if not is_known:
                raise UnknownCaller(_("it is not known."))
            parts = {**({kind: text} if is_alone else parts_of(text)), "customer": customer.value}
            own = kind if is_alone else "partition"
            found.append(_caller(own, text, parts, row, customer.customer))
        except UnknownCaller as error:
            unread.append(_unread(kind, value, error))
    return found, unread


def _unread(kind: object, value: str, why: object) -> str:
    """Return that a caller cannot be read; of what may be a secret only the start."""
    label, colon, rest = value.rpartition(":")
    if kind != "user" and not (rest.isdecimal() and len(rest) < 12):
        rest = rest and f"{rest[: min(4, len(rest) // 4)]}…"
    return _("%(who)s cannot be read: %(why)s") % {"who": f"{kind} {label}{colon}{rest}".strip(), "why": why}


def open_parts(texts: Iterable[str]) -> tuple[dict[str, str], bool]:
    """Return the parts that may be in a URL, API keys by their hash, and whether these are all."""
    parts: dict[str, str] = {}
    for text in texts:
        parts |= parts_of(text)
    opened = {name: value for name, value in parts.items() if not is_secret(name)}
    is_all = len(opened) == len(parts)
    if "api_key" in opened:
        opened["api_key"] = _api_key(opened["api_key"]).opened
    return opened, is_all


def _user_of(text: str) -> tuple[str, Any]:
    """Return the value that rules count by, and the user; `None` = there is none, or not any more."""
    user = find_user(text)
    if user is not None:
        return user_key(user.pk), user
    prefix, colon, rest = text.partition(":")
    if colon and prefix == "name":
        raise UnknownCaller(_("No user has this login name."))
    key = rest if colon and prefix in ("id", "pk") else text
    return (key if ":" in key else user_key(key)), None


def _addresses(text: str) -> tuple[str, str]:
    """Return the value that rules count by, and the whole address, for an address or network."""
    request = HttpRequest()
    request.META["REMOTE_ADDR"] = text.partition("/")[0]
    ip, address = client_ip(request), client_address(request)
    if ip is None or address is None:
        raise UnknownCaller(_("This is not an IP address."))
    return ip, address


class _Key(NamedTuple):
    """An API key. value: what rules count by. opened: the text for URLs. unknown: why it is no identity."""

    value: str
    hashed: str | None
    opened: str
    unknown: str = ""


def _api_key(text: str) -> _Key:
    """Return the key for a text: the key, its hash, the result of API_KEY_RESOLVER, or what stands for it in URLs."""
    found = text.removeprefix(RESOLVED)
    hashed = hash_api_key(text if settings.API_KEY_RESOLVER else found)
    if settings.API_KEY_RESOLVER is None:
        known = found if is_hash(found) and (found != text or not is_known_api_key(hashed)) else hashed
        return _Key(known, known, known)
    if found not in ("", text):
        return _Key(found, None, text)
    if one := _ONE_OF.fullmatch(text):
        return _Key(one[2], one[1], text)
    try:
        resolved = find_api_key(text) if len(text) <= MAX_API_KEY and text.isascii() else None
    except OwnCodeFailed as error:
        raise UnknownCaller(_("Whether this key is known cannot be found out: %s") % error) from None
    if resolved is not None:
        return _Key(resolved, hashed, f"key:{hashed}:{resolved}")
    if is_hash(text):
        more = _("Enter the key, or “value:” and what API_KEY_RESOLVER returns for it.")
        return _Key(text, text, text, f"{only_a_hash()} {more}")
    why = _("This key is not known: API_KEY_RESOLVER returned None. So it does not count as an identity.")
    return _Key(hashed, hashed, hashed, why)


def only_a_hash() -> str:
    """Return why the hash of a key does not say who it is, with API_KEY_RESOLVER."""
    return _("This is the hash of a key, and API_KEY_RESOLVER takes the key itself, so who it is cannot be found out.")
