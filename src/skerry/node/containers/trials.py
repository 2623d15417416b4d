"""A container that proves a runtime: the usual configuration around a program of a few instructions.

The program needs nothing of the machine, no library and no shell: it is a whole executable file of 130
bytes, made here, which ends with a code that nobody else would. The container has no network and lives for
some 30 ms.
"""

from __future__ import annotations

import asyncio
import secrets
import struct
from pathlib import Path
from typing import Final

from skerry.kit import jsonio
from skerry.model.containers import ContainerSpec, NetworkMode
from skerry.model.images import ImageConfig
from skerry.node.containers import bundle, calls, trees
from skerry.node.containers.files import write_files
from skerry.node.containers.users import Identity
from skerry.node.launcher import kernel

_CODE: Final = 42
_TRIAL_S: Final = 30.0
_NAME: Final = "trial"
_LOADED_AT: Final = 0x400000
_HEADERS_BYTES: Final = 64 + 56

# The number of the machine in executables, and what calls exit(42).
_PROGRAMS: Final = {
    "x86_64": (62, bytes.fromhex("b83c000000 bf2a000000 0f05")),  # mov eax,60; mov edi,42; syscall
    "aarch64": (183, bytes.fromhex("a80b80d2 400580d2 010000d4")),  # mov x8,93; mov x0,42; svc 0
}


def program(machine: str = kernel.MACHINE) -> bytes:
    """An executable file that ends with code 42. Raises LookupError for a processor not known here."""
    if machine not in _PROGRAMS:
        raise LookupError(f"containers need one of {', '.join(_PROGRAMS)}, and this is {machine}")
    number, instructions = _PROGRAMS[machine]
    size = _HEADERS_BYTES + len(instructions)
    entry = _LOADED_AT + _HEADERS_BYTES
    # 64 bits, little-endian; an executable with one segment and no sections, to be read and run.
    identification = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = struct.pack("<HHIQQQIHHHHHH", 2, number, 1, entry, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _LOADED_AT, _LOADED_AT, size, size, 4096)
    return identification + header + segment + instructions


async def why_not(runtime: str, folder: Path, cgroup_root: str) -> str:
    """Run a container with `runtime`, in `folder`, which comes and goes; why that failed, or nothing."""
    try:
        await _clean(runtime, folder)
        await asyncio.to_thread(_make_bundle, folder, cgroup_root)
        done = await calls.call(
            (runtime, "--root", str(folder / "state"), "run", "--bundle", str(folder), _NAME), _TRIAL_S
        )
    except TimeoutError:  # an OSError, without a text
        return f"a container that ends at once had not ended after {_TRIAL_S:g} s"
    except (OSError, LookupError) as error:
        return str(error)
    finally:
        await _clean(runtime, folder)
    if done.code == _CODE:
        return ""
    return done.failure or f"a container that ends with code {_CODE} ended with {done.code}"


def _make_bundle(folder: Path, cgroup_root: str) -> None:
    rootfs = folder / "rootfs"
    rootfs.mkdir(mode=0o755, parents=True)
    (rootfs / _NAME).write_bytes(program())
    (rootfs / _NAME).chmod(0o755)
    spec = ContainerSpec(name=_NAME, image=_NAME, entrypoint=(f"/{_NAME}",), network=NetworkMode.NONE)
    config = bundle.make_config(
        spec,
        ImageConfig(),
        identity=Identity(),
        rootfs=rootfs,
        # A group of its own at the top: the runtime removes what it made, and that is all of it.
        cgroups_path=f"/{cgroup_root}-trial-{secrets.token_hex(4)}",
        network_namespace=None,
        files=write_files(folder, host_name=_NAME, address="", resolv_conf=""),
    )
    (folder / "config.json").write_bytes(jsonio.encode(config))


async def _clean(runtime: str, folder: Path) -> None:
    """Remove the trial, also one that an agent was killed in the middle of."""
    if (folder / "state" / _NAME).exists():
        await calls.call((runtime, "--root", str(folder / "state"), "delete", "--force", _NAME), _TRIAL_S)
    await asyncio.to_thread(trees.remove, folder)
