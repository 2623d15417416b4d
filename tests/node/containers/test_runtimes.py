"""Finding a runtime that works, with the real one and with programs that only look like one."""

from __future__ import annotations

import asyncio
import os
import shlex
import stat
import subprocess
from pathlib import Path

import pytest

from skerry.kit import json_codec
from skerry.model import errors
from skerry.node.cgroups.detection import MOUNTINFO
from skerry.node.containers import runtime_commands, runtime_probe, runtimes
from skerry.node.containers.runtimes import OciRuntime, failure_in, find_runtime
from tests.support.bundles import RUNC, Bundle, busybox_root, needs_runc
from tests.support.waiting import eventually

# Answers as runc does; what it does in a trial is the test's.
PRETENDER = """\
#!/bin/sh
echo "$@" >> {calls}
case "$*" in
    --version) echo 'runc version 9.9' ;;
    *" run "*) {run} ;;
esac
"""


class Pretender:
    """A program that calls itself a runtime and runs `run`, a line of shell, instead of a container."""

    def __init__(self, folder: Path, run: str = "exit 42") -> None:
        self.folder = folder
        self.path = folder / "runc"
        self._calls = folder / "calls"
        self.becomes(run)

    def becomes(self, run: str) -> None:
        self.path.write_text(PRETENDER.format(calls=shlex.quote(str(self._calls)), run=run))
        self.path.chmod(0o755)

    @property
    def trials(self) -> int:
        """How many containers it was to run."""
        return self._calls.read_text().count(" run ") if self._calls.exists() else 0

    async def find(self, boot_id: str = "boot") -> OciRuntime:
        return await find_runtime(str(self.path), self.folder, cgroup_root="skerry-test", boot_id=boot_id)


@pytest.fixture
def pretender(tmp_path: Path) -> Pretender:
    return Pretender(tmp_path)


async def test_what_has_run_a_container_is_a_runtime(pretender: Pretender) -> None:
    assert await pretender.find() == OciRuntime(
        path=str(pretender.path), name="runc", version="9.9", folder=str(pretender.folder / "runtime")
    )
    assert not (pretender.folder / "trial").exists()


async def test_it_is_tried_once_a_boot(pretender: Pretender) -> None:
    for _ in range(3):
        await pretender.find()
    assert pretender.trials == 1
    await pretender.find("next boot")
    assert pretender.trials == 2


async def test_another_program_is_tried_anew(pretender: Pretender) -> None:
    await pretender.find()
    pretender.becomes("exit 42 # and something else")
    await pretender.find()
    assert pretender.trials == 2


@pytest.mark.parametrize("remembered", [b"", b"{", b'{"boot_id":"boot"}', b"\xff\xfe"])
async def test_what_was_remembered_half_is_found_anew(pretender: Pretender, remembered: bytes) -> None:
    (pretender.folder / "runtime.json").write_bytes(remembered)
    assert (await pretender.find()).version == "9.9"


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        ("exit 0", "a container that exits with code 42 exited with 0"),
        ("echo 'runc run failed: cgroups: hybrid' >&2; exit 1", "does not work: cgroups: hybrid"),
        ("kill -9 $$", "a container that exits with code 42 exited with -9"),
    ],
)
async def test_what_cannot_run_a_container_is_refused_with_its_reason(
    pretender: Pretender, run: str, reason: str
) -> None:
    pretender.becomes(run)
    with pytest.raises(
        errors.Unavailable, match=r"no OCI runtime for containers: .*set node\.runtime"
    ) as caught:
        await pretender.find()
    assert reason in caught.value.message
    assert not (pretender.folder / "trial").exists()
    assert not (pretender.folder / "runtime.json").exists()


async def test_what_does_not_end_is_refused_and_killed(
    pretender: Pretender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_probe, "_TRIAL_S", 0.2)
    pretender.becomes("exec sleep 600")
    with pytest.raises(errors.Unavailable, match=r"had not ended after 0\.2 s"):
        await pretender.find()


async def test_what_is_no_runtime_is_refused(tmp_path: Path) -> None:
    for name, text in (("text", "hello"), ("odd", "#!/bin/sh\necho odd\n"), ("bad", "#!/bin/sh\nexit 3\n")):
        path = tmp_path / name
        path.write_text(text)
        path.chmod(0o755)
        with pytest.raises(errors.Unavailable, match=f"{name} does not work: "):
            await find_runtime(str(path), tmp_path, cgroup_root="skerry-test", boot_id="boot")


