"""`/invoke/` without a task: the same translation as in `invocations`, for synchronous calls that run here.

Requests with a query, async calls, traced ones and those that need another node take the endpoint.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from skerry.model import errors
from skerry.model.calls import CallReport
from skerry.transport.access import namespaces
from skerry.transport.http.direct import DirectRequest
from skerry.wire.serverledge import error_texts
from skerry.wire.serverledge.context import ServerledgeContext
from skerry.wire.serverledge.documents import InvokeBody, report_document
from skerry.wire.serverledge.go_json import GoJsonReader, encode_go_json
from skerry.wire.serverledge.invocations import INVOKE, response_head
from skerry.wire.serverledge.namespaces import FunctionQuery
from skerry.wire.serverledge.node_headers import ExtraHeaders

_NO_QUERY: Final = FunctionQuery()
_LINES: Final = b"content-type: %b\r\ncache-control: no-store\r\n" % error_texts.JSON.encode()


class DirectInvocations:
    """The `DirectHandler` of calls."""

    def __init__(self, context: ServerledgeContext) -> None:
        self._context = context
        self._read = GoJsonReader(InvokeBody).read
        self._headers: ExtraHeaders = ()  # of the last response, which are the same for a while
        self._lines = _LINES

    def begin(self, request: DirectRequest) -> bool:
        body = self._read(request.body)
        if body.is_async:
            return False
        query, caller = _NO_QUERY, request.caller
        if caller.namespaces is not None:
            inputs: dict[str, Any] = {"query": query}
            namespaces.confine(caller.scope, inputs)
            query = inputs["query"]
        call_request = body.to_call_request(query.key(request.path[len(INVOKE) :]))
        call = self._context.invoker.begin(call_request, partial(self._respond, request))
        if call is None:
            return False
        request.when_cancelled = call.cancel
        return True

    def _respond(self, request: DirectRequest, outcome: CallReport | errors.SkerryError) -> None:
        try:
            if not isinstance(outcome, CallReport):
                raise outcome
            status, headers = response_head(self._context, request.caller, request.headers, outcome)
            body = encode_go_json(report_document(outcome))
        except Exception as error:  # noqa: BLE001 - its caller must get an answer
            request.fail(error)
            return
        if headers is not self._headers:
            self._headers = headers
            self._lines = _LINES + b"".join(b"%b: %b\r\n" % line for line in headers)
        request.respond(status, self._lines, body)
