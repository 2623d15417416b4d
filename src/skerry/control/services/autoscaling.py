"""How many copies a service should have by its load: recommendations, stabilized over time. Pure.

A recommendation is so many copies that each would have the target's share of the load there is now. One that
is higher counts when all of the last `up_after_s` called for more, one that is lower when all of the last
`down_after_s` called for fewer: so that a short burst and a short lull change nothing. All go when none
was called for in the last `idle_s`, if the policy allows none. While the load is not known, nothing counts.
"""

from __future__ import annotations

import math
from collections import deque

import msgspec

from skerry.model.services import AutoscalePolicy, ScalingMetric, Service

# A load this near to the target is on target, as a share of it.
_TOLERANCE = 0.1
# Without a recommendation for so long, earlier recommendations do not cover the time in between.
_LONGEST_GAP_S = 30.0


class ServiceLoad(msgspec.Struct, frozen=True, array_like=True):
    """What the ready copies of a service use together, as far as it was reported."""

    copies: int = 0
    cpu: int = 0  # thousandths of a processor
    memory: int = 0  # MB
    metered: int = 0  # copies that show a metric
    metric: float = 0.0
    edges: int = 0  # edge nodes that count requests
    requests: float = 0.0

    def __add__(self, other: ServiceLoad) -> ServiceLoad:
        return ServiceLoad(
            self.copies + other.copies,
            self.cpu + other.cpu,
            self.memory + other.memory,
            self.metered + other.metered,
            self.metric + other.metric,
            self.edges + other.edges,
            self.requests + other.requests,
        )


NO_LOAD = ServiceLoad()


def measure(service: Service, policy: AutoscalePolicy, load: ServiceLoad) -> float | None:
    """The load of all copies together in the unit of the target; None if nothing is known."""
    limits = service.target.template.resources
    match policy.metric:
        case ScalingMetric.CPU:
            return 100.0 * load.cpu / limits.cpu if load.copies and limits.cpu else None
        case ScalingMetric.MEMORY:
            return 100.0 * load.memory / limits.memory if load.copies and limits.memory else None
        case ScalingMetric.CUSTOM:
            return load.metric if load.metered and math.isfinite(load.metric) else None
        case ScalingMetric.REQUESTS:
            return load.requests if load.edges else None


def recommend(service: Service, policy: AutoscalePolicy, load: ServiceLoad) -> int | None:
    """How many copies this load calls for; None if nothing is known."""
    total = measure(service, policy, load)
    if total is None:
        return None
    replicas = max(1, service.replicas)
    if policy.metric is ScalingMetric.REQUESTS and not service.replicas and total:
        return max(1, policy.min)  # a copy that starts again; how many more shows when it is there
    if abs(total / replicas / policy.target - 1.0) <= _TOLERANCE:
        return _clamp(service.replicas, policy)
    return _clamp(math.ceil(max(0.0, total) / policy.target), policy)


class ScalingHistory:
    """The recommendations for one service, as far back as they matter."""

    def __init__(self) -> None:
        self._since: float | None = None  # since when there have been some without a gap
        self._made: deque[tuple[float, int]] = deque()
        self._replicas = 0  # at the last recommendation

    def add(self, policy: AutoscalePolicy, replicas: int, wanted: int, now: float) -> int:
        """Take a recommendation; returns how many copies there should be now."""
        is_woken, self._replicas = bool(self._made and not self._replicas and replicas), replicas
        # Also if the clock was set back. A service that requests have just started is not idle.
        if self._since is None or is_woken or not 0.0 <= now - self._made[-1][0] <= _LONGEST_GAP_S:
            self._made.clear()
            self._since = now
        self._made.append((now, wanted))
        longest = max(policy.up_after_s, policy.down_after_s, policy.idle_s)
        while self._made and self._made[0][0] < now - longest:
            self._made.popleft()
        up = min(self._within(now, policy.up_after_s), default=replicas)
        if up > replicas:
            return up
        if self._is_idle(policy, now):
            return 0
        down = max(self._within(now, policy.down_after_s), default=replicas)
        if down < replicas:
            return max(down, min(1, replicas))  # the last one goes when it is idle
        return _clamp(replicas, policy)

    def _is_idle(self, policy: AutoscalePolicy, now: float) -> bool:
        """True if there was nothing to do for the time after which the last copy goes."""
        return policy.min == 0 and max(self._within(now, policy.idle_s), default=1) == 0

    def _within(self, now: float, window_s: float) -> list[int]:
        """The recommendations of a window; none if it has not been watched for so long."""
        if self._since is None or now - self._since < window_s:
            return []
        return [wanted for at, wanted in self._made if at >= now - window_s]


def _clamp(replicas: int, policy: AutoscalePolicy) -> int:
    return min(policy.max, max(policy.min, replicas))
