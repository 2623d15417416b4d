"""The process that unpacks, seen from the agent: fed, heard, watched, confined, and gone in the end."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import zstandard

from skerry.model import errors
from skerry.node.layers.unpacker_client import LayerUnpacker, UnpackedLayer
from skerry.node.layers.unpacker_process import ProgressWatchdog, import_paths
from tests.node.layers.ground import LIMITS, digest_of, file, folder, needs_root, pack, unpack
from tests.support.leaks import children_of
from tests.support.waiting import eventually, eventually_sync

pytestmark = needs_root

LAYER = pack(folder("a"), *(file(f"a/{number}", os.urandom(20_000)) for number in range(50)))


class Stream:
    """A layer that comes as it is let come, and remembers whether it was closed."""

    def __init__(self, *parts: bytes, then_waits: bool = False, then_fails: Exception | None = None) -> None:
        self._parts = parts
        self._waits = then_waits
        self._fails = then_fails
        self.is_dry = asyncio.Event()
        self.is_closed = False

    async def __call__(self) -> AsyncIterator[bytes]:
        try:
            for part in self._parts:
                yield part
            self.is_dry.set()
            if self._fails:
                raise self._fails
            if self._waits:
                await asyncio.Event().wait()
        finally:
            self.is_closed = True


async def begin(
    stream: Stream, target: Path, unpacker: LayerUnpacker | None = None
) -> tuple[asyncio.Task[UnpackedLayer], int]:
    """An unpacking under way, and the process that does it, confined already."""
    target.mkdir()
    before = children_of("self")
    task = asyncio.create_task(
        (unpacker or LayerUnpacker()).unpack(stream(), target, diff_id=None, limits=LIMITS)
    )
    (pid,) = await eventually(lambda: children_of("self") - before)
    await eventually(lambda: "Seccomp:\t2" in Path(f"/proc/{pid}/status").read_text())
    return task, pid


@pytest.mark.parametrize("compress", [bytes, gzip.compress, zstandard.compress])
@pytest.mark.parametrize("size", [1, 1000, 1 << 20])
async def test_a_stream_and_a_file_give_the_same(compress: type[bytes], size: int, tmp_path: Path) -> None:
    data = compress(LAYER if size > 1 else pack(file("a")))
    stream = Stream(*(data[at : at + size] for at in range(0, len(data), size)))
    (tmp_path / "streamed").mkdir()
    streamed = await LayerUnpacker().unpack(stream(), tmp_path / "streamed", diff_id=None, limits=LIMITS)
    assert streamed == await unpack(data, tmp_path / "filed")
    assert stream.is_closed
    names = [sorted(path.name for path in (tmp_path / name).rglob("*")) for name in ("streamed", "filed")]
    assert names[0] == names[1] != []


async def test_it_tells_what_it_unpacked(tmp_path: Path) -> None:
    done = await unpack(gzip.compress(LAYER), tmp_path / "target", diff_id=digest_of(LAYER))
    assert done == UnpackedLayer(digest_of(LAYER), len(LAYER), 51)


async def test_layers_are_unpacked_side_by_side(tmp_path: Path) -> None:
    layers = [pack(*(file(f"{number}-{each}") for each in range(20))) for number in range(8)]
    done = await asyncio.gather(*(unpack(data, tmp_path / str(number)) for number, data in enumerate(layers)))
    assert [each.diff_id for each in done] == [digest_of(data) for data in layers]


async def test_the_process_is_held_to_the_folder_and_to_what_it_needs(tmp_path: Path) -> None:
    task, pid = await begin(Stream(gzip.compress(LAYER)[:5000], then_waits=True), tmp_path / "target")
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    assert os.readlink(f"/proc/{pid}/root") == os.readlink(f"/proc/{pid}/cwd") == str(tmp_path / "target")
    needed = sum(1 << number for number in (0, 1, 3, 4, 21, 27, 31))
    assert (int(status["CapEff"], 16), int(status["CapPrm"], 16), int(status["CapInh"], 16)) == (
        needed,
        needed,
        0,
    )
    assert status["NoNewPrivs"] == "1"
    opened = [os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")]
    assert [path for path in opened if not path.startswith(("pipe:", str(tmp_path / "target")))] == []
    assert Path(f"/proc/{pid}/environ").read_bytes() == b""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


PROBES = {
    "open a file of the machine": "os.open('/etc/passwd', os.O_RDONLY)",
    "climb out": "os.open('../../../../etc/passwd', os.O_RDONLY)",
    "run a program": "os.execv('/bin/true', ['true'])",
    "fork": "os.fork()",
    "connect": "socket.socket(socket.AF_INET)",
    "connect to a process here": "socket.socketpair()",
    "leave the root again": "os.chroot('/')",
    "signal the agent": "os.kill(os.getppid(), 0)",
    "mount": "kernel.mount('proc', '/', 'proc')",
    "read memory of others": "libc('ptrace', 16, os.getppid(), 0, 0)",
    "open by handle": "libc('open_by_handle_at', 0, 0, 0)",
    "enter a namespace": "libc('setns', 0, 0)",
    "leave a namespace": "libc('unshare', 0x10000000)",
    "have more memory": "bytes(3 << 30)",
    "open many files": "[os.open('/', os.O_RDONLY) for _ in range(200)]",
}
PROBING = """
import ctypes, json, os, socket, sys
sys.path += sys.argv[2:]
from skerry.node.kernel import syscalls as kernel
from skerry.node.layers.unpacker import confinement
probes = json.loads(sys.argv[1])
def libc(name, *arguments):
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)
ctypes.CDLL(None)
confinement.enter(os.open('.', os.O_RDONLY))
os.mkdir('allowed', dir_fd=confinement.ROOT)
os.setxattr(confinement.ROOT, 'trusted.overlay.opaque', b'y')
told = {}
for name, probe in probes.items():
    try:
        exec(probe)
        told[name] = 'done'
    except (OSError, MemoryError) as error:
        told[name] = type(error).__name__
