"""What comes in and goes out under Serverledge's names: bodies of requests, reports, status, descriptions.

Pure translation to and from the nouns of `skerry.model`. Reports and status have the fields of the document
and of the program, and behind them what Skerry adds.
"""

from __future__ import annotations

import binascii
from typing import Annotated, Final

import msgspec
from msgspec import Meta, field

from skerry.functions.continuum.code_replication import CodeCopies, ReplicationStatus
from skerry.functions.coordinates import Coordinate
from skerry.functions.invocation.invoker import PoolStatus
from skerry.functions.registry.registry import NewFunction
from skerry.model import errors
from skerry.model.callers import Caller
from skerry.model.calls import (
    MAX_QOS_CLASS,
    NULL,
    CallFailure,
    CallReport,
    CallRequest,
    CallResult,
    CallState,
)
from skerry.model.containers import NetworkMode
from skerry.model.functions import Function
from skerry.model.ids import FunctionName
from skerry.model.members import MemberStatus
from skerry.model.resources import MAX_AMOUNT, Millicores

_MOST_CPUS: Final = MAX_AMOUNT / 1000
_NOTHING: Final = CallResult(0.0)
_NOTHING_GIVEN: Final = msgspec.Raw(NULL)
_OBJECT: Final = ord("{")
_OBJECT_OR_NULL: Final[dict[str, object]] = {"type": ["object", "null"]}
_SIGNATURE: Final = "What it takes and gives, as its author declares it: kept and given back as it is"
_MOST_NAMES: Final = 100
_COPIES: Final = "Members that have its code, as far as a server knows; null for an image, and at nodes"
_COPIES_WANTED: Final = "Members that should have it: two, or one where there is no other"


class FunctionBody(msgspec.Struct, frozen=True, rename="pascal"):
    """A function to register. What is not given is zero or empty, as in the public program."""

    name: str = ""
    runtime: Annotated[str, Meta(description="`python310`, `nodejs17`, `custom`, ...")] = ""
    memory_mb: Annotated[int, Meta(description="Of each worker; at least 1")] = field(
        default=0, name="MemoryMB"
    )
    cpu_demand: Annotated[float, Meta(description="Cores of each worker; 0 or less: no cap")] = field(
        default=0.0, name="CPUDemand"
    )
    max_concurrency: Annotated[int, Meta(description="Calls at once in one worker; 0 or less: 1")] = 1
    handler: Annotated[str, Meta(description="`module.function`; none for `custom`")] = ""
    tar_function_code: Annotated[str, Meta(description="A tar archive in base64; none for `custom`")] = ""
    custom_image: Annotated[str, Meta(description="For `custom`: the image")] = ""
    environment: Annotated[
        dict[str, str] | list[str], Meta(description="`{KEY: VALUE}`, or `KEY=VALUE` each")
    ] = field(default_factory=list)
    network: Annotated[str, Meta(description="`none`: its workers reach nobody; otherwise `bridge`")] = ""
    timeout_s: Annotated[float, Meta(description="Of each call; 0 or less: the node's setting")] = field(
        default=0.0, name="TimeoutS"
    )
    idempotent: Annotated[
        bool, Meta(description="A call that may have run on a node that is lost is run again elsewhere")
    ] = False
    policy: Annotated[str, Meta(description="Where its calls run; empty: the node's setting")] = ""
    signature: Annotated[msgspec.Raw, Meta(description=_SIGNATURE, extra_json_schema=_OBJECT_OR_NULL)] = (
        field(default_factory=lambda: _NOTHING_GIVEN)
    )

    def new_function(self, caller: Caller) -> NewFunction:
        """What the registry takes of `caller`; `Invalid` for what cannot even be said to it."""
        if self.cpu_demand > _MOST_CPUS:
            raise errors.Invalid(f"CPUDemand must be at most {_MOST_CPUS:.0f} cores", field="CPUDemand")
        return NewFunction(
            name=self.name,
            runtime=self.runtime,
            memory=self.memory_mb,
            cpu=Millicores(max(1, round(self.cpu_demand * 1000))) if self.cpu_demand > 0 else None,
            max_concurrency=max(1, self.max_concurrency),
            handler=self.handler,
            code=_archive(self.tar_function_code),
            image=self.custom_image,
            environment=_variables(self.environment),
            network=_network(self.network),
            timeout_s=self.timeout_s if self.timeout_s > 0 else None,
            is_idempotent=self.idempotent,
            policy=self.policy,
            signature=_signature(bytes(self.signature)),
            giver=caller.image_access,
        )


