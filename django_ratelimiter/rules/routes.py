"""The views of a URL conf, by the routes and names that rules use, and rules that name no view."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.urls import Resolver404, ResolverMatch, URLResolver, get_resolver, resolve
from django.utils import translation
from django.utils.translation import gettext_lazy

from ..conf import django_setting
from ..values.bounds import closest
from .records import Facts, RuleRecord

if TYPE_CHECKING:
    from ..models import Rule

#: The literal start of a route: up to a parameter or a special character of a regular expression.
_START: Final = re.compile(r"(?:[^<(\[\\^$?*+{|]|\\[^A-Za-z0-9])*")
#: The methods of Django and DRF that answer `OPTIONS` without a handler of the project.
_ANSWERING: Final = {
    f"{cls}.{method}"
    for cls in ("django.views.generic.base.View", "rest_framework.views.APIView")
    for method in ("dispatch", "options")
}


#: What names views.
Target: TypeAlias = "RuleRecord | Rule"

#: The text about a scope that no view has: any code may name it.
NO_SUCH_SCOPE: Final = gettext_lazy(
    "No view names the scope “%(name)s”, so this rule applies only where other code does, with limiter.check, "
    "limiter.charge, limiter.slot or in_slot."
)


class UnknownName(NamedTuple):
    """A name in a rule that no view has.

    field: route, view_name or scope. Any code may name a scope, so an unknown scope may be right.
    """

    field: str
    name: str

    @property
    def close(self) -> str:
        """The most similar name of a view; empty = none is similar. First choice: one that only begins differently."""
        names = _view_names(django_setting("ROOT_URLCONF"))[self.field]
        longer = [each for each in names if each.endswith((f":{self.name}", f"/{self.name}"))]
        return min(longer) if longer else closest(self.name, sorted(names), cutoff=0.75)


class View(NamedTuple):
    """A view of the URL conf under one of its routes.

    scopes: from its decorators or its DRF class; its code may name others. start: its
    path up to the first part that varies. varies: whether there is such a part, so that its paths are not known in
    advance.
    """

    name: str
    route: str
    scopes: tuple[str, ...]
    start: str
    varies: bool

    def may_match(self, rule: Target) -> bool:
        """Return whether the rule may match a request to it; for an exact path only if the route does not vary."""
        if rule.view_name not in ("", self.name) or (rule.scope and rule.scope not in self.scopes):
            return False
        kind, path = rule.path_kind, rule.path
        if kind == "route":
            return self.route == path
        if kind == "prefix":
            return self.start.startswith(path) or (self.varies and path.startswith(self.start))
        return kind == "any" or (kind == "exact" and not self.varies and self.start == path)


def unknown_names(rule: Target) -> list[UnknownName]:
    """Return the names in this rule that no view of ROOT_URLCONF has; empty without a ROOT_URLCONF."""
    urlconf = django_setting("ROOT_URLCONF")
    named = {
        "route": rule.path if rule.path_kind == "route" else None,
        "view_name": rule.view_name or None,
        "scope": rule.scope or None,
    }
    if not urlconf or not any(name is not None for name in named.values()):
        return []
    names = _view_names(urlconf)
    return [UnknownName(field, name) for field, name in named.items() if name is not None and name not in names[field]]


@lru_cache(maxsize=10)
def _view_names(urlconf: Any) -> Mapping[str, Collection[str]]:
    """Return the names of views, by the field of a rule."""
    views = _views(urlconf)
    return {
        "route": {view.route for view in views},
        "view_name": {view.name for view in views},
        "scope": {scope for view in views for scope in view.scopes},
    }


def views() -> tuple[View, ...]:
    """Return the views of ROOT_URLCONF, in its order, with each route in each language; empty if it is not set."""
    urlconf = django_setting("ROOT_URLCONF")
    return _views(urlconf) if urlconf else ()


def views_of(rule: Target) -> list[View]:
    """Return the views whose requests this rule may match, whatever the method."""
    found = [view for view in views() if view.may_match(rule)]
    return found or (_resolved(rule) if rule.path_kind == "exact" else [])


def matched_with(rule: RuleRecord, others: Iterable[RuleRecord]) -> set[str]:
    """Return the slugs of those of these rules that also match each request for a view that this rule matches."""
    found, methods = views_of(rule), rule.methods or ("",)
    facts = [Facts(method, view.start, view.route, view.name, rule.scope) for view in found for method in methods]
    # The start of a path that varies is not a whole one.
    able = [each for each in others if each.path_kind != "exact" or not any(view.varies for view in found)]
    return {each.slug for each in able if facts and not any(map(each.mismatch, facts))}


def _resolved(rule: Target) -> list[View]:
    """Return the view of this rule's exact path, if it has the rule's name and scope."""
    try:
        match = resolve(rule.path, django_setting("ROOT_URLCONF"))
    except (Resolver404, ImproperlyConfigured):
        return []
    view = view_of(match)
    is_its_own = rule.view_name in ("", view.name) and (not rule.scope or rule.scope in view.scopes)
    return [view] if is_its_own else []


@lru_cache(maxsize=10)
def _views(urlconf: Any) -> tuple[View, ...]:
    languages = [code for code, _ in django_setting("LANGUAGES")] if is_translated(urlconf) else [None]
    found: list[View] = []
    for language in languages:
        with translation.override(language or translation.get_language()):
            found += map(view_of, all_views(get_resolver(urlconf)))
    return tuple(dict.fromkeys(found))


def view_of(match: ResolverMatch) -> View:
    """Return the view of a match."""
    route = match.route or ""
    return View(match.view_name, route, scopes_named_by(match.func), *start_of(route))


def start_of(route: str) -> tuple[str, bool]:
    """Return the start that all paths of a route have, and whether they differ after it."""
    text = route.removeprefix("^")
    start = _START.match(text)[0]  # type: ignore[index]  # it always matches, if only ""
    return "/" + re.sub(r"\\(.)", r"\1", start), start != text.removesuffix("$")


def answers_options(view: Any) -> bool:
    """Return whether Django or DRF answers `OPTIONS` for this view, so that no handler of the project runs."""
    if "options" in (getattr(view, "actions", None) or {}):
        return False
    classes = getattr(class_of(view), "__mro__", ())
    named = [vars(cls)[name] for cls in classes for name in ("dispatch", "options") if name in vars(cls)]
    return bool(named) and {_full_name(each) for each in named} <= _ANSWERING


def _full_name(function: Any) -> str:
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"


def class_of(view: Any) -> Any:
    """Return the class of a class-based view, of Django or DRF; `None` = it is a function."""
    return getattr(view, "cls", None) or getattr(view, "view_class", None)


def chosen_classes(view: Any, name: str) -> Any:
    """Return the classes under this name, such as "throttle_classes", of a DRF view, else `()`."""
    chosen = getattr(view, "initkwargs", {}).get(name)
    return getattr(getattr(view, "cls", None), name, None) or () if chosen is None else chosen


def is_of_api_view(cls: Any) -> bool:
    """Return whether `@api_view` of the REST framework made this class, for one function."""
    return getattr(cls, "__qualname__", "") == "WrappedAPIView"


def name_of_class(cls: Any) -> str:
    """Return module and name of a view's class; of the function if `@api_view` made the class for it."""
    return f"{cls.__module__}.{cls.__name__ if is_of_api_view(cls) else cls.__qualname__}"


