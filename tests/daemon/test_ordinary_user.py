"""Everything that an ordinary user's `skerry up` runs in cells: programs and functions, with their limits."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.ordinary import OrdinarySkerry, processes_of, skerry_of
from tests.support.ordinary_users import CAN_HAVE_NAMESPACES, IDS, ordinary_user, skip_with_assigned_ids
from tests.support.skerry import running
from tests.support.waiting import PATIENCE_S, eventually_sync

pytestmark = pytest.mark.skipif(not CAN_HAVE_NAMESPACES, reason="needs user namespaces of ordinary users")

LOOK = """
import os

def handler(params, context):
    return {
        "pids": [int(name) for name in os.listdir("/proc") if name.isdecimal()],
        "uid": os.getuid(),
        "params": params,
        "home": os.path.exists(params["home"]),
        "addresses": os.listdir("/sys/class/net"),
        "status": dict(
            line.split(":", 1) for line in open("/proc/self/status").read().splitlines() if ":" in line
        ),
    }
"""
GREEDY = "import time\nheld = []\nfor _ in range(400):\n    held.append(bytearray(1 << 20))\ntime.sleep(60)\n"


@pytest.fixture(params=[IDS, 0], ids=["with a user for each cell", "with one user"])
def skerry(request: pytest.FixtureRequest) -> Iterator[OrdinarySkerry]:
    if not request.param:
        skip_with_assigned_ids()
    with ordinary_user(ids=request.param) as user, skerry_of(user) as skerry:
        yield skerry


def test_functions_are_deployed_called_and_deleted_and_a_clean_stop_leaves_nothing(
    skerry: OrdinarySkerry,
) -> None:
    skerry.start()
    skerry.file("look.py", LOOK)
    skerry.file("twice.js", "exports.handler = async (params) => ({twice: 2 * params.n});\n")
    skerry.cli("fn", "deploy", "look.py", "--network", "none")
    cold, warm = (
        json.loads(skerry.cli("fn", "invoke", "look", "-p", f"home:{skerry.user.home}")) for _ in range(2)
    )
    assert cold["params"] == warm["params"] == {"home": str(skerry.user.home)}
    assert not cold["home"]
    assert min(cold["pids"]) == 1
    assert len(cold["pids"]) == 2
    assert cold["addresses"] == ["lo"]
    status = {name: value.strip() for name, value in cold["status"].items()}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert {status[name] for name in ("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb")} == {"0" * 16}
    if skerry.attempt("fn", "deploy", "twice.js", "--network", "none").returncode == 0:  # there is a Node.js
        assert json.loads(skerry.cli("fn", "invoke", "twice", "-p", "n:=21")) == {"twice": 42}
    call = skerry.cli("fn", "invoke", "--async", "look", "-p", "home:/root").split()[-1]
    eventually_sync(
        lambda: skerry.attempt("fn", "poll", call).returncode == 0, what="the result of the async call"
    )
    skerry.cli("fn", "delete", "look")
    assert skerry.stop() == 0
    assert processes_of(skerry.user) == []


def test_programs_run_in_cells_with_namespaces_and_a_user_of_their_own(skerry: OrdinarySkerry) -> None:
    skerry.start()
    said = skerry.cli(
        *("cell", "run", "--", "sh", "-c"),
        "hostname; id -u; cat /proc/sys/kernel/random/boot_id > /dev/null; ls /home; touch /tmp/x; "
        "touch /usr/x 2> /dev/null || echo read-only; kill -9 1; echo lives; unshare -U true || echo no",
    )
    name, uid, *rest = said.split()
    assert name.startswith("run-")
    assert (uid == "0") == (len(skerry.user.ids) == 0)
    assert rest == ["read-only", "lives", "no"]
    assert skerry.stop() == 0
    assert processes_of(skerry.user) == []


def test_a_cell_is_no_admin_of_skerry(skerry: OrdinarySkerry) -> None:
    """It is another user, or, where it has the same one, in another network."""
    url = skerry.start()["http"]
    ask = f"import urllib.request; urllib.request.urlopen('{url}/instance/')"
    done = skerry.attempt("cell", "run", "--", "/usr/bin/python3", "-c", ask)
    expected = "HTTP Error 401" if skerry.user.ids else "Connection refused"
    assert (done.returncode, expected in done.stderr) == (1, True), done.stderr
    assert "@functions" in skerry.cli("cell", "list")


def test_a_cell_with_too_many_processes_cannot_have_more(skerry: OrdinarySkerry) -> None:
    skerry.start()
    fork = "for i in $(seq 40); do sleep 1000 & done; echo all; wait"
    done = skerry.attempt("cell", "run", "--pids", "10", "--", "sh", "-c", fork)
    if skerry.user.ids:  # the kernel counts those of its user
        assert (done.returncode, "annot fork" in done.stderr, done.stdout) == (2, True, "")
    else:  # they are counted from time to time, and ended
        assert done.returncode == 137
    assert [name for _, name in processes_of(skerry.user)].count("sleep") == 0


def test_a_smaller_share_of_the_cpu_is_a_niceness(skerry: OrdinarySkerry) -> None:
    skerry.start()
    assert skerry.cli("cell", "run", "--weight", "50", "--", "nice").strip() == "3"
    assert skerry.cli("cell", "run", "--cpus", "0", "--", "nproc").strip() == "1"


def test_what_uses_more_memory_than_its_limit_is_killed_and_told_as_out_of_memory(
    skerry: OrdinarySkerry,
) -> None:
    skerry.start()
    done = skerry.attempt("cell", "run", "--memory", "100", "--", "/usr/bin/python3", "-c", GREEDY)
    assert (done.returncode, "memory" in done.stderr) == (137, True), (done.stderr, skerry.said())


def test_the_next_agent_adopts_what_runs_after_a_kill(skerry: OrdinarySkerry) -> None:
    skerry.start()
    skerry.cli("cell", "allocate", "stays", "--memory", "100")
    skerry.cli("cell", "start", "stays", "sleeper", "--", "sleep", "1000")
    before = [pid for pid, name in processes_of(skerry.user) if name == "sleep"]
    skerry.file("look.py", LOOK)
    skerry.cli("fn", "deploy", "look.py", "--network", "none")
    skerry.kill()
    skerry.start()
    after = [pid for pid, name in processes_of(skerry.user) if name == "sleep"]
    assert before == after
    assert "sleeper" in skerry.cli("cell", "list", "stays")
    assert json.loads(skerry.cli("fn", "invoke", "look", "-p", "home:/root"))["params"] == {"home": "/root"}
    assert "sleeper" in skerry.cli("cell", "list", "stays")
    skerry.cli("cell", "free", "stays")
    assert skerry.stop() == 0
    assert processes_of(skerry.user) == []


def test_a_node_that_leaves_its_cloud_leaves_nothing(skerry: OrdinarySkerry, tmp_path: Path) -> None:
    with running(tmp_path, role="server") as server:
        invitation = server.cli("token", "create", "--role", "node").stdout.split()[-1]
        skerry.start("--join", invitation, role="node")
        skerry.cli("cell", "allocate", "stays")
        skerry.cli("cell", "start", "stays", "sleeper", "--", "sleep", "1000")
        skerry.kill()
        skerry.cli("node", "leave", "--yes", "--no-drain")
    assert processes_of(skerry.user) == []
    assert not skerry.data.exists(), list(skerry.data.iterdir())


def test_without_its_holder_what_ran_is_ended_and_the_cells_are_still_there(skerry: OrdinarySkerry) -> None:
    skerry.start()
    skerry.cli("cell", "allocate", "stays")
    skerry.cli("cell", "start", "stays", "sleeper", "--", "sleep", "1000")
    skerry.kill()
    [holder] = [pid for pid, name in processes_of(skerry.user) if name == "skerry-holder"]
    os.kill(holder, signal.SIGKILL)
    skerry.start()
    assert "sleep" not in [name for _, name in processes_of(skerry.user)]
    assert "sleeper" in skerry.cli("cell", "list", "stays")  # it has ended
    assert skerry.cli("cell", "run", "--", "echo", "again") == "again\n"
    skerry.cli("cell", "free", "stays")
    assert skerry.stop() == 0
    assert processes_of(skerry.user) == []


def test_a_takeover_continues_in_the_same_namespace(skerry: OrdinarySkerry) -> None:
    skerry.start()
    skerry.cli("cell", "allocate", "stays")
    skerry.cli("cell", "start", "stays", "sleeper", "--", "sleep", "1000")
    before = [each for each in processes_of(skerry.user) if each[1] in ("sleep", "skerry-holder")]
    former = skerry.process
    assert former is not None
    skerry.start("--takeover")
    assert former.wait(PATIENCE_S) == 0
    assert before == [each for each in processes_of(skerry.user) if each[1] in ("sleep", "skerry-holder")]
    skerry.cli("cell", "free", "stays")
    assert skerry.stop() == 0
    assert processes_of(skerry.user) == []
