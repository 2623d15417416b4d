"""What an executable is born with, and how its end or its failure is told."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from skerry.model import errors
from skerry.model.cells import Sandbox
from skerry.node.launcher.child.exec_setup import candidates
from skerry.node.launcher.specs import StartSpec
from tests.node.launcher.ground import LOG_BYTES, UID, LaunchedCell, gone, needs_root

pytestmark = needs_root


async def test_output_goes_to_rings_and_the_exit_to_a_record_before_it_is_told(cell: LaunchedCell) -> None:
    key, started = await cell.start("echo out; echo err >&2; exit 3")
    started.close()
    exited = await cell.ended(key)
    record = json.loads((cell.place(key) / "exit.json").read_text())
    assert record == {"code": 3, "signal": None, "at": exited.at}
    assert (exited.code, exited.signal) == (3, None)
    # What it printed is there already: nobody who waits for the exit reads too early.
    assert (cell.printed(key), cell.printed(key, "stderr")) == (b"out\n", b"err\n")


async def test_the_pid_is_the_hosts_even_if_the_process_is_gone_at_once(cell: LaunchedCell) -> None:
    for _ in range(20):
        key, started = await cell.start("", sandbox=Sandbox(arguments=("/bin/true",)))
        started.close()
        await cell.ended(key)
        assert started.pid > cell.init.pid
        await gone(started.pid)


async def test_the_pid_names_the_process_that_runs(cell: LaunchedCell) -> None:
    _, started = await cell.start("", sandbox=Sandbox(arguments=("sleep", "600")))
    started.close()
    assert Path(f"/proc/{started.pid}/cmdline").read_bytes() == b"sleep\x00600\x00"


async def test_a_killed_executable_is_reported_by_its_signal(cell: LaunchedCell) -> None:
    key, started = await cell.start("sleep 600")
    signal.pidfd_send_signal(started.pidfd, signal.SIGTERM)
    started.close()
    exited = await cell.ended(key)
    assert (exited.code, exited.signal) == (None, signal.SIGTERM)
    await gone(started.pid)


async def test_it_is_in_its_leaf_from_its_first_instruction(cell: LaunchedCell) -> None:
    # Its cgroup namespace is made in its groups, so that they are the root of what it sees in each hierarchy.
    ran = await cell.run("", sandbox=Sandbox(arguments=("/bin/cat", "/proc/self/cgroup")))
    assert {line.split(":", 2)[2] for line in ran.out.splitlines()} == {"/"}
    _, started = await cell.start("sleep 600")
    started.close()
    seen = Path(f"/proc/{started.pid}/cgroup").read_text()
    assert "/one/_x2\n" in seen
    # In every hierarchy it is where its init is, but for the leaf.
    of_the_init = Path(f"/proc/{cell.init.pid}/cgroup").read_text()
    assert seen.replace("/_x2", "/_init") == of_the_init


async def test_environment_folder_umask_and_limits_are_as_asked(cell: LaunchedCell) -> None:
    sandbox = Sandbox(environment=("A=1", "B=x=y z", "PATH=/bin"), folder="/usr", open_files=77)
    ran = await cell.run('echo "$A|$B|$PATH|$LANG"; pwd; umask; ulimit -n; ulimit -c', sandbox=sandbox)
    assert ran.out == "1|x=y z|/bin|C.UTF-8\n/usr\n0022\n77\n0\n"


async def test_standard_input_is_at_its_end_and_nothing_else_is_open(cell: LaunchedCell) -> None:
    ran = await cell.run("cat; ls /proc/$$/fd; readlink /proc/$$/fd/0")
    assert ran.out == "0\n1\n2\n/dev/null\n"


async def test_it_leads_a_session_of_its_own_with_default_signals(cell: LaunchedCell) -> None:
    ran = await cell.run("cut -d' ' -f1,6 /proc/$$/stat; grep -E 'Sig(Blk|Ign)' /proc/self/status")
    first, *masks = ran.out.splitlines()
    pid, session = first.split()
    assert pid == session
    assert [mask.split()[1] for mask in masks] == ["0" * 16] * 2


async def test_it_is_nobody_with_no_privilege(cell: LaunchedCell) -> None:
    ran = await cell.run("id -u; id -g; id -G; cat /proc/self/status")
    assert ran.out.splitlines()[:3] == [str(UID)] * 3
    status = dict(line.split(":", 1) for line in ran.out.splitlines()[3:] if ":" in line)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0, name
    assert status["NoNewPrivs"].strip() == "1"
    assert status["Seccomp"].strip() == "2"


async def test_root_has_no_capability_unless_asked_for_the_named_set(cell: LaunchedCell) -> None:
    words = "id -u; grep -E 'Cap(Eff|Bnd)' /proc/self/status | cut -f2"
    bare = await cell.run(words, sandbox=Sandbox(uid=0, gid=0))
    assert bare.out.split() == ["0", "0" * 16, "0" * 16]
    stored = await cell.run(words, sandbox=Sandbox(uid=0, gid=0, root_capabilities=True))
    assert stored.out.split() == ["0", "00000000000004fb", "00000000000004fb"]
    as_other = await cell.run(words, sandbox=Sandbox(uid=1234, gid=1234, root_capabilities=True))
    assert as_other.out.split() == ["1234", "0" * 16, "0" * 16]


async def test_short_of_memory_the_kernel_takes_it_before_the_init(cell: LaunchedCell) -> None:
    ran = await cell.run("cat /proc/self/oom_score_adj")
    assert int(ran.out) > int(Path(f"/proc/{cell.init.pid}/oom_score_adj").read_text())


@pytest.mark.parametrize(
    ("sandbox", "words"),
    [
        (Sandbox(arguments=("/no/such/program",)), "cannot exec (/no/such/program): No such file"),
        (Sandbox(arguments=("no-such-program",)), "cannot exec (no-such-program): No such file"),
        (Sandbox(arguments=("/etc/passwd",)), "cannot exec (/etc/passwd): Permission denied"),
        (Sandbox(arguments=("/bin",)), "cannot exec (/bin): Permission denied"),
        (Sandbox(folder="/no/such/folder"), "cannot change folder (/no/such/folder): No such file"),
        (Sandbox(folder="/etc/passwd"), "cannot change folder (/etc/passwd): Not a directory"),
    ],
)
async def test_a_start_that_fails_names_the_step_and_leaves_nothing(
    cell: LaunchedCell, sandbox: Sandbox, words: str
) -> None:
    before = os.listdir(f"/proc/{cell.init.pid}/fd")
    with pytest.raises(errors.FailedPrecondition) as caught:
        await cell.start("true", sandbox=sandbox, key="bad")
    assert words in caught.value.message
    assert cell.groups.pids(cell.name, "_xbad") == []
    cell.groups.remove_leaf(cell.name, "_xbad")
    assert list(cell.place("bad").iterdir()) == []
    assert os.listdir(f"/proc/{cell.init.pid}/fd") == before
    assert (await cell.run("echo fine")).out == "fine\n"


async def test_a_command_that_is_not_found_is_the_shells_exit_code(cell: LaunchedCell) -> None:
    ran = await cell.run("no-such-command")
    assert ran.exited.code == 127
    assert "not found" in ran.err


async def test_what_is_too_long_is_refused_before_anything_is_sent(cell: LaunchedCell) -> None:
    with pytest.raises(errors.TooLarge):
        await cell.start("true", sandbox=Sandbox(environment=("A=" + "x" * 200_000,)))


async def test_a_long_command_of_any_characters_arrives_as_it_is(cell: LaunchedCell) -> None:
    text = "é\u2028\"'\\ \t" * 2000
    ran = await cell.run("", sandbox=Sandbox(arguments=("/usr/bin/printf", "%s", text)))
    assert ran.out == text


async def test_a_group_that_is_gone_refuses_the_start(cell: LaunchedCell) -> None:
    cell.groups.add_leaf(cell.name, "_gone")
    entrance = cell.groups.entry(cell.name, "_gone", from_within=True)
    cell.groups.remove_leaf(cell.name, "_gone")
    cell.place("lost").mkdir(parents=True)
    spec = StartSpec("lost", "true", Sandbox(), UID, UID, LOG_BYTES)
    with entrance, pytest.raises(errors.Internal, match="could not be started: clone"):
        await cell.init.start(spec, cell.place("lost"), entrance)


def test_a_program_is_looked_for_as_a_shell_does() -> None:
    assert candidates(b"/bin/sh", b"/usr/bin") == [b"/bin/sh"]
    assert candidates(b"./sh", b"/usr/bin") == [b"./sh"]
    assert candidates(b"sh", b"/usr/bin::/bin") == [b"/usr/bin/sh", b"./sh", b"/bin/sh"]
