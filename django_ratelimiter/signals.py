"""Signals that projects may connect to, and one for the package itself."""

from __future__ import annotations

from django.dispatch import Signal

#: A request was rejected. Sent once per request, with `request` and `decision`.
limit_exceeded = Signal()

#: An allowed request went beyond the soft quota of an enforced limit. Sent once per window and partition by each
#: process, with `request` and `result`, whose verdict and limit tell the rest.
soft_limit_exceeded = Signal()

#: A partition has spent 80 or 100 percent of an enforced limit. Sent once per window, partition and percentage by each
#: process, with `request`, `result` and `percent`; a request that goes beyond both is told of as 100.
quota_reached = Signal()

#: Requests are decided without the engine, by each rule's failure policy. Sent with `error` by each process, at most
#: once in 10 seconds.
engine_degraded = Signal()

#: A rule has begun to refuse more than a share of the requests that meet it. Sent by a collector, once per episode,
#: with `rule`, its slug, and the requests that it has `denied` of all `requests` in so many `minutes`.
refusal_rate_exceeded = Signal()

#: Collecting usage has begun to be behind. Sent by a collector, once per episode, with the `seconds` since the oldest
#: minute that waits has ended, and the number of `batches` that wait.
collector_behind = Signal()

#: This process has begun to decide by another version of the rule set, its first one included. Sent with `version`.
rules_changed = Signal()

#: For the package itself: a version was committed in this process.
rules_committed = Signal()