async def test_no_runtime_at_all_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_commands, "PATH", str(tmp_path))
    with pytest.raises(errors.Unavailable) as caught:
        await find_runtime("", tmp_path, cgroup_root="skerry-test", boot_id="boot")
    assert caught.value.message == (
        "no OCI runtime for containers: runc is not installed; crun is not installed. To fix this, "
        "install one, as with `apt-get install runc`"
    )


async def test_the_first_that_works_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_commands, "PATH", f"{tmp_path}:{runtime_commands.PATH}")
    Pretender(tmp_path, "exit 1").path.rename(tmp_path / "runc")
    (tmp_path / "good").mkdir()
    Pretender(tmp_path / "good").path.rename(tmp_path / "crun")
    found = await find_runtime("", tmp_path, cgroup_root="skerry-test", boot_id="boot")
    assert found.path == str(tmp_path / "crun")


def test_command_lines_are_what_runtimes_read() -> None:
    runtime = OciRuntime("/bin/runc", "runc", "1", "/state")
    run = runtime.run_arguments("web", bundle=Path("/b"), pid_file=Path("/p"), log=Path("/l"))
    assert shlex.join(run) == (
        "/bin/runc --root /state --log /l --log-format json run --detach --bundle /b --pid-file /p web"
    )
    further = runtime.exec_arguments(
        "web", process=Path("/x"), log=Path("/l"), pid_file=Path("/p"), console_socket=Path("/s")
    )
    assert shlex.join(further) == (
        "/bin/runc --root /state --log /l --log-format json exec --process /x --pid-file /p "
        "--console-socket /s web"
    )


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        (b"", ""),
        (b'{"level":"warning","msg":"old kernel","time":"x"}\n', ""),
        (
            b'{"level":"error","msg":"runc run failed: unable to start container process: exec: '
            b'\\"/x\\": no such file"}\n{"level":"warning","msg":"later"}\n',
            'exec: "/x": no such file',
        ),
        (b'time="x" level=error msg="exec failed: cannot \\"do\\" it"\n', 'cannot "do" it'),
        (b"plain words\n\n", "plain words"),
        (b'{"half":\n', '{"half":'),
        (b"\xff\n", "\ufffd"),
    ],
)
def test_the_last_complaint_of_a_runtime_is_found(tmp_path: Path, text: bytes, failure: str) -> None:
    (tmp_path / "log").write_bytes(text)
    assert failure_in(tmp_path / "log") == failure


def test_a_log_that_is_not_there_or_without_end_is_read_all_the_same(tmp_path: Path) -> None:
    assert failure_in(tmp_path / "absent") == ""
    (tmp_path / "log").write_bytes(b"x" * 1_000_000 + b"\nthe reason\n")
    assert failure_in(tmp_path / "log") == "the reason"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_program_of_the_trial_is_an_executable_file(machine: str, tmp_path: Path) -> None:
    program = runtime_probe.program(machine)
    assert program[:4] == b"\x7fELF"
    assert len(program) < 140
    if machine == os.uname().machine:
        (tmp_path / "program").write_bytes(program)
        (tmp_path / "program").chmod(0o755)
        assert subprocess.run([str(tmp_path / "program")]).returncode == 42


def test_there_is_no_program_for_an_unknown_processor() -> None:
    with pytest.raises(LookupError, match="this is riscv64"):
        runtime_probe.program("riscv64")


@pytest.fixture
def runtime(tmp_path: Path) -> OciRuntime:
    assert RUNC is not None
    return OciRuntime(RUNC, "runc", "1", str(tmp_path / "state"))


def groups_of(name: str) -> list[Path]:
    """Groups below any cgroup mount with `name` in their own."""
    points = [line.split()[4] for line in MOUNTINFO.read_text().splitlines() if " - cgroup" in line]
    return [path for point in points for path in Path(point).glob(f"{name}*")]


