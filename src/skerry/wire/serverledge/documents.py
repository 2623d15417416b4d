"""Requests and responses with Serverledge's names: bodies, reports, status, descriptions.

Pure translation to and from the types of `skerry.model`. Reports and status have the fields of the document
and of the program; Skerry's own fields come last.
"""

from __future__ import annotations

import binascii
from typing import Annotated, Final

import msgspec
from msgspec import Meta, field

from skerry.functions.continuum.cloud_calls import CloudCallCounts
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
from skerry.model.function_names import display_name, namespace_of, plain_name
from skerry.model.functions import Function
from skerry.model.ids import FunctionName
from skerry.model.members import MemberStatus
from skerry.model.resources import MAX_AMOUNT, Millicores
from skerry.model.secrets import SecretKind
from skerry.wire import secret_documents
from skerry.wire.secret_documents import SecretUseDocument, SecretUseInput

_MOST_CPUS: Final = MAX_AMOUNT / 1000
_NOTHING: Final = CallResult(0.0)
_NOTHING_GIVEN: Final = msgspec.Raw(NULL)
_OBJECT: Final = ord("{")
_OBJECT_OR_NULL: Final[dict[str, object]] = {"type": ["object", "null"]}
_SIGNATURE: Final = "Its inputs and outputs as declared by its author: stored and returned unchanged"
_MOST_NAMES: Final = 100
_WEB: Final = "Its handler takes HTTP requests, at `/web/NAME`"
_TEMPLATE: Final = "Its workers may be copies of one that has loaded the code; false: each loads it"
_COPIES: Final = "Members that have its code, as far as a server knows; null for an image, and at nodes"
_COPIES_WANTED: Final = "Members that should have it: two, or one where there is no other"


class FunctionBody(msgspec.Struct, frozen=True, rename="pascal"):
    """A function to register. Fields that are not given are zero or empty, as in the public program."""

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
    network: Annotated[str, Meta(description="`none`: its workers have no network; otherwise `bridge`")] = ""
    timeout_s: Annotated[float, Meta(description="Of each call; 0 or less: the node's setting")] = field(
        default=0.0, name="TimeoutS"
    )
    idempotent: Annotated[
        bool, Meta(description="A call that may have run on a lost node is run again on another")
    ] = False
    policy: Annotated[str, Meta(description="Where its calls run; empty: the node's setting")] = ""
    signature: Annotated[msgspec.Raw, Meta(description=_SIGNATURE, extra_json_schema=_OBJECT_OR_NULL)] = (
        field(default_factory=lambda: _NOTHING_GIVEN)
    )
    secrets: Annotated[list[str | SecretUseInput], Meta(description=secret_documents.SECRETS)] = field(
        default_factory=list
    )
    configs: Annotated[list[str | SecretUseInput], Meta(description=secret_documents.CONFIGS)] = field(
        default_factory=list
    )
    web: Annotated[bool, Meta(description=_WEB)] = False
    template: Annotated[bool, Meta(description=_TEMPLATE)] = True

    def new_function(self, caller: Caller, key: FunctionName) -> NewFunction:
        """The registration of `caller` under `key`; `Invalid` for values that it cannot hold."""
        if self.cpu_demand > _MOST_CPUS:
            raise errors.Invalid(f"CPUDemand must be at most {_MOST_CPUS:.0f} cores", field="CPUDemand")
        return NewFunction(
            name=key,
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
            caller_access=caller.image_access,
            secrets=secret_documents.merge_uses((), self.secrets, self.configs),
            is_web=self.web,
            uses_template=self.template,
        )


def _archive(text: str) -> bytes:
    try:
        # Line breaks in base64 are ignored, as in Go.
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
    """The name of a function; other fields may be sent and are ignored."""

    name: str = ""


class PrewarmBody(msgspec.Struct, frozen=True, rename="pascal"):
    """How many workers to start ahead."""

    function: str = ""
    instances: Annotated[int, Meta(description="0: only fetch the code or the image")] = 0
    force_image_pull: Annotated[bool, Meta(description="Check for a newer image")] = False


