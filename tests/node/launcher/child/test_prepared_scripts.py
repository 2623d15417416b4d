"""Lists of system calls that are laid out once, for real: in children of this process, and in others."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap

import psutil
import pytest

from skerry.node.kernel import mount_flags
from skerry.node.kernel.syscalls import StepFailed
from skerry.node.launcher.child import pause
from skerry.node.launcher.child.prepared_scripts import PreparedScript, Slot, TextSlot
from skerry.node.launcher.child.syscall_scripts import ScriptMemory, SyscallScript
from tests.support.waiting import eventually

_AT_FDCWD = mount_flags.AT_FDCWD


@pytest.fixture(scope="module")
def stage() -> ScriptMemory:
    return ScriptMemory()


@pytest.fixture
def program() -> int:
    found = pause.open_program()
    assert found is not None, "this machine executes no files in memory"
    return found


def comm(pid: int) -> str:
    with open(f"/proc/{pid}/comm") as file:
        return file.read().strip()


def paused(stage: ScriptMemory, script: PreparedScript) -> int:
    pid, pidfd = script.spawn(stage, 0, None)
    os.close(pidfd)
    return pid


def ending(pid: int) -> int:
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


async def test_the_program_of_an_init_sleeps_under_its_name_and_reaps_without_being_asked(
    stage: ScriptMemory, program: int
) -> None:
    calls = SyscallScript()
    calls.exec_file(program, b"skerry-init")
    script = PreparedScript(calls, is_program=True)
    pid = paused(stage, script)
    try:
        await eventually(lambda: comm(pid) == "skerry-init")  # set by the program itself
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            assert file.read() == b"skerry-init\0"
        os.kill(pid, signal.SIGCHLD)  # it sleeps on
        assert comm(pid) == "skerry-init"
        with open(f"/proc/{pid}/statm") as file:
            assert int(file.read().split()[0]) < 100, "it is more than a few pages"
    finally:
        os.close(program)
        assert ending(pid) == -signal.SIGKILL


@pytest.mark.root(tries=1)
def test_a_list_is_run_several_times_with_other_numbers_and_texts(
    stage: ScriptMemory, program: int, tmp_path: os.PathLike[str]
) -> None:
    calls = SyscallScript()
    calls.call("change folder", "chdir", TextSlot("folder", 200))
    calls.call("renumber", "dup3", Slot("old"), Slot("new"), 0)
    calls.exec_file(program, b"skerry-init")
    script = PreparedScript(calls, is_program=True)
    try:
        for number, folder in ((500, "/"), (501, str(tmp_path)), (502, "/usr")):
            script.set(old=0, new=number)
            script.set_text("folder", folder.encode())
            pid = paused(stage, script)
            assert os.readlink(f"/proc/{pid}/cwd") == folder
            assert os.path.lexists(f"/proc/{pid}/fd/{number}")
            assert ending(pid) == -signal.SIGKILL
    finally:
        os.close(program)


def test_the_step_that_fails_is_named_and_leaves_no_process_and_the_next_run_succeeds(
    stage: ScriptMemory, program: int
) -> None:
    calls = SyscallScript()
    calls.call("change folder", "chdir", TextSlot("folder", 200))
    calls.call("renumber", "dup3", Slot("old"), 500, 0)
    calls.exec_file(program, b"skerry-init")
    script = PreparedScript(calls, is_program=True)
    before = psutil.Process().children()
    try:
        for folder, old, step in ((b"/none", 0, "change folder"), (b"/", 9999, "renumber")):
            script.set(old=old)
            script.set_text("folder", folder)
            with pytest.raises(StepFailed) as failed:
                script.spawn(stage, 0, None)
            assert failed.value.step == step
            assert psutil.Process().children() == before
        script.set(old=0)
        assert ending(paused(stage, script)) == -signal.SIGKILL
    finally:
        os.close(program)


def test_a_program_that_cannot_be_executed_is_a_failed_exec(stage: ScriptMemory) -> None:
    folder = os.open("/", os.O_RDONLY)
    calls = SyscallScript()
    calls.call("set up", "umask", 0o022)
    calls.exec_file(folder, b"folder")
    try:
        with pytest.raises(StepFailed) as failed:
            PreparedScript(calls, is_program=True).spawn(stage, 0, None)
    finally:
        os.close(folder)
    assert (failed.value.step, failed.value.errno) == ("exec", errno.EACCES)


def test_a_text_that_is_too_long_is_refused() -> None:
    calls = SyscallScript()
    calls.call("change folder", "chdir", TextSlot("folder", 3))
    with pytest.raises(ValueError, match="longer"):
        PreparedScript(calls).set_text("folder", b"/usr/lib")


def test_a_list_that_is_run_in_a_process_changes_it_and_the_process_goes_on() -> None:
    told = in_python("""
        from skerry.node.launcher.child.prepared_scripts import PreparedScript, Slot
        from skerry.node.launcher.child.syscall_scripts import SyscallScript
        calls = SyscallScript()
        calls.call("change folder", "chdir", b"/usr")
        calls.call("renumber", "dup3", Slot("old"), 77, 0)
        script = PreparedScript(calls)
        script.set(old=1)
        script.run()
        print(os.getcwd(), os.path.lexists("/proc/self/fd/77"))
        """)
    assert told == "/usr True"


def test_a_list_ends_at_the_step_that_fails() -> None:
    told = in_python("""
        from skerry.node.launcher.child.prepared_scripts import PreparedScript
        from skerry.node.launcher.child.syscall_scripts import SyscallScript
        calls = SyscallScript()
        calls.call("change folder", "chdir", b"/usr")
        calls.call("enter", "chdir", b"/none")
        calls.call("change folder", "chdir", b"/")
        try:
            PreparedScript(calls).run()
        except OSError as error:
            print(os.getcwd(), error.step, error.errno)
        """)
    assert told == f"/usr enter {errno.ENOENT}"


def in_python(program: str) -> str:
    text = "import os\n" + textwrap.dedent(program)
    return subprocess.run(
        [sys.executable, "-c", text], check=True, capture_output=True, text=True
    ).stdout.strip()
