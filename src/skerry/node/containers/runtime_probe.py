"""Probes an OCI runtime: runs a container with the usual configuration around a tiny program.

The program needs nothing of the machine, no library and no shell: it is an executable file of 130 bytes,
generated here, which exits with a distinctive code. The container has no network and runs for some 30 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from skerry.kit import json_codec
from skerry.model import errors
from skerry.model.containers import ContainerSpec, NetworkMode
from skerry.model.images import ImageConfig
from skerry.node.containers import oci_config, runtime_commands, tree_size
from skerry.node.containers.etc_files import write_files
from skerry.node.containers.overlays import UPPER, WORK, Overlays
from skerry.node.containers.users import NODE_IDS, ContainerUser
from skerry.node.kernel import syscalls
from skerry.node.user_namespaces import UserNamespace, UserNamespaces

_CODE: Final = 42
_TRIAL_S: Final = 30.0
_NAME: Final = "trial"
_LOADED_AT: Final = 0x400000
_HEADERS_BYTES: Final = 64 + 56

# The machine number in ELF headers, and code that calls exit(42).
_PROGRAMS: Final = {
    "x86_64": (62, bytes.fromhex("b83c000000 bf2a000000 0f05")),  # mov eax,60; mov edi,42; syscall
    "aarch64": (183, bytes.fromhex("a80b80d2 400580d2 010000d4")),  # mov x8,93; mov x0,42; svc 0
}


def program(machine: str = syscalls.MACHINE) -> bytes:
    """An executable file that exits with code 42. Raises LookupError for an unsupported architecture."""
    if machine not in _PROGRAMS:
        raise LookupError(f"containers run on {', '.join(_PROGRAMS)} only, and this is {machine}")
    number, instructions = _PROGRAMS[machine]
    size = _HEADERS_BYTES + len(instructions)
    entry = _LOADED_AT + _HEADERS_BYTES
    # 64 bits, little-endian; an executable with one segment, readable and executable, and no sections.
    identification = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = struct.pack("<HHIQQQIHHHHHH", 2, number, 1, entry, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _LOADED_AT, _LOADED_AT, size, size, 4096)
    return identification + header + segment + instructions


async def probe_failure(
    runtime: str,
    folder: Path,
    cgroup_root: str,
    *,
    users: UserNamespaces | None = None,
    ids: int = NODE_IDS,
) -> str:
    """Run a container with `runtime`, in `folder`, which is created and removed; why that failed, or empty.
    With `users` it has a user namespace, and a root with mapped owners. Without `cgroup_root` it has no
    cgroup, and `ids` exist."""
    try:
        await _clean(runtime, folder, users)
        await asyncio.to_thread(_make_root, folder / "image")
        with _laid_out(folder, users) as (rootfs, namespace):
            await asyncio.to_thread(_make_bundle, folder, cgroup_root, rootfs, namespace, ids)
            done = await runtime_commands.run_command(
                (runtime, "--root", str(folder / "state"), "run", "--bundle", str(folder), _NAME), _TRIAL_S
            )
    except TimeoutError:  # an OSError, without a text
        return f"a container that exits at once had not ended after {_TRIAL_S:g} s"
    except (OSError, LookupError) as error:
        return str(error)
    except errors.SkerryError as error:
        return error.message
    finally:
        await _clean(runtime, folder, users)
    if done.code == _CODE:
        return ""
    return done.failure or f"a container that exits with code {_CODE} exited with {done.code}"


def _make_root(root: Path) -> None:
    root.mkdir(mode=0o755, parents=True)
    (root / _NAME).write_bytes(program())
    (root / _NAME).chmod(0o755)


@contextlib.contextmanager
def _laid_out(folder: Path, users: UserNamespaces | None) -> Iterator[tuple[Path, UserNamespace | None]]:
    """The path of the root for the runtime, as for every container in a user namespace."""
    if users is None:
        yield folder / "image", None
        return
    rootfs, layer, overlays = folder / "rootfs", folder / "layer", Overlays(folder, "")
    namespace = users.make(_NAME)
    for name in (UPPER, WORK):
        (layer / name).mkdir(parents=True)
    overlays.mount(rootfs, [folder / "image"], layer=layer, users=namespace)
    with overlays.reachable(rootfs, namespace) as reachable:
        yield reachable, namespace


def _make_bundle(
    folder: Path, cgroup_root: str, rootfs: Path, users: UserNamespace | None, ids: int = NODE_IDS
) -> None:
    spec = ContainerSpec(name=_NAME, image=_NAME, entrypoint=(f"/{_NAME}",), network=NetworkMode.NONE)
    config = oci_config.make_config(
        spec,
        ImageConfig(),
        identity=ContainerUser(ids=ids),
        rootfs=rootfs,
        # A top-level cgroup of its own: the runtime removes all of it.
        cgroups_path=f"/{cgroup_root}-trial-{secrets.token_hex(4)}" if cgroup_root else "",
        network_namespace=None,
        files=write_files(folder, host_name=_NAME, address="", resolv_conf=""),
        users=users,
    )
    (folder / "config.json").write_bytes(json_codec.encode(config))


async def _clean(runtime: str, folder: Path, users: UserNamespaces | None) -> None:
    """Remove the probe, also one during which an agent was killed."""
    if (folder / "state" / _NAME).exists():
        await runtime_commands.run_command(
            (runtime, "--root", str(folder / "state"), "delete", "--force", _NAME), _TRIAL_S
        )
    if users is not None:
        await asyncio.to_thread(users.keep_only, ())
        await asyncio.to_thread(Overlays(folder, "").unmount, folder / "rootfs")
    await asyncio.to_thread(tree_size.remove, folder)