class InvokeBody(msgspec.Struct, frozen=True, rename="pascal"):
    """A call."""

    params: Annotated[msgspec.Raw, Meta(extra_json_schema=_OBJECT_OR_NULL)] = field(
        default_factory=lambda: _NOTHING_GIVEN
    )
    qos_class: Annotated[int, Meta(description="Below 0 is 0, above 255 is 255")] = field(
        default=0, name="QoSClass"
    )
    qos_max_resp_t: Annotated[
        float, Meta(description="Seconds within which the response is needed; 0 or less: the node's setting")
    ] = field(default=0.0, name="QoSMaxRespT")
    can_do_offloading: bool = True
    is_async: bool = field(default=False, name="Async")
    return_output: bool = False

    def to_call_request(self, function: FunctionName) -> CallRequest:
        """The call; `Invalid` if its parameters are no object."""
        params = bytes(self.params)
        if params[0] != _OBJECT and params != NULL:
            raise errors.Invalid('body: `Params` must be an object, such as {"n": 1}', field="Params")
        qos_class = self.qos_class
        return CallRequest(
            function=function,
            params=params,
            qos_class=qos_class if 0 <= qos_class <= MAX_QOS_CLASS else MAX_QOS_CLASS if qos_class > 0 else 0,
            max_response_s=self.qos_max_resp_t if self.qos_max_resp_t > 0 else None,
            can_offload=self.can_do_offloading,
            wants_output=self.return_output,
        )


class FunctionCreated(msgspec.Struct, frozen=True, rename="pascal"):
    """Its name, and Skerry's own fields: the actual runtime, the version, and the copies of its code."""

    created: str
    runtime: Annotated[str, Meta(description="What really runs it: `Python 3.11.2`")]
    version: int
    copies: Annotated[int | None, Meta(description=_COPIES)]
    copies_wanted: Annotated[int | None, Meta(description=_COPIES_WANTED)]


class FunctionDeleted(msgspec.Struct, frozen=True, rename="pascal"):
    """Its name."""

    deleted: str


class PrewarmResult(msgspec.Struct, frozen=True, rename="pascal"):
    """How many workers were started; fewer than requested if resources are short."""

    prewarmed: int


class AcceptedCallDocument(msgspec.Struct, frozen=True, rename="pascal"):
    """The id of an async call, for `/poll/`."""

    req_id: str


class ReportDocument(msgspec.Struct, frozen=True, rename="pascal"):
    """The result of a call. Times are in seconds."""

    success: bool
    result: Annotated[str, Meta(description="What the function returned, as JSON text")]
    response_time: float
    is_warm_start: bool
    init_time: float
    queueing_time: float
    offload_latency: float
    duration: Annotated[float, Meta(description="In the function itself")]
    sched_action: str
    output: Annotated[str, Meta(description="Its output, if that was requested or it failed")]
    execution_area: str
    execution_node: str
    error: Annotated[str, Meta(description="The error, with the traceback")]
    error_type: Annotated[
        str, Meta(description="The kind of the error, for programs; empty if there is none")
    ]
    state: CallState
    timed_out: bool


def report_document(report: CallReport, state: CallState | None = None) -> ReportDocument:
    """`state` is that of an async call; without it the call was synchronous."""
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
    """The network coordinates of the node."""

    vec: tuple[float, float, float] = (0.0, 0.0, 0.0)
    error: float = 1.5
    height: float = 0.00001


def _coordinates(coordinate: Coordinate) -> CoordinatesDocument:
    return CoordinatesDocument(coordinate.vector, coordinate.error, coordinate.height)


