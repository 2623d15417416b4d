"""The statuses of both documents: the same names under different numbers, and one that only one of them has.

Numbers stay in this room. What comes in is read by the numbers of the document whose service was called, and
what goes out is written by them; `skerry.model.statuses` knows only names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from skerry.model import errors
from skerry.model.statuses import InstanceStatus
from skerry.transport.proto import kudo_controller_pb2, kudo_scheduler_pb2


class StatusNumbers:
    """The numbers of one document. A status that it lacks is told as another, with its name as the reason."""

    def __init__(
        self, numbers: Iterable[tuple[str, int]], replacements: Mapping[InstanceStatus, InstanceStatus]
    ) -> None:
        self._statuses = {number: InstanceStatus(name) for name, number in numbers}
        self._replacements = replacements
        self._lacked = {(other, lacked.value): lacked for lacked, other in replacements.items()}
        if {*self._statuses.values(), *replacements} != set(InstanceStatus):
            raise ValueError("every status needs a number, or another that it is told as")

    def read(self, number: int, reason: str = "") -> InstanceStatus:
        """What `number` means; `Invalid` if it means nothing."""
        status = self._statuses.get(number)
        if status is None:
            known = ", ".join(f"{known} ({status})" for known, status in self._statuses.items())
            raise errors.Invalid(f"there is no status {number}; it is one of {known}", field="status")
        return self._lacked.get((status, reason), status)

    def encoded_as(self, status: InstanceStatus) -> InstanceStatus:
        """What `status` is told as; if that is another, `reason` names it."""
        return self._replacements.get(status, status)

    def reason(self, status: InstanceStatus) -> str:
        """Its name, if it is told as another."""
        return status.value if status in self._replacements else ""


CONTROLLER: Final = StatusNumbers(kudo_controller_pb2.Status.items(), replacements={})
SCHEDULER: Final = StatusNumbers(
    kudo_scheduler_pb2.Status.items(), replacements={InstanceStatus.CRASHED: InstanceStatus.FAILED}
)
