"""Jobs and schedules as JSON input.

Pure: the model refuses invalid values. A change of a schedule is a merge patch (RFC 7396): fields that are
not given stay, null resets one to its default; the target is given whole.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from skerry.control.schedules.registry import ScheduleSettings
from skerry.model import errors, ids
from skerry.model.callers import Caller
from skerry.model.function_names import function_key
from skerry.model.ids import FunctionName, Namespace
from skerry.model.images import ImageAccess
from skerry.model.jobs import MAX_COMPLETIONS, MAX_RETRIES, Job, JobSpec
from skerry.model.schedules import FunctionTarget, JobTarget, OverlapPolicy
from skerry.model.services import check_service_name
from skerry.model.workloads import InstanceSpec, RestartMode
from skerry.wire.option_documents import OptionalField
from skerry.wire.spec_documents import ImageSpecInput, SpecInput, generated_name, merge_field

_Namespace = (
    Annotated[
        str, Meta(description="Namespace in which it is created, unless the path names it; it cannot change")
    ]
    | UnsetType
)


NUMBERS = ("completions", "parallelism", "retries", "deadline_s", "keep_for_s")


class JobSpecInput(ImageSpecInput, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The spec of a job: that of a workload, and how often it runs; `image` is required. Times are
    seconds."""

    completions: OptionalField[Annotated[int, Meta(description=f"1 to {MAX_COMPLETIONS}; 1")]] = UNSET
    parallelism: OptionalField[Annotated[int, Meta(description="Tries at once; 1")]] = UNSET
    retries: OptionalField[Annotated[int, Meta(description=f"Of each completion, 0 to {MAX_RETRIES}; 3")]] = (
        UNSET
    )
    deadline_s: OptionalField[Annotated[float, Meta(description="Of the whole job")]] = UNSET
    keep_for_s: OptionalField[
        Annotated[float, Meta(description="After its end, with the logs of every try; a day")]
    ] = UNSET

    def job_spec(self, caller: Caller, name: str) -> JobSpec:
        """The spec, if `caller` may send it."""
        return JobSpec(self._template(name).spec_from(caller), **self._numbers())

    def unchecked_spec(self, name: str) -> JobSpec:
        """The spec without checks of access, to compare it with another."""
        return JobSpec(self._template(name).onto(caller_access=ImageAccess.ALL), **self._numbers())

    def _template(self, name: str) -> JobSpecInput:
        if self.restart not in (UNSET, RestartMode.NEVER) or isinstance(self.restart_budget, int):
            raise errors.Invalid(
                "a try of a job never restarts by itself; set `retries` instead",
                field="restart",
            )
        return replace(self.with_uri(), name=name)

    def _numbers(self) -> dict[str, Any]:
        given = {field: getattr(self, field) for field in NUMBERS}
        return {field: value for field, value in given.items() if value not in (UNSET, None)}


class JobInput(JobSpecInput, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A job. Without a `name` it gets one."""

    kind: Annotated[Literal["job"], Meta(description="For clients that write it")] | UnsetType = UNSET
    namespace: _Namespace = UNSET

    def job(self, caller: Caller, seed: str) -> tuple[str, JobSpec]:
        """Its name and spec; `seed` decides the name if none is given."""
        if isinstance(self.name, str):
            name = check_service_name(self.name, "job")
        else:
            image = self.uri if isinstance(self.uri, str) else self.image
            name = generated_name(image if isinstance(image, str) else "", seed).lower()
            name = name if name[0].isalpha() else f"j{name}"
        return name, self.job_spec(caller, name)


class FunctionInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call of a function."""

    name: str
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)
    namespace: Annotated[str, Meta(description="Of the function; that of the schedule")] | UnsetType = UNSET

    def key(self, caller: Caller, namespace: Namespace) -> FunctionName:
        """The function that `caller` means, by a schedule in `namespace`."""
        if self.namespace is not UNSET:
            namespace = caller.scope.check(self.namespace)
        return function_key(namespace, ids.check_id(self.name, "function"))


class ScheduleInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A schedule: `cron`, and one of `job`, `from_job` and `function`."""

    name: str | UnsetType = UNSET
    kind: Annotated[Literal["schedule"], Meta(description="For clients that write it")] | UnsetType = UNSET
    namespace: _Namespace = UNSET
    cron: Annotated[str, Meta(description="Minute, hour, day of month, month, day of week")] | UnsetType = (
        UNSET
    )
    timezone: OptionalField[Annotated[str, Meta(description="Such as `Europe/Berlin`; `UTC`")]] = UNSET
    overlap: OptionalField[
        Annotated[
            OverlapPolicy, Meta(description="Policy for a run that is due while another is running; `skip`")
        ]
    ] = UNSET
    window_s: OptionalField[
        Annotated[float, Meta(description="A run that is later than this is missed; one hour")]
    ] = UNSET
    paused: OptionalField[bool] = UNSET
    job: Annotated[JobSpecInput, Meta(description="Spec of the job of each run")] | UnsetType = UNSET
    from_job: Annotated[str, Meta(description="The spec of an existing job, copied")] | UnsetType = UNSET
    function: Annotated[FunctionInput, Meta(description="Each run is a call of this")] | UnsetType = UNSET

    def settings(
        self,
        caller: Caller,
        name: str,
        namespace: Namespace,
        job: Job | None,
        base: ScheduleSettings | None = None,
    ) -> ScheduleSettings:
        """`base` with this input of `caller` applied; `job` is the one that `from_job` names."""
        target = self._target(caller, name, namespace, job)
        if base is None:
            if self.cron is UNSET:
                raise errors.Invalid("`cron` is needed, such as `30 3 * * *`", field="cron")
            if target is None:
                raise errors.Invalid("a schedule needs `job`, `from_job` or `function`", field="job")
            base = ScheduleSettings(self.cron, target)
        default = ScheduleSettings(base.cron, base.target)
        return ScheduleSettings(
            base.cron if self.cron is UNSET else self.cron,
            target or base.target,
            merge_field(self.timezone, base.timezone, default.timezone),
            merge_field(self.overlap, base.overlap, default.overlap),
            merge_field(self.window_s, base.window_s, default.window_s),
            merge_field(self.paused, base.is_paused, default.is_paused),
        )

    def _target(
        self, caller: Caller, name: str, namespace: Namespace, job: Job | None
    ) -> JobTarget | FunctionTarget | None:
        given = [field for field in ("job", "from_job", "function") if getattr(self, field) is not UNSET]
        if len(given) > 1:
            raise errors.Invalid(f"`{given[0]}` and `{given[1]}` exclude each other", field=given[1])
        if isinstance(self.function, FunctionInput):
            return FunctionTarget(self.function.key(caller, namespace), self.function.parameters)
        if isinstance(self.job, JobSpecInput):
            return JobTarget(self.job.job_spec(caller, name))
        if job is not None:
            return JobTarget(replace(job.spec, template=_copied(job.spec.template, caller, name)))
        return None


def _copied(template: InstanceSpec, caller: Caller, name: str) -> InstanceSpec:
    """Refused if the caller may not use it, also if another caller created the job."""
    return SpecInput(name=name).spec_from(caller, template)