@needs_runc
@pytest.mark.root
class TestTheRealOne:
    async def test_it_is_found_and_leaves_nothing(self, tmp_path: Path) -> None:
        found = await find_runtime("", tmp_path, cgroup_root="skerry-found", boot_id="boot")
        assert (found.name, found.version[:1].isdigit()) == ("runc", True)
        assert {path.name for path in tmp_path.iterdir()} == {"runtime.json"}
        assert groups_of("skerry-found") == []

    async def test_a_trial_that_was_cut_short_is_cleaned_up(self, tmp_path: Path) -> None:
        trial = tmp_path / "trial"
        assert RUNC is not None
        runtime_probe._make_root(trial / "image")
        runtime_probe._make_bundle(trial, "skerry-cut", trial / "image", None)
        subprocess.run(
            [RUNC, "--root", str(trial / "state"), "create", "--bundle", str(trial), "trial"],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        assert groups_of("skerry-cut")
        await find_runtime("runc", tmp_path, cgroup_root="skerry-again", boot_id="boot")
        assert not trial.exists()
        assert groups_of("skerry-cut") == []

    async def test_a_container_has_a_state_takes_signals_and_is_deleted(
        self, tmp_path: Path, runtime: OciRuntime
    ) -> None:
        box = Bundle(tmp_path, busybox_root(tmp_path / "rootfs"))
        config = box.config("/bin/sh", "-c", "trap 'exit 3' USR1; echo ready; while :; do sleep 0.01; done")
        (tmp_path / "config.json").write_bytes(json_codec.encode(config))
        with pytest.raises(errors.NotFound, match="runc has no container"):
            await runtime.state(box.name)
        arguments = runtime.run_arguments(
            box.name, bundle=tmp_path, pid_file=tmp_path / "pid", log=tmp_path / "log"
        )
        with open(tmp_path / "output", "wb") as output:
            done = subprocess.run(arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            assert done.returncode == 0
            assert await runtime.state(box.name) == "running"
            await eventually(lambda: (tmp_path / "output").read_text() == "ready\n")
            (tmp_path / "process.json").write_bytes(
                json_codec.encode({**config["process"], "args": ["/bin/hostname"]})
            )
            inner = runtime.exec_arguments(
                box.name, process=tmp_path / "process.json", log=tmp_path / "log", pid_file=tmp_path / "inner"
            )
            reported = await asyncio.to_thread(
                subprocess.run, inner, stdin=subprocess.DEVNULL, capture_output=True, text=True
            )
            assert (reported.stdout, reported.stderr, reported.returncode) == ("box\n", "", 0)
            await runtime.kill(box.name, 10)

            async def has_stopped() -> bool:
                return await runtime.state(box.name) == "stopped"

            await eventually(has_stopped)
            with pytest.raises(
                errors.FailedPrecondition, match="runc cannot kill the container: container not running"
            ):
                await runtime.kill(box.name, 10)
        finally:
            await runtime.delete(box.name)
        await runtime.delete(box.name)
        assert groups_of(box.name) == []
        with pytest.raises(errors.NotFound):
            await runtime.kill(box.name, 9)

    async def test_what_a_killed_exec_left_mounted_goes_with_its_container(
        self, tmp_path: Path, runtime: OciRuntime
    ) -> None:
        box = Bundle(tmp_path, busybox_root(tmp_path / "rootfs"))
        (tmp_path / "config.json").write_bytes(json_codec.encode(box.config("/bin/sleep", "600")))
        paths = {"bundle": tmp_path, "pid_file": tmp_path / "pid", "log": tmp_path / "log"}
        silent = subprocess.DEVNULL
        subprocess.run(
            runtime.run_arguments(box.name, **paths), stdin=silent, stdout=silent, stderr=silent, check=True
        )
        # As runc does in its first moment.
        leftovers = Path(runtime.folder, box.name, "runc.Ab3xYz")
        leftovers.touch()
        subprocess.run(["mount", "--bind", runtime.path, leftovers], check=True)
        await runtime.delete(box.name)
        assert str(leftovers) not in Path("/proc/self/mountinfo").read_text()
        assert not leftovers.parent.exists()
        assert groups_of(box.name) == []

    async def test_a_program_that_is_not_there_is_told_in_plain_words(
        self, tmp_path: Path, runtime: OciRuntime
    ) -> None:
        box = Bundle(tmp_path, busybox_root(tmp_path / "rootfs"))
        (tmp_path / "config.json").write_bytes(json_codec.encode(box.config("serve")))
        arguments = runtime.run_arguments(
            box.name, bundle=tmp_path, pid_file=tmp_path / "pid", log=tmp_path / "log"
        )
        done = subprocess.run(arguments, capture_output=True, stdin=subprocess.DEVNULL)
        assert done.returncode != 0
        assert failure_in(tmp_path / "log") == 'exec: "serve": executable file not found in $PATH'


async def test_a_runtime_that_hangs_or_is_gone_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state" / "web").mkdir(parents=True)
    path = tmp_path / "hangs"
    path.write_text("#!/bin/sh\nexec sleep 600\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(runtimes, "_CALL_S", 0.2)
    runtime = OciRuntime(str(path), "runc", "1", str(tmp_path / "state"))
    with pytest.raises(errors.TimedOut, match=r"`runc state` did not end in 0\.2 s"):
        await runtime.state("web")
    path.write_text("#!/bin/sh\necho nonsense\n")
    with pytest.raises(errors.Internal, match="returned an unreadable state"):
        await runtime.state("web")
    path.unlink()
    with pytest.raises(
        errors.Unavailable, match="cannot be run: No such file or directory; install it again"
    ):
        await runtime.delete("web")
