"""Lists of system calls that a new process makes, for real, in children of a process of one thread."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap

import psutil
import pytest

from skerry.node.kernel.syscalls import StepFailed
from skerry.node.launcher.child.syscall_scripts import ScriptMemory, SyscallScript

SHELL = b"/bin/sh"


@pytest.fixture(scope="module")
def stage() -> ScriptMemory:
    return ScriptMemory()


def output_of(
    script: SyscallScript, stage: ScriptMemory, paths: list[bytes], *words: bytes
) -> tuple[bytes, int]:
    """What the program prints, and how it ends."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    try:
        script.call("set up", "dup3", writing, 1, 0)
        script.exec(paths, [b"sh", *words], {b"A": b"1", b"B": b"two words"})
        pid, pidfd = script.spawn(stage, None)
        os.close(pidfd)
        os.close(writing)
        writing = -1
        with open(reading, "rb", closefd=False) as file:
            output = file.read()
        return output, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)


def test_the_program_gets_its_arguments_and_its_environment(stage: ScriptMemory) -> None:
    output, code = output_of(
        SyscallScript(), stage, [SHELL], b"-c", b'echo "$A-$B-$1"; exit 7', b"sh", b"\xff x"
    )
    assert output == b"1-two words-\xff x\n"
    assert code == 7


def test_the_calls_are_made_in_the_child_and_not_here(
    stage: ScriptMemory, tmp_path: os.PathLike[str]
) -> None:
    here, session = os.getcwd(), os.getsid(0)
    script = SyscallScript()
    script.call("change folder", "chdir", os.fsencode(tmp_path))
    script.call("set up", "umask", 0o027)
    script.call("set up", "setsid")
    output, _ = output_of(
        script,
        stage,
        [SHELL],
        b"-c",
        b"pwd; umask; read -r p c s pp g session rest < /proc/self/stat; [ $session = $$ ] && echo leads",
    )
    assert output == os.fsencode(tmp_path) + b"\n0027\nleads\n"
    assert (os.getcwd(), os.getsid(0)) == (here, session)


def test_a_call_that_fails_is_told_with_its_step_and_the_child_is_gone(stage: ScriptMemory) -> None:
    before = psutil.Process().children()
    script = SyscallScript()
    script.call("change folder", "chdir", b"/no/such/folder")
    script.exec([SHELL], [b"sh"], {})
    with pytest.raises(StepFailed) as caught:
        script.spawn(stage, None)
    assert (caught.value.step, caught.value.errno) == ("change folder", errno.ENOENT)
    assert psutil.Process().children() == before, "a child is left, be it a dead one"


def test_nothing_after_a_call_that_failed_is_done(stage: ScriptMemory) -> None:
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        script = SyscallScript()
        script.call("fail", "chdir", b"/no/such/folder")
        script.call("go on", "write", writing, b"x", 1)
        with pytest.raises(StepFailed):
            script.spawn(stage, None)
        with pytest.raises(BlockingIOError):
            os.read(reading, 1)
    finally:
        os.close(reading)
        os.close(writing)


def test_the_first_program_that_is_there_runs(stage: ScriptMemory) -> None:
    output, _ = output_of(SyscallScript(), stage, [b"/no/sh", b"/etc/passwd/sh", SHELL], b"-c", b"echo here")
    assert output == b"here\n"


@pytest.mark.parametrize(
    ("paths", "number"),
    [
        ([b"/no/such/program"], errno.ENOENT),
        ([b"/no/such/program", b"/etc/passwd"], errno.EACCES),
        ([b"/etc/passwd", b"/no/such/program"], errno.EACCES),
        ([b"/etc/passwd", b"/" + b"a" * 300], errno.ENAMETOOLONG),
    ],
)
def test_of_programs_that_do_not_run_the_most_telling_reason_is_told(
    stage: ScriptMemory, paths: list[bytes], number: int
) -> None:
    script = SyscallScript()
    script.exec(paths, [b"x"], {})
    with pytest.raises(StepFailed) as caught:
        script.spawn(stage, None)
    assert (caught.value.step, caught.value.errno) == ("exec", number)


def test_what_does_not_fit_is_refused_before_there_is_a_child(stage: ScriptMemory) -> None:
    script = SyscallScript()
    script.exec([SHELL], [b"x" * 2**20], {})
    with pytest.raises(StepFailed) as caught:
        script.spawn(stage, None)
    assert caught.value.errno == errno.E2BIG


def test_as_many_words_as_a_message_can_hold_arrive(stage: ScriptMemory) -> None:
    many = [b"w"] * 40_000
    output, _ = output_of(SyscallScript(), stage, [SHELL], b"-c", b"echo $#", b"sh", *many)
    assert output == b"40000\n"


def test_a_child_that_is_killed_on_the_way_has_run(stage: ScriptMemory) -> None:
    """Nobody can tell it from one whose program was killed at once."""
    before = signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # what Python ignores stays ignored in a child
    script = SyscallScript()
    script.call("limit", "prlimit64", 0, 1, (0).to_bytes(8, "little") * 2, 0)  # no file may grow
    file = os.memfd_create("full")
    try:
        script.call("write", "write", file, b"x", 1)  # SIGXFSZ
        script.exec([SHELL], [b"sh"], {})
        pid, pidfd = script.spawn(stage, None)
        os.close(pidfd)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGXFSZ
    finally:
        signal.signal(signal.SIGXFSZ, before)
        os.close(file)


def test_the_same_calls_can_be_made_in_a_process_that_stays() -> None:
    program = """
        import os
        from skerry.node.kernel.syscalls import StepFailed
        from skerry.node.launcher.child.syscall_scripts import SyscallScript
        script = SyscallScript()
        script.call("change folder", "chdir", b"/usr")
        script.call("set up", "umask", 0o027)
        script.perform()
        print(os.getcwd(), oct(os.umask(0)))
        script.call("change folder again", "chdir", b"/no/such/folder")
        try:
            script.perform()
        except StepFailed as failed:
            print(failed.step, failed.errno)
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True
    )
    assert run.stdout == f"/usr 0o27\nchange folder again {errno.ENOENT}\n"
