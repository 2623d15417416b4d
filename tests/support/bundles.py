"""Bundles that a real runtime runs: a root of busybox, or of this machine's own programs, and the call."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skerry.kit import json_codec
from skerry.model.containers import ContainerSpec, NetworkMode
from skerry.model.images import ImageConfig
from skerry.node.containers import oci_config
from skerry.node.containers.etc_files import write_files
from skerry.node.containers.runtime_commands import PATH
from skerry.node.containers.users import ContainerUser
from tests.support.waiting import PATIENCE_S

RUNC = shutil.which("runc", path=PATH)
BUSYBOX = shutil.which("busybox", path=PATH)
needs_root = pytest.mark.root(tries=1)
needs_runc = pytest.mark.skipif(RUNC is None or BUSYBOX is None, reason="needs runc and busybox")
_APPLETS = (
    "sh",
    "cat",
    "chroot",
    "echo",
    "env",
    "grep",
    "id",
    "ls",
    "mkdir",
    "mknod",
    "mount",
    "ping",
    "pwd",
)
_MORE_APPLETS = ("head", "hostname", "ln", "mv", "rm", "sleep", "stat", "touch", "true", "ulimit", "unshare")
_PASSWD = "root:x:0:0:root:/root:/bin/sh\nweb:x:1000:1001:Web:/srv/web:/bin/sh\n"
_GROUP = "root:x:0:root\nweb:x:1001:\ndisk:x:6:root,web\ntape:x:26:web\n"


def busybox_root(folder: Path) -> Path:
    """Fill `folder` with busybox under many names, and users `root` and `web`."""
    assert BUSYBOX is not None
    for name in ("bin", "etc", "root", "srv/web", "tmp"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    shutil.copy(BUSYBOX, folder / "bin" / "busybox")
    for name in (*_APPLETS, *_MORE_APPLETS):
        (folder / "bin" / name).symlink_to("busybox")
    (folder / "etc" / "passwd").write_text(_PASSWD)
    (folder / "etc" / "group").write_text(_GROUP)
    return folder


class Bundle:
    """One container to run once, in `folder`."""

    def __init__(self, folder: Path, rootfs: Path) -> None:
        self.folder = folder
        self.rootfs = rootfs
        self.name = f"test-{secrets.token_hex(4)}"

    def config(self, *command: str, image: ImageConfig | None = None, **spec: Any) -> dict[str, Any]:
        """A configuration that may still be changed; `user` is an Identity."""
        identity = spec.pop("identity", ContainerUser())
        made = oci_config.make_config(
            ContainerSpec(name="box", image="busybox", entrypoint=command, network=NetworkMode.NONE, **spec),
            image or ImageConfig(),
            identity=identity,
            rootfs=self.rootfs,
            cgroups_path=f"/{self.name}",
            network_namespace=None,
            files=write_files(self.folder, host_name="box", address="", resolv_conf="nameserver 192.0.2.1\n"),
        )
        copy: dict[str, Any] = json_codec.decode(json_codec.encode(made), dict)
        return copy

    def run(self, config: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        """Run it to its end; the runtime and the kernel have forgotten it when this returns."""
        assert RUNC is not None
        (self.folder / "config.json").write_bytes(json_codec.encode(config))
        runc = (RUNC, "--root", str(self.folder / "state"))
        try:
            return subprocess.run(
                (*runc, "run", "--bundle", str(self.folder), self.name),
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                stdin=subprocess.DEVNULL,
            )
        finally:
            if (self.folder / "state" / self.name).exists():
                subprocess.run((*runc, "delete", "--force", self.name), check=True, timeout=PATIENCE_S)

    def output(self, script: str, **spec: Any) -> str:
        """What a shell prints that runs `script` in it."""
        done = self.run(self.config("/bin/sh", "-c", script, **spec))
        assert done.returncode == 0, done.stderr
        return done.stdout


def lend_python(config: dict[str, Any], rootfs: Path) -> str:
    """Let the container have this machine's programs, read-only; the path of Python in it."""
    for name in ("lib", "lib64", "bin"):
        if Path("/", name).is_symlink():
            shutil.rmtree(rootfs / name, ignore_errors=True)
            (rootfs / name).symlink_to(os.readlink(f"/{name}"))
        elif Path("/", name).exists():
            config["mounts"].append(_lent(f"/{name}"))
    config["mounts"].append(_lent("/usr"))
    python = os.path.realpath(sys.executable)
    if not python.startswith("/usr/"):
        config["mounts"].append(_lent(sys.base_prefix))
    return python


def _lent(path: str) -> dict[str, Any]:
    return {"destination": path, "type": "bind", "source": path, "options": ["rbind", "ro"]}