class StatusDocument(msgspec.Struct, frozen=True, rename="pascal"):
    """The state of the node: the fields of the document and those of the program."""

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
        tuple[str, ...], Meta(description="Functions whose code no reachable member has; 100 at most")
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
        available_warm_containers={display_name(name): idle for name, idle in pool.warm.items()},
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
        under_replicated=tuple(map(display_name, replication.under_replicated[:_MOST_NAMES])),
        missing_code=tuple(map(display_name, replication.missing[:_MOST_NAMES])),
    )


class FunctionCallsDocument(msgspec.Struct, frozen=True, rename="pascal"):
    """Calls of a function that have ended. Numbers only grow, until all its members have forgotten it."""

    name: str
    namespace: str
    calls: int
    failed: Annotated[int, Meta(description="How many of them failed")]
    cold_starts: Annotated[int, Meta(description="How many of them waited for their worker to start")]
    run_seconds: Annotated[float, Meta(description="Time that they spent in workers")]


class CallCountsDocument(msgspec.Struct, frozen=True, rename="pascal"):
    """Calls in the whole cloud, as its members count them."""

    time: Annotated[float, Meta(description="Of this reading, in seconds since the epoch")]
    members: Annotated[int, Meta(description="How many members were read")]
    missing: Annotated[tuple[str, ...], Meta(description="Members that were not, and why")]
    functions: tuple[FunctionCallsDocument, ...]


def call_counts_document(counts: CloudCallCounts) -> CallCountsDocument:
    return CallCountsDocument(
        time=counts.at,
        members=counts.members,
        missing=tuple(counts.missing),
        functions=tuple(
            FunctionCallsDocument(
                plain_name(one.function),
                namespace_of(one.function),
                one.ended,
                one.failed,
                one.cold_starts,
                round(one.run_s, 6),
            )
            for one in counts.functions
        ),
    )


class NeighbourDocument(msgspec.Struct, frozen=True, rename="pascal"):
    """Another node that takes calls, as known to this one."""

    node: str
    area: str
    address: Annotated[str, Meta(description="Its address for nodes, HOST:PORT")]
    up: Annotated[bool, Meta(description="It answered the last request")]
    rtt: Annotated[float | None, Meta(description="Round-trip time in seconds")] = field(name="RTT")
    heard: Annotated[float | None, Meta(description="Seconds since its last message")]
    available_mem_mb: int = field(name="AvailableMemMB")
    available_cpus: float = field(name="AvailableCPUs")
    queue_length: int
    done: Annotated[int, Meta(description="Calls that it answered for this node")]
    refused: int
    lost: Annotated[int, Meta(description="Calls without a response")]


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
    """A registered function, without its code."""

    name: str
    runtime: Annotated[str, Meta(description="As it was requested")]
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
    namespace: Annotated[str, Meta(description="In which its name is unique")]
    secrets: tuple[SecretUseDocument, ...] = ()
    configs: tuple[SecretUseDocument, ...] = ()
    # Left out where it is not so: clients of before know nothing of it.
    web: Annotated[bool | msgspec.UnsetType, Meta(description=_WEB)] = msgspec.UNSET
    template: Annotated[bool | msgspec.UnsetType, Meta(description=_TEMPLATE)] = msgspec.UNSET


def created_document(function: Function, runs: str, copies: CodeCopies | None) -> FunctionCreated:
    return FunctionCreated(
        plain_name(function.name),
        runs,
        function.version,
        None if copies is None else copies.count,
        None if copies is None else copies.required,
    )


def function_document(
    function: Function, runs: str, timeout_s: float, copies: CodeCopies | None
) -> FunctionDocument:
    """`timeout_s` is the default of functions without one."""
    return FunctionDocument(
        name=plain_name(function.name),
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
        copies_wanted=None if copies is None else copies.required,
        namespace=namespace_of(function.name),
        secrets=secret_documents.use_documents(function.secrets, SecretKind.SECRET),
        configs=secret_documents.use_documents(function.secrets, SecretKind.CONFIG),
        web=function.is_web or msgspec.UNSET,
        template=msgspec.UNSET if function.uses_template else False,
    )
