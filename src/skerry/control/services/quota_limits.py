"""Plans of services under the quota of their namespace: copies that would be refused are not planned. Pure.

Between `skerry.control.services.decisions` and the writer of plans. The service says why a copy is missing;
when more fits again, its controller decides anew.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from skerry.control.namespaces.usage import instance_use
from skerry.control.services.decisions import NewCopy, ServicePlan
from skerry.control.services.rollouts import ServiceEvent
from skerry.model.namespaces import NOTHING, QuotaAmounts

# Why so much more is refused if so much is given up with it; empty if it is not.
Refusal = Callable[[QuotaAmounts, QuotaAmounts], str]


def limit(plan: ServicePlan, refusal: Refusal, use: Callable[[NewCopy], QuotaAmounts]) -> None:
    """Leave out the copies of `plan` from the first that does not fit on; `use` is what a new one needs, with
    its volumes."""
    if plan.is_removed or not (plan.creates or plan.service.quota_message):
        return
    message = ""
    freed = sum((instance_use(copy)[1] for copy in plan.destroys), start=NOTHING)
    for position, new in enumerate(plan.creates):
        one = use(new)
        if message := refusal(one, freed):
            del plan.creates[position:]
            break
        freed -= one
    if message == plan.service.quota_message:
        return
    if not plan.service.quota_message:
        plan.events.append(ServiceEvent("quota-exceeded", message, {}))
    plan.service = replace(plan.service, quota_message=message)
