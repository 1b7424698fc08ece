"""Serializers of the responses about callers and requests. Field names are contract; schemas are made from these."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers


class RateLimitCallerNameSerializer(serializers.Serializer[Any]):
    """The caller's name."""

    kind = serializers.CharField()
    value = serializers.CharField(help_text="A known API key by its hash.")
    digest = serializers.CharField(help_text="As in reports, logs and Redis key names.")


class RateLimitCallerAccessSerializer(serializers.Serializer[Any]):
    """The access entry that applies."""

    action = serializers.CharField(help_text="allow or deny.")
    until = serializers.DateTimeField(allow_null=True, help_text="null = until it is deleted.")
    reason = serializers.CharField()


class RateLimitCallerTierSerializer(serializers.Serializer[Any]):
    """A caller's tier, and why."""

    slug = serializers.CharField(allow_null=True)
    multiplier = serializers.CharField(help_text="Times each limit, a decimal number.")
    source = serializers.CharField(  # type: ignore[assignment]
        help_text="assignment, group, default, resolver or nothing."
    )
    assignment = serializers.CharField(allow_null=True, help_text="The primary key of the assignment that applies.")
    until = serializers.DateTimeField(allow_null=True)
    reason = serializers.CharField()


class RateLimitCounterSerializer(serializers.Serializer[Any]):
    """One counter of a caller, in its current state."""

    name = serializers.CharField(help_text="The name of the counter in acts.")
    rule = serializers.CharField()
    mode = serializers.CharField()
    limit = serializers.CharField(help_text="In words.")
    capacity = serializers.IntegerField(help_text="Units.")
    used = serializers.IntegerField(allow_null=True, help_text="Units; null = not known.")
    left = serializers.IntegerField(allow_null=True)
    full_in = serializers.FloatField(allow_null=True, help_text="Seconds until the full quota is back.")
    blocked = serializers.BooleanField(
        allow_null=True,
        help_text="null = not known: of a digest, and of a user whom only rules in `before_login` reject.",
    )
    blocked_until = serializers.DateTimeField(
        allow_null=True, help_text="null = not blocked, or blocked without an end."
    )
    shared = serializers.BooleanField(help_text="All callers share this counter.")
    leases = serializers.BooleanField(help_text="It counts requests in progress.")


class RateLimitUnreadSerializer(serializers.Serializer[Any]):
    """A rule whose counters need more values of the caller."""

    rule = serializers.CharField()
    missing = serializers.ListField(child=serializers.CharField())


class RateLimitRejectionSerializer(serializers.Serializer[Any]):
    """Requests of the caller that a rule has rejected recently."""

    rule = serializers.CharField()
    at = serializers.DateTimeField(help_text="The time of the last one.")
    since = serializers.DateTimeField(help_text="The time of the first one.")
    times = serializers.IntegerField()
    is_estimate = serializers.BooleanField(help_text="Some may have been missed.")
    tier = serializers.CharField(help_text="The tier of the caller at that time; empty = none.")
    reference = serializers.CharField(help_text="The reference in the responses.")
    shadow = serializers.BooleanField(help_text="They would have been rejected if the rule were enforced.")


class RateLimitDenialSerializer(serializers.Serializer[Any]):
    """Requests of the caller to one view that an access entry has denied recently."""

    entry = serializers.IntegerField(allow_null=True, help_text="The primary key of the entry; null = it had none.")
    kind = serializers.CharField(help_text="What the entry is about: ip, user or api_key.")
    view = serializers.CharField(help_text="The name of the view; empty = not known.")
    at = serializers.DateTimeField(help_text="The time of the last one.")
    since = serializers.DateTimeField(help_text="The time of the first one.")
    times = serializers.IntegerField()


class RateLimitLogSerializer(serializers.Serializer[Any]):
    """An act of an operator for the caller."""

    at = serializers.DateTimeField()
    by = serializers.CharField()
    text = serializers.CharField()


class RateLimitCallerSerializer(serializers.Serializer[Any]):
    """A caller: its tier and why, and the current state of all counters."""

    caller = RateLimitCallerNameSerializer()
    enforced = serializers.BooleanField(help_text="false while all enforcement is stopped.")
    blocked = serializers.BooleanField(
        allow_null=True,
        help_text="null = not known: of a digest, and of a user whom only rules in `before_login` reject.",
    )
    blocked_scopes = serializers.ListField(
        child=serializers.CharField(),
        help_text="Rules for a scope that no view names, which now reject tasks and other code that ask for it.",
    )
    access = RateLimitCallerAccessSerializer(allow_null=True)
    tier = RateLimitCallerTierSerializer()
    hidden = serializers.ListField(child=serializers.CharField(), help_text="What you may not view.")
    counters = RateLimitCounterSerializer(many=True)
    before_login = RateLimitCounterSerializer(
        many=True,
        help_text="Of rules that have other limits where a REST framework view checks a token itself: what they decide "
        "by then. `blocked_until` is the latest possible time.",
    )
    unread = RateLimitUnreadSerializer(many=True)
    unlimited = serializers.ListField(child=serializers.CharField(), help_text="Rules without a limit for the tier.")
    rejections = RateLimitRejectionSerializer(many=True)
    denials = RateLimitDenialSerializer(many=True, help_text="Empty if you may not view access entries.")
    log = RateLimitLogSerializer(many=True)
    problem = serializers.CharField(help_text="Why Redis could not be reached; empty = it was reached.")


