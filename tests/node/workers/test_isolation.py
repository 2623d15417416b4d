"""What a worker can see and do, asked from inside of one."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from skerry.model.containers import NetworkMode
from skerry.model.resources import Megabytes
from skerry.node.workers import interpreters
from skerry.node.workers.prestarted import CODE
from skerry.node.workers.process_workers import ProcessWorker
from tests.node.network import machines
from tests.node.workers.ground import SUBNET, Agent, Ground, answered
from tests.support.waiting import eventually

pytestmark = pytest.mark.root

# Evaluates an expression, or tells the error that it raised.
RUN = ["configs", "secrets"]  # empty, for a function that has none
PROBE = """
import ctypes, os, signal, socket, subprocess, sys, threading
def write(path):
    with open(path, "w") as file:
        file.write("x")
    return True
def status(name):
    with open("/proc/self/status") as file:
        return next(line.split()[1] for line in file if line.startswith(name + ":"))
def handle(params):
    try:
        return repr(eval(params))
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
"""


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    with machines.machine(tmp_path):
        ground = Ground(tmp_path / "data", has_network=True)
        ground.folder.mkdir(mode=0o700)
        yield ground
        leftovers = ground.leftovers()
        await ground.clear()
        assert leftovers == []


@pytest.fixture
async def agent(ground: Ground) -> AsyncIterator[Agent]:
    async with ground.agent() as agent:
        yield agent


async def probe(worker: ProcessWorker, expression: str) -> str:
    answer = await answered(worker, json.dumps(expression).encode())
    assert answer.failure is None, answer.error
    reported: str = json.loads(answer.result)
    return reported


async def value(worker: ProcessWorker, expression: str) -> Any:
    return eval(await probe(worker, expression))


async def test_a_worker_sees_its_code_and_its_own_processes_and_writes_only_to_tmp(
    ground: Ground, agent: Agent
) -> None:
    (ground.folder / "secret").write_text("of the node")
    other = await agent.workers.spawn(ground.function(name="other"), ground.code("other", main=PROBE))
    worker = await agent.workers.spawn(ground.function(), ground.code(main=PROBE))
    uid = agent.cells.get(worker._blank.cell).uid
    assert await value(worker, "os.getresuid() + os.getresgid()") == (uid,) * 6
    assert await value(worker, "os.getgroups()") == []
    assert await value(other, "os.getuid()") != uid

    assert await value(worker, "sorted(int(n) for n in os.listdir('/proc') if n.isdigit())") == [1, 2]
    groups = await value(worker, "[line.split(':', 2)[2] for line in open('/proc/self/cgroup')]")
    assert set(groups) == {"/\n"}
    assert await value(worker, "os.listdir('/home/function')") == ["main.py"]
    assert await value(worker, "sorted(os.listdir('/home'))") == ["function", "runtime"]
    assert await value(worker, "os.listdir('/home/runtime')") == []
    assert await value(worker, "os.listdir('/root')") == []
    assert "secret" not in await probe(worker, f"os.listdir({str(ground.folder)!r})")
    assert "Error" in await probe(worker, f"open({str(ground.folder / 'secret')!r}).read()")
    assert await value(worker, "sorted(n for n in os.listdir('/run') if n != 'systemd')") == RUN
    assert await value(worker, "[os.listdir(f'/run/{n}') for n in ('configs', 'secrets')]") == [[], []]
    assert await value(worker, "os.getcwd()") == "/home/function"

    for path in (f"{CODE}/x", "/home/x", "/x", "/etc/x", "/run/x", "/dev/x", "/sys/x", "/proc/sys/x"):
        assert "Error" in await probe(worker, f"write({path!r})"), path
    for path in ("/tmp/x", "/var/tmp/x", "/dev/shm/x"):
        assert await value(worker, f"write({path!r})") is True
    assert await value(other, "os.listdir('/tmp')") == []
    for each in (worker, other):
        await each.close()


async def test_a_worker_sees_no_folder_file_socket_or_mount_of_the_host_but_usr(
    ground: Ground, agent: Agent
) -> None:
    worker = await agent.workers.spawn(ground.function(), ground.code(main=PROBE))
    for folder in ("/srv", "/opt", "/mnt", "/var/lib", "/var/log", "/media", "/boot"):
        path = Path(folder, f"skt-{os.getpid()}.sock")
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            try:
                path.chmod(0o777)
                listening.listen()
                assert "FileNotFoundError" in await probe(
                    worker, f"socket.socket(socket.AF_UNIX).connect({str(path)!r})"
                )
                assert "FileNotFoundError" in await probe(worker, f"os.listdir({folder!r})")
            finally:
                path.unlink()
    assert await value(worker, "sorted(os.listdir('/run'))") == RUN
    assert set(await value(worker, "os.listdir('/var')")) == {"empty", "run", "tmp"}
    etc = set(await value(worker, "os.listdir('/etc')"))
    assert {"passwd", "hosts", "resolv.conf", "ld.so.cache"} <= etc
    assert len(etc) < 25
    assert not etc & {
        "shadow",
        "ssh",
        "sudoers",
        "fstab",
        "machine-id",
        "hostname",
        "systemd",
        "apt",
        "default",
    }
    users = await value(worker, "open('/etc/passwd').read().split()")
    assert [line.partition(":")[0] for line in users] == ["root", "nobody"]
    points = await value(worker, "[line.split()[4] for line in open('/proc/self/mountinfo')]")
    stored = ("/usr", "/lib", "/etc/", "/dev", "/proc", "/sys", "/tmp", "/var/tmp", "/home/function")
    assert [point for point in points if point != "/" and not point.startswith(stored)] == []
    assert not set(os.listdir("/etc")) <= etc, "the host has more"
    # What programs are there for goes on.
    for deed in ("__import__('ssl').create_default_context()", "socket.getaddrinfo('localhost', 80)"):
        assert "Error" not in await probe(worker, deed), deed
    ran = "subprocess.run(['sh', '-c', 'awk \"BEGIN { print 6 * 7 }\"'], capture_output=True).stdout"
    assert await value(worker, ran) == b"42\n"
    await worker.close()


async def test_a_worker_has_no_privileges_and_gains_none(ground: Ground, agent: Agent) -> None:
    worker = await agent.workers.spawn(ground.function(), ground.code(main=PROBE))
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(await value(worker, f"status({name!r})"), 16) == 0, name
    assert await value(worker, "status('NoNewPrivs')") == "1"
    assert await value(worker, "status('Seccomp')") == "2"
    for deed in (
        "os.setuid(0)",
        "os.setgid(0)",
        "os.chroot('/tmp')",
        "os.nice(-5)",
        "os.kill(1, 9) or open(1/0)",
    ):
        assert "Error" in await probe(worker, deed), deed
    refused = "ctypes.CDLL(None, use_errno=True).{}"
    for call in ("unshare(0x10000000)", "umount2(b'/home/function', 2)", "ptrace(16, 1, 0, 0)"):
        assert await value(worker, refused.format(call)) == -1, call
    unlisted = {"x86_64": 237, "aarch64": 235}[os.uname().machine]  # mbind: dangerous to nobody
    assert await value(
        worker, f"[(l := ctypes.CDLL(None, use_errno=True)).syscall({unlisted}), ctypes.get_errno()]"
    ) == [-1, errno.EPERM]
    # Its own streams, its socket, the file that tells of new processes, and what this very listing opens.
    fds = await value(worker, "sorted(int(n) for n in os.listdir('/proc/self/fd'))")
    assert fds in ([*range(5)], [*range(6)])
    assert await value(worker, "subprocess.run(['id', '-u'], capture_output=True).returncode") == 0
    assert await value(worker, "[m for m in sys.modules if m.partition('.')[0] == 'skerry']") == []
    assert "ModuleNotFoundError" in await probe(worker, "__import__('skerry')")
    assert "ModuleNotFoundError" in await probe(worker, "__import__('msgspec')")
    assert await value(worker, "signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL") is True
    assert await value(worker, "signal.pthread_sigmask(signal.SIG_BLOCK, ())") == set()
    assert "PYTHON" not in await probe(worker, "dict(os.environ)")
    await worker.close()


async def test_a_worker_has_an_address_of_its_own_or_only_loopback(ground: Ground, agent: Agent) -> None:
    code = ground.code(main=PROBE)
    worker = await agent.workers.spawn(ground.function(), code)
    alone = await agent.workers.spawn(ground.function(name="alone", network=NetworkMode.NONE), code)
    assert agent.network is not None
    address = agent.network.attachments()[worker._blank.cell].address
    names = "[name for _, name in socket.if_nameindex()]"
    assert await value(worker, names) == ["lo", "eth0"]
    assert await value(worker, "sorted(os.listdir('/sys/class/net'))") == ["eth0", "lo"]
    bound = "socket.socket().bind(({!r}, 8000))"
    assert await value(worker, bound.format(address)) is None
    assert "OSError" in await probe(worker, bound.format(SUBNET.replace("0/24", "1")))
    assert "192.0.2.53" in await value(worker, "open('/etc/resolv.conf').read()")
    assert await value(alone, names) == ["lo"]
    assert await value(alone, "os.listdir('/sys/class/net')") == ["lo"]
    assert await value(alone, bound.format("127.0.0.1")) is None
    assert "Network is unreachable" in await probe(alone, "socket.create_connection(('192.0.2.1', 80))")
    for each in (worker, alone):
        await each.close()
    network = agent.network
    await eventually(lambda: worker._blank.cell not in network.attachments())


async def test_a_node_worker_is_confined_like_any_other(ground: Ground, agent: Agent) -> None:
    code = ground.code(
        main_js="const fs = require('fs');\n"
        "const look = (path) => { try { return fs.readdirSync(path).sort(); } catch (error) "
        "{ return error.code; } };\n"
        "const write = (path) => { try { fs.writeFileSync(path, 'x'); return ''; } catch (error) "
        "{ return error.code; } };\n"
        "exports.handle = (paths) => ({ uid: process.getuid(), look: paths.map(look), "
        f"write: ['{CODE}/x', '/tmp/x'].map(write),\n"
        "  status: fs.readFileSync('/proc/self/status', 'utf8') });\n"
    )
    worker = await agent.workers.spawn(ground.function(runtime="nodejs20", memory=Megabytes(256)), code)
    paths = ["/home", "/home/function", "/home/runtime", "/root", str(ground.folder)]
    seen = json.loads((await answered(worker, json.dumps(paths).encode())).result)
    assert seen["uid"] == agent.cells.get(worker._blank.cell).uid
    assert seen["look"][:4] == [["function", "runtime"], ["main.js"], ["worker.js", "worker_web.js"], []]
    assert seen["look"][4] in ([], "ENOENT", "EACCES")
    assert seen["write"] == ["EROFS", ""]
    status = dict(line.split(":\t", 1) for line in seen["status"].splitlines() if ":\t" in line)
    assert (status["CapEff"], status["NoNewPrivs"], status["Seccomp"]) == ("0" * 16, "1", "2")
    await worker.close()


async def test_an_interpreter_outside_of_usr_is_shown_with_nothing_around_it(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = shutil.which("node", path=interpreters.ENVIRONMENT["PATH"])
    assert node is not None
    with tempfile.TemporaryDirectory(dir="/opt", prefix="skt-") as name:
        (place := Path(name)).chmod(0o755)
        (place / "bin").mkdir()
        shutil.copy(node, place / "bin" / "node")
        (place / "secret").write_text("of somebody else")
        monkeypatch.setattr(
            interpreters, "ENVIRONMENT", {"PATH": f"{place}/bin:{interpreters.ENVIRONMENT['PATH']}"}
        )
        code = ground.code(
            main_js="const look = (path) => require('fs').readdirSync(path);\n"
            f"exports.handle = () => [process.execPath, look('/opt'), look('{place}')];\n"
        )
        async with ground.agent() as agent:
            function = ground.function(runtime="nodejs20", memory=Megabytes(256))
            worker = await agent.workers.spawn(function, code)
            seen = json.loads((await answered(worker)).result)
            assert seen == [f"{place}/bin/node", [place.name], ["bin"]]
            await worker.close()
