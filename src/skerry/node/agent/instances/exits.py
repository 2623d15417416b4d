"""How a run of a container ended, in the words of an instance: well, badly, or nobody knows. Pure."""

from __future__ import annotations

import signal

import msgspec

from skerry.model.containers import ContainerView
from skerry.model.workloads import RestartPolicy

_SIGNAL_BASE = 128  # as shells write the death by a signal in a code
_UNKNOWN = -1  # for the restart policy: a run of which nobody knows how it ended has not ended well
_VANISHED = "its container was removed while it ran"


class RunExit(msgspec.Struct, frozen=True):
    """How a run ended: `reason` for people, and the exit code, if there is one."""

    reason: str
    exit_code: int | None = None

    @property
    def is_good(self) -> bool:
        return self.exit_code == 0

    def wants_restart(self, policy: RestartPolicy, streak: int) -> bool:
        """True if another run is due after `streak` restarts in a row."""
        return policy.is_due(_UNKNOWN if self.exit_code is None else self.exit_code, streak)


def run_exit(view: ContainerView | None) -> RunExit:
    """How the last run of the container ended, which does not run any more."""
    if view is None:
        return RunExit(_VANISHED)
    how = view.exit
    if how is None:
        return RunExit(view.reason or _VANISHED)
    code = how.code if how.code is not None else _SIGNAL_BASE + (how.signal or 0)
    if how.oom:
        return RunExit("killed for using more memory than it may", code)
    if view.reason:  # the node's own word, such as a disk that was over its limit
        return RunExit(view.reason, code)
    if how.signal is not None:
        return RunExit(f"ended by signal {how.signal} ({_name(how.signal)})", code)
    return RunExit(f"ended with code {code}", code)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
