"""Signals that projects may connect to, and one for the package itself."""

from __future__ import annotations

from django.dispatch import Signal

#: A request was rejected. Sent once per request, with `request` and `decision`.
limit_exceeded: Signal = Signal()

#: An allowed request exceeded the soft quota of an enforced limit. Sent once per window and partition, with
#: `request` and `result`; its verdict and limit have the details.
soft_limit_exceeded: Signal = Signal()

#: A partition has used 80 or 100 percent of an enforced limit. Sent once per window, partition and percentage,
#: with `request`, `result` and `percent`. A request that exceeds both at once sends only 100.
quota_reached: Signal = Signal()

#: Requests are decided without the engine, by each rule's failure policy. Sent with `error` by each process, at most
#: once in 10 seconds.
engine_degraded: Signal = Signal()

#: A rule has begun to reject more than a given share of the requests that it matches. Sent by a collector, once per
#: episode, with `rule`, its slug, and the requests `rejected` of all `requests` in the last `minutes`.
rejection_rate_exceeded: Signal = Signal()

#: Collecting usage has fallen behind. Sent by a collector, once per episode, with `seconds`, the time since the oldest
#: waiting minute ended, and `batches`, the number of usage batches that wait.
collector_behind: Signal = Signal()

#: This process has begun to use another version of the rule set, also its first one. Sent with `version`.
rules_changed: Signal = Signal()

#: Internal: a version was committed in this process.
rules_committed: Signal = Signal()
