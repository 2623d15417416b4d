"""`skerry up --isolation none`: functions and cells as child processes of an ordinary user.

It runs as in a container whose seccomp profile refuses `unshare`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.daemon.ordinary import OrdinarySkerry, processes_of, skerry_of
from tests.support.ordinary_users import ordinary_user

FLAGS = ("--isolation", "none")
REFUSING = """
import os, struct, sys
from skerry.node.kernel import syscalls

unshare = {"x86_64": 272, "aarch64": 97}[syscalls.MACHINE]
steps = ((0x20, 0, 0, 0), (0x15, 0, 1, unshare), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000))
syscalls.set_no_new_privileges()
syscalls.SeccompFilter(b"".join(struct.pack("=HBBI", *step) for step in steps)).install()
os.execvp(sys.argv[1], sys.argv[1:])
"""
LOOK = """
import os

def handler(params, context):
    lines = open("/proc/self/status").read().splitlines()
    return {"uid": os.getuid(), "params": params, "status": dict(line.split(":\\t", 1) for line in lines)}
"""
GREEDY = "import time\nheld = []\nfor _ in range(400):\n    held.append(bytearray(1 << 20))\ntime.sleep(60)\n"


@pytest.fixture
def skerry() -> Iterator[OrdinarySkerry]:
    with ordinary_user() as user, skerry_of(user, *user.python, "-c", REFUSING) as skerry:
        yield skerry


def test_who_can_have_no_namespace_is_told_of_it(skerry: OrdinarySkerry) -> None:
    [lacking] = skerry.start()["lacking"]
    assert "there can be no user namespace" in lacking
    assert "skerry up --isolation none" in lacking
    assert skerry.attempt("cell", "run", "--", "true").returncode != 0


def test_functions_and_cells_are_processes_of_the_user_and_every_status_says_so(
    skerry: OrdinarySkerry,
) -> None:
    ready = skerry.start(*FLAGS)
    assert any("isolation none" in warning for warning in ready["warnings"])
    assert "isolation none" in skerry.cli("status")
    skerry.file("look.py", LOOK)
    skerry.file("twice.js", "exports.handler = async (params) => ({twice: 2 * params.n});\n")
    skerry.cli("fn", "deploy", "look.py")
    result = json.loads(skerry.cli("fn", "invoke", "look", "-p", "a:1"))
    assert (result["uid"], result["params"]) == (skerry.user.uid, {"a": "1"})
    assert (result["status"]["NoNewPrivs"], result["status"]["Seccomp"]) == ("1", "2")
    if skerry.attempt("fn", "deploy", "twice.js").returncode == 0:  # there is a Node.js
        assert json.loads(skerry.cli("fn", "invoke", "twice", "-p", "n:=21")) == {"twice": 42}
    said = skerry.cli("cell", "run", "--", "sh", "-c", "id -u; ps -o sid= -p $$; echo $$")
    uid, session, pid = said.split()
    assert (int(uid), session) == (skerry.user.uid, pid)
    assert "none" in skerry.attempt("fn", "deploy", "look.py", "--name", "alone", "--network", "none").stderr
    assert skerry.stop() == 0
    assert processes_of(skerry.user) == []


def test_a_detached_grandchild_ends_with_its_executable(skerry: OrdinarySkerry) -> None:
    skerry.start(*FLAGS)
    skerry.cli("cell", "allocate", "a")
    for name in ("one", "two"):
        skerry.cli("cell", "start", "a", name, "-c", f"(setsid sleep 1000{len(name)} &); exec sleep 2000")
    assert [name for _, name in processes_of(skerry.user)].count("sleep") == 4
    skerry.cli("cell", "stop", "a", "one")
    assert [name for _, name in processes_of(skerry.user)].count("sleep") == 2
    skerry.cli("cell", "free", "a")
    assert [name for _, name in processes_of(skerry.user)].count("sleep") == 0


def test_memory_is_watched_and_what_is_killed_is_told_as_out_of_memory(skerry: OrdinarySkerry) -> None:
    skerry.start(*FLAGS)
    done = skerry.attempt("cell", "run", "--memory", "100", "--", "/usr/bin/python3", "-c", GREEDY)
    assert (done.returncode, "memory" in done.stderr) == (137, True), (done.stderr, skerry.said())


def test_the_next_agent_adopts_what_runs_after_a_kill(skerry: OrdinarySkerry) -> None:
    skerry.start(*FLAGS)
    skerry.cli("cell", "allocate", "stays")
    skerry.cli("cell", "start", "stays", "sleeper", "--", "sleep", "1000")
    before = [pid for pid, name in processes_of(skerry.user) if name == "sleep"]
    skerry.kill()
    skerry.start(*FLAGS)
    assert before == [pid for pid, name in processes_of(skerry.user) if name == "sleep"]
    assert "sleeper" in skerry.cli("cell", "list", "stays")
    skerry.cli("cell", "free", "stays")
    assert skerry.stop() == 0
    assert processes_of(skerry.user) == []


@pytest.mark.parametrize(
    "flags",
    [
        ("--http", "0.0.0.0:0", "--tls"),
        ("--set", "market.sell_percent=50"),
        ("--set", "market.plain_listen=127.0.0.1:0"),
        ("--set", "functions.neighbours=0.0.0.0:0"),
    ],
)
def test_it_is_refused_for_other_machines_and_for_the_market(
    skerry: OrdinarySkerry, flags: tuple[str, ...]
) -> None:
    done = skerry.attempt("up", *FLAGS, *flags)
    assert done.returncode == 1
    assert "node.isolation: none" in done.stderr
    assert not skerry.data.exists()


def test_it_has_no_market(skerry: OrdinarySkerry) -> None:
    skerry.start(*FLAGS)
    terms = ("--cpu", "1", "--memory", "1024", "--price", "1", "--currency", "EUR")
    assert "no market" in skerry.attempt("market", "sell", *terms).stderr