class RateLimitLeaseSerializer(serializers.Serializer[Any]):
    """A lease."""

    began_us = serializers.IntegerField(help_text="Microseconds since 1970. Send it to end this lease.")
    began_at = serializers.DateTimeField()
    ends_at = serializers.DateTimeField(help_text="At the latest.")


class RateLimitLeasesSerializer(serializers.Serializer[Any]):
    """The leases of a counter, the oldest first."""

    leases = RateLimitLeaseSerializer(many=True)
    most = serializers.IntegerField(help_text="The maximum number of leases that are listed.")


class RateLimitOutcomeSerializer(serializers.Serializer[Any]):
    """The outcome of an act."""

    changed = serializers.BooleanField(help_text="False = an act with this number was already started.")
    took = serializers.BooleanField(help_text="Whether a check afterwards found it in force.")
    text = serializers.CharField()


class RateLimitExplainedCounterSerializer(serializers.Serializer[Any]):
    """One limit of a rule that applies, and its counter before the request."""

    words = serializers.CharField()
    key = serializers.CharField(help_text="Its name in Redis.")
    digest = serializers.CharField()
    quota = serializers.IntegerField()
    cost = serializers.IntegerField()
    used = serializers.IntegerField(allow_null=True)
    left = serializers.IntegerField(allow_null=True)
    allowed = serializers.BooleanField(allow_null=True, help_text="Whether the request would pass; null = not known.")
    reset_at = serializers.DateTimeField(allow_null=True)
    retry_at = serializers.DateTimeField(allow_null=True)
    never = serializers.BooleanField()
    soft_exceeded = serializers.BooleanField()
    delay = serializers.FloatField(help_text="Seconds.")


class RateLimitExplainedRuleSerializer(serializers.Serializer[Any]):
    """What a rule decides for the request."""

    rule = serializers.CharField()
    mode = serializers.CharField()
    applies = serializers.BooleanField()
    reason = serializers.CharField(help_text="A code for the first condition that does not hold; empty = it applies.")
    why = serializers.CharField(help_text="The same in words.")
    missing = serializers.ListField(child=serializers.CharField())
    door = serializers.CharField(help_text="Who asks: middleware, throttle, scope, rate or gateway.")
    rows = serializers.CharField(help_text="The tier whose limits apply; empty = those of every other tier.")
    value = serializers.CharField(help_text="The identities that split its counters.")
    rejects = serializers.BooleanField(allow_null=True, help_text="In shadow: it would; null = you may not see it.")
    counters = RateLimitExplainedCounterSerializer(many=True)


class RateLimitExplainedResponseSerializer(serializers.Serializer[Any]):
    """What the caller would get."""

    allowed = serializers.BooleanField()
    status = serializers.IntegerField(allow_null=True, help_text="null = the view's own.")
    fields = serializers.DictField(child=serializers.CharField())  # type: ignore[assignment]
    body = serializers.CharField()
    is_ours = serializers.BooleanField()
    binding = serializers.CharField(help_text="The rule that decides.")
    delay = serializers.FloatField()
    degraded = serializers.BooleanField()
    error = serializers.CharField(help_text="What the view's code raised, if it is not known how that is answered.")


class RateLimitLoggedRejectionSerializer(serializers.Serializer[Any]):
    """The rejection that a question's reference names. digest: the start of the caller's digest."""

    rules = serializers.ListField(child=serializers.CharField())
    rule = serializers.CharField()
    digest = serializers.CharField(allow_blank=True)
    found = serializers.BooleanField(
        allow_null=True, help_text="One of the counters is the one that rejected; null = you may not see it."
    )


class RateLimitExplanationSerializer(serializers.Serializer[Any]):
    """Why the limiter allows or rejects a request."""

    request = serializers.DictField(child=serializers.CharField())
    version = serializers.IntegerField()
    bypass = serializers.CharField(help_text="Why no rule is looked at; empty = rules are.")
    access = serializers.DictField(allow_null=True, help_text="The access entry that decides.")
    doors = serializers.ListField(child=serializers.CharField())
    tier = serializers.DictField(help_text="kind = why; empty = there are no tiers, or you may not see it.")
    identities = serializers.DictField(child=serializers.CharField(allow_null=True))
    unknown = serializers.ListField(child=serializers.CharField(), help_text="Values that matter and are not known.")
    doubts = serializers.ListField(child=serializers.CharField())
    hidden = serializers.ListField(child=serializers.CharField(), help_text="What you may not view.")
    rules = RateLimitExplainedRuleSerializer(many=True)
    left_out = serializers.ListField(child=serializers.DictField(), help_text="Rules that are not in force at all.")
    response = RateLimitExplainedResponseSerializer(allow_null=True, help_text="null = you may not see it.")
    logged = RateLimitLoggedRejectionSerializer(allow_null=True, help_text="The rejection that the reference names.")
