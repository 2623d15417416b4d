"""The status numbers of both documents: the same names with different numbers; one of them lacks CRASHED.

A service decodes and encodes by the numbers of its own document; `skerry.model.statuses` knows only names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from skerry.model import errors
from skerry.model.statuses import InstanceStatus
from skerry.transport.proto import kudo_controller_pb2, kudo_scheduler_pb2


class StatusNumbers:
    """The numbers of one document. A status that it lacks is sent as another one, with its name as the
    reason."""

    def __init__(
        self, numbers: Iterable[tuple[str, int]], replacements: Mapping[InstanceStatus, InstanceStatus]
    ) -> None:
        self._statuses = {number: InstanceStatus(name) for name, number in numbers}
        self._replacements = replacements
        self._lacked = {(other, lacked.value): lacked for lacked, other in replacements.items()}
        if {*self._statuses.values(), *replacements} != set(InstanceStatus):
            raise ValueError("every status needs a number, or a replacement")

    def read(self, number: int, reason: str = "") -> InstanceStatus:
        """The status of `number`; `Invalid` if there is none."""
        status = self._statuses.get(number)
        if status is None:
            known = ", ".join(f"{known} ({status})" for known, status in self._statuses.items())
            raise errors.Invalid(f"there is no status {number}; it is one of {known}", field="status")
        return self._lacked.get((status, reason), status)

    def encoded_as(self, status: InstanceStatus) -> InstanceStatus:
        """The status that is sent for `status`; if it is a replacement, `reason` names the original."""
        return self._replacements.get(status, status)

    def reason(self, status: InstanceStatus) -> str:
        """Its name, if it is sent as another."""
        return status.value if status in self._replacements else ""


CONTROLLER: Final = StatusNumbers(kudo_controller_pb2.Status.items(), replacements={})
SCHEDULER: Final = StatusNumbers(
    kudo_scheduler_pb2.Status.items(), replacements={InstanceStatus.CRASHED: InstanceStatus.FAILED}
)
