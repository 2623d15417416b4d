"""Exit of a container run as an instance reports it: success, failure or unknown. Pure."""

from __future__ import annotations

import signal

import msgspec

from skerry.model.containers import ContainerView
from skerry.model.workloads import RestartPolicy

_SIGNAL_BASE = 128  # shells encode a death by signal so
_UNKNOWN = -1  # for the restart policy an unknown exit is a failure
_VANISHED = "its container was removed while it ran"


class RunExit(msgspec.Struct, frozen=True):
    """Exit of a run: `reason` for people, and the exit code, if known."""

    reason: str
    exit_code: int | None = None

    @property
    def is_good(self) -> bool:
        return self.exit_code == 0

    def wants_restart(self, policy: RestartPolicy, streak: int) -> bool:
        """True if the policy restarts it after `streak` restarts in a row."""
        return policy.is_due(_UNKNOWN if self.exit_code is None else self.exit_code, streak)


def run_exit(view: ContainerView | None) -> RunExit:
    """Exit of the last run of a container that is not running."""
    if view is None:
        return RunExit(_VANISHED)
    status = view.exit
    if status is None:
        return RunExit(view.reason or _VANISHED)
    code = status.code if status.code is not None else _SIGNAL_BASE + (status.signal or 0)
    if status.oom:
        return RunExit("killed for using more memory than it may", code)
    if view.reason:  # the node's own reason, such as a disk over its limit
        return RunExit(view.reason, code)
    if status.signal is not None:
        return RunExit(f"ended by signal {status.signal} ({_name(status.signal)})", code)
    return RunExit(f"ended with code {code}", code)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