os.write(1, json.dumps(told).encode())
os._exit(0)
"""


def test_there_is_nothing_else_that_the_process_can_do(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", PROBING, json.dumps(PROBES), *import_paths()],
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    reported = json.loads(done.stdout)
    assert set(reported) == set(PROBES)
    assert {name: answer for name, answer in reported.items() if answer == "done"} == {}
    assert reported["have more memory"] == "MemoryError"
    assert (tmp_path / "allowed").is_dir()


async def test_a_cancel_ends_the_process_and_removes_the_folder(tmp_path: Path) -> None:
    stream = Stream(LAYER[:200_000], then_waits=True)
    task, pid = await begin(stream, tmp_path / "target")
    await eventually(lambda: (tmp_path / "target" / "a" / "3").exists())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert list(tmp_path.iterdir()) == []
    assert not Path(f"/proc/{pid}").exists()
    assert stream.is_closed


async def test_a_source_that_fails_says_so_itself(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    lost = Stream(LAYER[:5000], then_fails=errors.Unavailable("the registry is away"))
    with pytest.raises(errors.Unavailable, match="the registry is away"):
        await LayerUnpacker().unpack(lost(), tmp_path / "target", diff_id=None, limits=LIMITS)
    assert list(tmp_path.iterdir()) == []


async def test_a_time_out_of_the_source_is_not_one_of_the_process(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    with pytest.raises(TimeoutError, match="of the source"):
        await LayerUnpacker().unpack(
            Stream(LAYER[:5000], then_fails=TimeoutError("of the source"))(),
            tmp_path / "target",
            diff_id=None,
            limits=LIMITS,
        )


async def test_a_source_is_read_no_further_than_the_fault(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    stream = Stream(b"no tar at all" * 100, then_waits=True)
    with pytest.raises(errors.Invalid, match="not a tar"):
        await LayerUnpacker().unpack(stream(), tmp_path / "target", diff_id=None, limits=LIMITS)
    assert stream.is_closed


async def test_a_process_that_is_killed_is_an_error_of_ours(tmp_path: Path) -> None:
    task, pid = await begin(Stream(LAYER[:5000], then_waits=True), tmp_path / "target")
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(errors.Internal, match="died") as failure:
        await task
    assert "-9" in failure.value.detail
    assert list(tmp_path.iterdir()) == []


NONSENSE = {
    "nothing": "pass",
    "nothing but a complaint": "raise SystemExit('it hurts')",
    "no JSON": "print('hello')",
    "a line without end": "print('x' * 1000000)",
    "progress and no end": 'print(\'{"bytes": 1, "files": 1}\')',
    "another digest": "print('{\"diff_id\": \"sha256:' + '0' * 64 + '\"}')",
    "a fault that there is not": 'print(\'{"fault": "odd", "message": "odd"}\')',
}


@pytest.mark.parametrize("output", NONSENSE)
async def test_what_a_process_says_is_not_taken_on_trust(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skerry.node.layers.unpacker_process._PROGRAM", NONSENSE[output])
    with pytest.raises(errors.Internal, match="died or sent an invalid reply"):
        await unpack(LAYER, tmp_path / "target", diff_id=digest_of(LAYER))
    assert list(tmp_path.iterdir()) == []


async def test_a_process_that_stands_still_is_given_up(tmp_path: Path) -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield LAYER[:1000]
        await stopped.wait()
        while True:
            yield bytes(1 << 20)

    stopped = asyncio.Event()
    (tmp_path / "target").mkdir()
    before = children_of("self")
    task = asyncio.create_task(
        LayerUnpacker(idle_s=0.5).unpack(endless(), tmp_path / "target", diff_id=None, limits=LIMITS)
    )
    (pid,) = await eventually(lambda: children_of("self") - before)
    os.kill(pid, signal.SIGSTOP)
    stopped.set()
    with pytest.raises(errors.TimedOut, match=r"no progress for 0.5 s"):
        await task
    assert list(tmp_path.iterdir()) == []


async def test_time_does_not_run_while_the_process_has_no_input() -> None:
    async with asyncio.timeout(60) as deadline:  # noqa: ASYNC100 - it is the thing under test
        watch = ProgressWatchdog(deadline, 5)
        watch.pause()
        watch.restart()  # a line came, from what it had been given before
        assert deadline.when() is None
        watch.resume()
        assert deadline.when() is not None


async def test_a_full_disk_is_told_as_such_and_left_empty(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path], check=True)
    try:
        (tmp_path / "target").mkdir()
        stream = Stream(pack(file("a", bytes(5 << 20))))
        with pytest.raises(errors.ResourcesExhausted, match="disk is full"):
            await LayerUnpacker().unpack(stream(), tmp_path / "target", diff_id=None, limits=LIMITS)
        assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["umount", tmp_path], check=True)


ALONE = """
import os, sys
from skerry.node.layers.unpacker.main import main
main(os.open(sys.argv[1], os.O_RDONLY), os.getppid(), "", 1 << 20, 100)
"""


def test_a_process_that_cannot_be_confined_unpacks_nothing_and_says_what_it_needs(tmp_path: Path) -> None:
    done = subprocess.run(
        ["setpriv", "--bounding-set", "-sys_chroot", sys.executable, "-c", ALONE, tmp_path],
        input=pack(file("a")),
        capture_output=True,
        check=True,
    )
    answer = json.loads(done.stdout)
    assert answer["fault"] == "broken"
    assert "cannot be confined" in answer["message"]
    assert "run the node as root" in answer["message"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("missing", ["layer", "target"])
async def test_a_layer_or_a_folder_that_went_away_is_named_in_plain_words(
    missing: str, tmp_path: Path
) -> None:
    (tmp_path / "layer").write_bytes(LAYER)
    (tmp_path / "target").mkdir()
    (tmp_path / missing).rename(tmp_path / "elsewhere")
    with pytest.raises(errors.Internal, match=f"{missing} cannot be opened"):
        await LayerUnpacker().unpack(tmp_path / "layer", tmp_path / "target", diff_id=None, limits=LIMITS)
    assert not (tmp_path / "target").exists()


AGENT = """
import asyncio, os, sys
from pathlib import Path
from skerry.node.layers.unpacker_client import LayerUnpacker, UnpackLimits
async def silent():
    yield bytes(100)
    await asyncio.Event().wait()
    yield b""
limits = UnpackLimits(1000, 1000)
asyncio.run(LayerUnpacker().unpack(silent(), Path(sys.argv[1]), diff_id=None, limits=limits))
"""


def test_the_process_does_not_outlive_its_agent(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    agent = subprocess.Popen([sys.executable, "-c", AGENT, tmp_path / "target"])
    try:
        (pid,) = eventually_sync(lambda: children_of(agent.pid))
        eventually_sync(lambda: "Seccomp:\t2" in Path(f"/proc/{pid}/status").read_text())
    finally:
        agent.kill()
        agent.wait()
    eventually_sync(lambda: not is_alive(pid))


def is_alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