def parts_of(view: Any) -> list[Any]:
    """Return a view and the methods of its class that may be decorated; `None` for those that it lacks."""
    made_of = class_of(view)
    methods = (*getattr(made_of, "http_method_names", ()), *(getattr(view, "actions", None) or {}).values())
    return [view, *[getattr(made_of, method, None) for method in (*methods, "check_throttles")]]


def throttle_scope(view: Any) -> str | None:
    """Return the `throttle_scope` of a DRF view."""
    chosen: str | None = getattr(view, "initkwargs", {}).get("throttle_scope")
    return chosen or getattr(class_of(view), "throttle_scope", None)


def scopes_named_by(view: Any) -> tuple[str, ...]:
    """Return the scopes of a view: from `@ratelimit`, also on methods of its class, or from `throttle_scope`."""
    found = [scope for each in parts_of(view) for scope in getattr(each, "ratelimit_scopes", ())]
    return tuple(dict.fromkeys(filter(None, (*found, throttle_scope(view)))))


def for_no_view(rules: Iterable[RuleRecord]) -> set[str]:
    """Return the slugs of rules with a scope that no decorator or class of a view in ROOT_URLCONF names.

    Usually these rules apply only to tasks, commands and other code. But code in a view may name any scope.
    """
    if not django_setting("ROOT_URLCONF"):
        return set()
    named = {scope for view in views() for scope in view.scopes}
    return {rule.slug for rule in rules if rule.scope and rule.scope not in named}


def all_views(resolver: URLResolver, route: str = "", names: tuple[str, ...] = ()) -> Iterator[ResolverMatch]:
    """Yield every view of the URL conf, as the match of a request to it."""
    for pattern in resolver.url_patterns:
        joined = route + str(pattern.pattern).removeprefix("^" if route else "")
        if isinstance(pattern, URLResolver):
            yield from all_views(pattern, joined, (*names, pattern.namespace or ""))
        else:
            yield ResolverMatch(pattern.callback, (), {}, pattern.name, namespaces=list(names), route=joined)


@lru_cache(maxsize=100)
def is_translated(urlconf: Any) -> bool:
    """Return whether paths of this site depend on the language: by `i18n_patterns`, or because they are translated.

    Reading the language takes longer than all other tests of a path.
    """
    return any(map(_differs, get_resolver(urlconf).url_patterns))


def _differs(found: Any) -> bool:
    written = getattr(found.pattern, "_route", getattr(found.pattern, "_regex", None))
    return not isinstance(written, str) or any(map(_differs, getattr(found, "url_patterns", ())))


def _forget(**_signal: Any) -> None:
    is_translated.cache_clear()
    _views.cache_clear()
    _view_names.cache_clear()


setting_changed.connect(_forget, dispatch_uid="django_ratelimiter.rules.routes")
