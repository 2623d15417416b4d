"""The network between the machines of a demo: one switch, and a link with a delay to each machine.

The kernel delays packets where it has netem; elsewhere a process does (`skerry.demo.delay_relay`). Nothing of
it is in the network namespace of the real machine.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from functools import partial
from typing import Final

from skerry.demo import delay_relay
from skerry.demo.delay_relay import DelayedLink
from skerry.demo.machines import Machine, MachineFailed

SWITCH_ADDRESS: Final = "192.0.2.1"  # of TEST-NET-1, which no real network uses
_PREFIX: Final = 24
_BRIDGE: Final = "switch"
_LINK: Final = "eth0"
_MTU: Final = 9000  # large frames are fewer, and cost the process that delays them less


class DelayedNetwork:
    """A switch on a machine of its own."""

    def __init__(self, switch: Machine) -> None:
        self._switch = switch
        self._relays: dict[str, subprocess.Popen[bytes]] = {}

    def create(self) -> None:
        """Create the switch; its machine is on."""
        self._switch.configure(
            *("ip", "-batch", "-"),
            text=f"link add {_BRIDGE} type bridge\n"
            f"address add {SWITCH_ADDRESS}/{_PREFIX} dev {_BRIDGE}\n"
            f"link set {_BRIDGE} up\n",
        )
        self._switch.inside(lambda: delay_relay.disable_offloads(_BRIDGE))
        self.has_netem = self._try_netem()

    def connect(self, machine: Machine, address: str, delay_s: float) -> None:
        """Connect a machine that is on; a packet takes `delay_s` from it to the switch, and as long back."""
        name = machine.name
        self.disconnect(name)
        near, far, port = f"near-{name}", f"far-{name}", f"to-{name}"
        direct = self.has_netem
        self._switch.configure(
            *("ip", "link", "add", port if direct else near, "mtu", str(_MTU), "type", "veth"),
            *("peer", "name", _LINK, "mtu", str(_MTU), "netns", str(machine.network)),
        )
        machine.configure(
            *("ip", "-batch", "-"),
            text=f"address add {address}/{_PREFIX} dev {_LINK}\nlink set {_LINK} up\n",
        )
        if direct:
            self._switch.configure("ip", "link", "set", port, "master", _BRIDGE, "up")
            for end, link in ((self._switch, port), (machine, _LINK)):
                end.configure(
                    "tc", "qdisc", "add", "dev", link, "root", "netem", "delay", f"{delay_s * 1e3:g}ms"
                )
            return
        self._switch.configure(
            *("ip", "-batch", "-"),
            text=f"link add {far} mtu {_MTU} type veth peer name {port} mtu {_MTU}\n"
            f"link set {near} up\nlink set {far} up\nlink set {port} master {_BRIDGE} up\n",
        )
        machine.inside(lambda: delay_relay.disable_offloads(_LINK))
        for link in (near, far, port):
            self._switch.inside(partial(delay_relay.disable_offloads, link))
        word = delay_relay.as_word(DelayedLink(near, far, delay_s))
        self._relays[name] = self._switch.start(sys.executable, "-m", "skerry.demo.delay_relay", word)

    def disconnect(self, name: str) -> None:
        """Remove what is left of the link of a machine that is off; nothing if there is none."""
        if (process := self._relays.pop(name, None)) is not None:
            self._switch.stop(process)
        for link in (f"near-{name}", f"to-{name}"):
            with suppress(MachineFailed):  # it went with the machine
                self._switch.configure("ip", "link", "delete", link)

    def _try_netem(self) -> bool:
        """True if this kernel has netem."""
        try:
            self._switch.configure("tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
        except (MachineFailed, FileNotFoundError):
            return False
        self._switch.configure("tc", "qdisc", "delete", "dev", "lo", "root")
        return True