def _archive(text: str) -> bytes:
    try:
        # Line breaks in base64 are passed over, as Go does.
        return binascii.a2b_base64(text.replace("\r", "").replace("\n", ""), strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise errors.Invalid(
            f"TarFunctionCode is not base64 ({error}); send a tar archive in standard base64",
            field="TarFunctionCode",
        ) from None


def _signature(given: bytes) -> str:
    if given == NULL:
        return ""
    if given[0] != _OBJECT:
        raise errors.Invalid(
            'Signature must be an object, such as {"Inputs": [], "Outputs": []}', field="Signature"
        )
    return given.decode()


def _variables(given: dict[str, str] | list[str]) -> tuple[str, ...]:
    if isinstance(given, dict):
        for key in given:
            if "=" in key:
                raise errors.Invalid("a name in Environment must not hold `=`", field="Environment")
        return tuple(f"{key}={value}" for key, value in given.items())
    return tuple(given)


def _network(given: str) -> NetworkMode:
    try:
        return NetworkMode(given.lower()) if given else NetworkMode.BRIDGE
    except ValueError:
        raise errors.Invalid("Network must be `none` or `bridge`", field="Network") from None


class NameBody(msgspec.Struct, frozen=True, rename="pascal"):
    """The function that is meant; the rest of it may be sent along and is not read."""

    name: str = ""


class PrewarmBody(msgspec.Struct, frozen=True, rename="pascal"):
    """How many workers to have ready."""

    function: str = ""
    instances: Annotated[int, Meta(description="0: only fetch what a start would need")] = 0
    force_image_pull: Annotated[bool, Meta(description="Look for a newer image")] = False


class InvokeBody(msgspec.Struct, frozen=True, rename="pascal"):
    """A call."""

    params: Annotated[msgspec.Raw, Meta(extra_json_schema=_OBJECT_OR_NULL)] = field(
        default_factory=lambda: _NOTHING_GIVEN
    )
    qos_class: Annotated[int, Meta(description="Below 0 is 0, above 255 is 255")] = field(
        default=0, name="QoSClass"
    )
    qos_max_resp_t: Annotated[
        float, Meta(description="Seconds until the answer must be there; 0 or less: the node's setting")
    ] = field(default=0.0, name="QoSMaxRespT")
    can_do_offloading: bool = True
    is_async: bool = field(default=False, name="Async")
    return_output: bool = False

    def to_call_request(self, function: str) -> CallRequest:
        """The call; `Invalid` if its parameters are no object."""
        params = bytes(self.params)
        if params[0] != _OBJECT and params != NULL:
            raise errors.Invalid('body: `Params` must be an object, such as {"n": 1}', field="Params")
        qos_class = self.qos_class
        return CallRequest(
            function=FunctionName(function),
            params=params,
            qos_class=qos_class if 0 <= qos_class <= MAX_QOS_CLASS else MAX_QOS_CLASS if qos_class > 0 else 0,
            max_response_s=self.qos_max_resp_t if self.qos_max_resp_t > 0 else None,
            can_offload=self.can_do_offloading,
            wants_output=self.return_output,
        )


class FunctionCreated(msgspec.Struct, frozen=True, rename="pascal"):
    """Its name, and what Skerry adds: what really runs it, which version it is, and where its code is."""

    created: str
    runtime: Annotated[str, Meta(description="What really runs it: `Python 3.11.2`")]
    version: int
    copies: Annotated[int | None, Meta(description=_COPIES)]
    copies_wanted: Annotated[int | None, Meta(description=_COPIES_WANTED)]


class FunctionDeleted(msgspec.Struct, frozen=True, rename="pascal"):
    """Its name."""

    deleted: str


class PrewarmResult(msgspec.Struct, frozen=True, rename="pascal"):
    """How many workers it became; fewer than asked for if there is no room for more."""

    prewarmed: int


class AcceptedCallDocument(msgspec.Struct, frozen=True, rename="pascal"):
    """The id of an async call, for `/poll/`."""

    req_id: str


class ReportDocument(msgspec.Struct, frozen=True, rename="pascal"):
    """How a call went. Times are in seconds."""

    success: bool
    result: Annotated[str, Meta(description="What the function returned, as JSON text")]
    response_time: float
    is_warm_start: bool
    init_time: float
    queueing_time: float
    offload_latency: float
    duration: Annotated[float, Meta(description="In the function itself")]
    sched_action: str
    output: Annotated[str, Meta(description="What it printed, if that was asked for or it failed")]
    execution_area: str
    execution_node: str
    error: Annotated[str, Meta(description="What went wrong, with the traceback")]
    error_type: Annotated[str, Meta(description="A word for programs; empty if nothing went wrong")]
    state: CallState
    timed_out: bool


def report_document(report: CallReport, state: CallState | None = None) -> ReportDocument:
    """`state` is where an async call is; without it the report is the end of the matter."""
    answer = report.answer
    failure = answer.failure
    return ReportDocument(
        failure is None,
        answer.result.decode("utf-8", "replace"),
        report.response_s,
        report.is_warm,
        report.init_s,
        report.queueing_s,
        report.offload_s,
        answer.duration_s,
        report.action,
        answer.output,
        report.area,
        report.node,
        answer.error,
        "" if failure is None else failure.value,
        state or (CallState.DONE if failure is None else CallState.FAILED),
        failure is CallFailure.TIMEOUT,
    )


def unfinished(state: CallState, error: str = "") -> ReportDocument:
    """The document of a call that has no report (yet)."""
    document = report_document(CallReport(_NOTHING, 0.0), state)
    return msgspec.structs.replace(document, success=False, error=error)


class CoordinatesDocument(msgspec.Struct, frozen=True, rename="pascal"):
    """Where the node is among others."""

    vec: tuple[float, float, float] = (0.0, 0.0, 0.0)
    error: float = 1.5
    height: float = 0.00001


def _coordinates(coordinate: Coordinate) -> CoordinatesDocument:
    return CoordinatesDocument(coordinate.vector, coordinate.error, coordinate.height)


class StatusDocument(msgspec.Struct, frozen=True, rename="pascal"):
    """What the node has and holds: the fields of the document and those of the program."""

    url: str
    available_warm_containers: Annotated[dict[str, int], Meta(description="Idle workers by function")]
    available_mem_mb: int = field(name="AvailableMemMB")
    available_cpus: float = field(name="AvailableCPUs")
    total_memory: Annotated[int, Meta(description="Of all workers together, MB")]
    available_memory: Annotated[int, Meta(description="Without that of busy workers")]
    free_memory: Annotated[int, Meta(description="Also without that of idle workers")]
    total_cpu: float = field(name="TotalCPU")
    used_cpu: float = field(name="UsedCPU")
    coordinates: CoordinatesDocument
    load_avg: tuple[float, float, float]
    last_update_time: Annotated[int, Meta(description="Seconds since the epoch")]
    workers: Annotated[int, Meta(description="Of any state")]
    queue_length: Annotated[int, Meta(description="Calls that wait for a worker")]
    under_replicated: Annotated[
        tuple[str, ...],
        Meta(description="Functions whose code has fewer copies than it should, at a server; 100 at most"),
    ]
    missing_code: Annotated[
        tuple[str, ...], Meta(description="Functions whose code no member has that answers; 100 at most")
    ]


def status_document(
    pool: PoolStatus,
    replication: ReplicationStatus | None,
    *,
    url: str,
    load: tuple[float, float, float],
    now: float,
) -> StatusDocument:
    replication = replication or ReplicationStatus()
    return StatusDocument(
        url=url,
        available_warm_containers={str(name): idle for name, idle in pool.warm.items()},
        available_mem_mb=pool.available_memory_mb,
        available_cpus=pool.total_cpus - pool.used_cpus,
        total_memory=pool.total_memory_mb,
        available_memory=pool.available_memory_mb,
        free_memory=pool.free_memory_mb,
        total_cpu=pool.total_cpus,
        used_cpu=pool.used_cpus,
        coordinates=_coordinates(pool.coordinate),
        load_avg=load,
        last_update_time=int(now),
        workers=pool.workers,
        queue_length=pool.queue_length,
        under_replicated=replication.under_replicated[:_MOST_NAMES],
        missing_code=replication.missing[:_MOST_NAMES],
    )


class NeighbourDocument(msgspec.Struct, frozen=True, rename="pascal"):
    """Another node that takes calls, as this one sees it."""

    node: str
    area: str
    address: Annotated[str, Meta(description="Where nodes reach it, HOST:PORT")]
    up: Annotated[bool, Meta(description="It answered when it was last spoken to")]
    rtt: Annotated[float | None, Meta(description="To it and back, seconds")] = field(name="RTT")
    heard: Annotated[float | None, Meta(description="Seconds since it was heard of")]
    available_mem_mb: int = field(name="AvailableMemMB")
    available_cpus: float = field(name="AvailableCPUs")
    queue_length: int
    done: Annotated[int, Meta(description="Calls that it answered for this node")]
    refused: int
    lost: Annotated[int, Meta(description="Calls of which nothing came back")]


def neighbour_document(seen: MemberStatus) -> NeighbourDocument:
    member = seen.member
    return NeighbourDocument(
        node=member.name,
        area=member.area,
        address=member.address,
        up=seen.is_up,
        rtt=seen.rtt_s,
        heard=seen.heard_s,
        available_mem_mb=seen.memory_free,
        available_cpus=seen.cpus_free,
        queue_length=seen.waiting,
        done=seen.done,
        refused=seen.refused,
        lost=seen.lost,
    )


class FunctionDocument(msgspec.Struct, frozen=True, rename="pascal"):
    """A function as it is registered, but for its code."""

    name: str
    runtime: Annotated[str, Meta(description="As it was asked for")]
    runs: Annotated[str, Meta(description="What really runs it: `Python 3.11.2`")]
    memory_mb: int = field(name="MemoryMB")
    cpu_demand: Annotated[float, Meta(description="-1: no cap")] = field(name="CPUDemand")
    max_concurrency: int
    handler: str
    custom_image: str
    code: Annotated[str | None, Meta(description="The digest of its archive")]
    environment: tuple[str, ...]
    network: NetworkMode
    timeout_s: Annotated[float, Meta(description="Of each call")] = field(name="TimeoutS")
    version: Annotated[int, Meta(description="Goes up with every update")]
    created_at: Annotated[float, Meta(description="Seconds since the epoch")]
    updated_at: float
    idempotent: Annotated[bool, Meta(description="A call that may have run may be run again")]
    policy: Annotated[str, Meta(description="Where its calls run; empty: the node's setting")]
    signature: Annotated[msgspec.Raw, Meta(description=_SIGNATURE, extra_json_schema=_OBJECT_OR_NULL)]
    copies: Annotated[int | None, Meta(description=_COPIES)]
    copies_wanted: Annotated[int | None, Meta(description=_COPIES_WANTED)]


def created_document(function: Function, runs: str, copies: CodeCopies | None) -> FunctionCreated:
    return FunctionCreated(
        function.name,
        runs,
        function.version,
        None if copies is None else copies.count,
        None if copies is None else copies.wanted,
    )


def function_document(
    function: Function, runs: str, timeout_s: float, copies: CodeCopies | None
) -> FunctionDocument:
    """`timeout_s` is that of functions which name none."""
    return FunctionDocument(
        name=function.name,
        runtime=function.runtime,
        runs=runs,
        memory_mb=function.memory,
        cpu_demand=-1.0 if function.cpu is None else function.cpu / 1000,
        max_concurrency=function.max_concurrency,
        handler=function.handler,
        custom_image=function.image,
        code=function.code,
        environment=function.environment,
        network=function.network,
        timeout_s=timeout_s if function.timeout_s is None else function.timeout_s,
        version=function.version,
        created_at=function.created_at,
        updated_at=function.updated_at or function.created_at,
        idempotent=function.is_idempotent,
        policy=function.policy,
        signature=msgspec.Raw(function.signature.encode() or NULL),
        copies=None if copies is None else copies.count,
        copies_wanted=None if copies is None else copies.wanted,
    )
