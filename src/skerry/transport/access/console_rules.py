"""Access rules of the web console: a page has the rule of the API route whose objects it shows, and an action
that of the route that does the same. All of them are for console sessions alone.

So `skerry.transport.access.rules` stays the only table that decides who may see and do what, and callers that
are bound to namespaces are confined in pages as they are in the API.
"""

from __future__ import annotations

import msgspec

from skerry.model import errors
from skerry.model.callers import Caller
from skerry.transport.access.rules import HTTP_RULES, OPEN_RULE, AccessRule, authorize

# The API route that decides, by page or action.
DECIDED_BY: dict[str, str] = {
    "GET /console": "GET /about",
    "GET /console/stream": "GET /about",
    "POST /console/logout": "GET /about",
    "GET /console/services": "GET /service/",
    "GET /console/services/{name}": "GET /service/{name}",
    "POST /console/services/{name}/scale": "POST /service/{name}/scale",
    "POST /console/services/{name}/rollback": "POST /service/{name}/rollback",
    "POST /console/services/{name}/promote": "POST /service/{name}/promote",
    "POST /console/services/{name}/pause": "POST /service/{name}/pause",
    "POST /console/services/{name}/resume": "POST /service/{name}/resume",
    "POST /console/services/{name}/delete": "DELETE /service/{name}",
    "GET /console/instances": "GET /instance/",
    "GET /console/instances/{id}": "GET /instance/{id}",
    "GET /console/instances/{id}/logs": "GET /instance/{id}/logs",
    "GET /console/instances/{id}/terminal": "GET /instance/{id}/exec",
    "POST /console/instances/{id}/start": "PATCH /instance/{id}",
    "POST /console/instances/{id}/stop": "PATCH /instance/{id}",
    "POST /console/instances/{id}/delete": "DELETE /instance/{id}",
    "GET /console/workloads": "GET /workload/",
    "GET /console/workloads/{name}": "GET /workload/{id}",
    "POST /console/workloads/{name}/add": "PUT /instance/",
    "POST /console/workloads/{name}/delete": "DELETE /workload/{id}",
    "GET /console/nodes": "GET /node/",
    "GET /console/nodes/{id}": "GET /node/{id}",
    "POST /console/nodes/{id}/cordon": "POST /node/{id}/cordon",
    "POST /console/nodes/{id}/uncordon": "POST /node/{id}/uncordon",
    "POST /console/nodes/{id}/drain": "POST /node/{id}/drain",
    "POST /console/nodes/{id}/remove": "DELETE /node/{id}",
    "GET /console/map": "GET /mesh/",
    "GET /console/volumes": "GET /volume/",
    "GET /console/volumes/{name}": "GET /volume/{name}",
    "POST /console/volumes/{name}/delete": "DELETE /volume/{name}",
    "GET /console/secrets": "GET /secret/",
    "GET /console/secrets/{kind}/{name}": "GET /secret/{name}",
    "POST /console/secrets/{kind}/{name}/delete": "DELETE /secret/{name}",
    "GET /console/routes": "GET /route/",
    "GET /console/routes/{name}": "GET /route/{name}",
    "POST /console/routes/{name}/delete": "DELETE /route/{name}",
    "GET /console/events": "GET /events",
    "GET /console/functions": "GET /function",
    "GET /console/functions/{name}": "GET /function/{name}",
    # Code is for those who may replace it: no route of the API shows it.
    "GET /console/functions/{name}/code": "POST /update",
    "GET /console/functions/{name}/logs": "GET /function/{name}/logs",
    "POST /console/functions/{name}/call": "POST /invoke/{function}",
    "POST /console/functions/{name}/delete": "POST /delete",
    "GET /console/jobs": "GET /job/",
    "GET /console/jobs/{name}": "GET /job/{name}",
    "POST /console/jobs/{name}/cancel": "POST /job/{name}/cancel",
    "POST /console/jobs/{name}/delete": "DELETE /job/{name}",
    "GET /console/schedules": "GET /schedule/",
    "GET /console/schedules/{name}": "GET /schedule/{name}",
    "POST /console/schedules/{name}/run": "POST /schedule/{name}/run",
    "POST /console/schedules/{name}/pause": "POST /schedule/{name}/pause",
    "POST /console/schedules/{name}/resume": "POST /schedule/{name}/resume",
    "POST /console/schedules/{name}/delete": "DELETE /schedule/{name}",
    "GET /console/market": "GET /market/offers",
    "POST /console/market/buy": "POST /market/buy",
    "GET /console/market/contracts": "GET /market/contracts",
    "GET /console/market/contracts/{id}": "GET /market/contracts/{id}",
    "POST /console/market/contracts/{id}/renew": "POST /market/borrowed/{id}/renew",
    "POST /console/market/contracts/{id}/release": "POST /market/borrowed/{id}/release",
    "POST /console/market/contracts/{id}/reclaim": "POST /market/contracts/{id}/reclaim",
    "GET /console/market/holds": "GET /market/holds",
    "GET /console/market/ledger": "GET /market/ledger",
    "GET /console/market/peers": "GET /market/peers",
    "POST /console/market/peers/add": "PUT /market/peers/{name}",
    "POST /console/market/peers/{name}/remove": "DELETE /market/peers/{name}",
    "GET /console/tokens": "GET /token/",
    "POST /console/tokens/create": "POST /token/",
    "POST /console/tokens/{id}/revoke": "DELETE /token/{id}",
    # Those of routes; what the CA issued is shown to those who may revoke it.
    "GET /console/certificates": "GET /tls/",
    "POST /console/certificates/{serial}/revoke": "POST /certificate/{serial}/revoke",
}
# Before there is a session: signing in, and files that are the same for everybody.
_OPEN = ("GET /", "GET /console/login", "POST /console/login", "GET /console/assets/{hash}/{name}")

CONSOLE_RULES: dict[str, AccessRule] = {
    **dict.fromkeys(_OPEN, OPEN_RULE),
    **{page: msgspec.structs.replace(HTTP_RULES[api], session=True) for page, api in DECIDED_BY.items()},
}


def may(caller: Caller, page: str) -> bool:
    """Whether `caller` may use this page or action: what it may not is not shown to it."""
    try:
        authorize(CONSOLE_RULES[page], caller)
    except errors.SkerryError:
        return False
    return True
