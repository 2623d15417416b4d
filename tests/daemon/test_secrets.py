"""A canary secret in a whole Skerry: whoever was given it reads it, and nobody finds it anywhere else.

The canary is looked for as it is, in base64 and in hexadecimal: in every answer to an admin, in the log, in
the store's files, in the data folder, and in the environment and command line of every process.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.transport.access import rules
from tests.support import imagery
from tests.support.registry import PASSWORD, USER, Registry
from tests.support.remains import left_of
from tests.support.skerry import Skerry, running
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.root

# Of this run alone: what another one left is not ours to find.
CANARY = f"canary-{secrets.token_hex(6)}"
LATER = f"later-{secrets.token_hex(6)}"
LOGIN = PASSWORD
_CODE = """
import os

def handler(params, context):
    with open("/run/secrets/canary") as file:
        return [os.environ["CANARY"], file.read()]
"""


def forms(text: str) -> list[bytes]:
    """A value in the spellings in which it could leak, whatever stands before it."""
    data = text.encode()
    spelt = [data, data.hex().encode()]
    for shift in range(3):  # base64 of any bytes that end or begin with it
        whole = base64.b64encode(b"x" * shift + data)
        spelt.append(whole[4 if shift else 0 : -4])
    return spelt


SOUGHT = [form for text in (CANARY, LATER, f"{USER}:{LOGIN}") for form in forms(text)]


def found_in(data: bytes) -> list[bytes]:
    return [form for form in SOUGHT if form in data]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = imagery.busybox(command=("sleep", "1000"))
    return f"oci-archive:{imagery.write_oci_archive(made, tmp_path_factory.mktemp('image') / 'web.tar')}"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with Registry(tmp_path_factory.mktemp("registry"), password=True) as started:
        started.push(imagery.busybox(command=("sleep", "1000")), "team/app:1")
        yield started


@contextlib.contextmanager
def killed_at_the_end(folder: Path) -> Iterator[Skerry]:
    skerry = Skerry(folder, "--set", "log.level=debug")
    try:
        skerry.wait_ready()
        yield skerry
    finally:
        skerry.kill()


def cli(skerry: Skerry, *arguments: str) -> str:
    done = skerry.cli(*arguments)
    assert done.returncode == 0, done.stderr
    assert not found_in(done.stderr.encode())
    return done.stdout


def running_id(skerry: Skerry, name: str, namespace: str = "default") -> str:
    """The id of the instance of this name, when it runs."""

    def look() -> str:
        _, answer = skerry.call("GET", f"/namespace/{namespace}/instance/")
        ids = [one["id"] for one in answer["instances"] if (one["name"], one["status"]) == (name, "RUNNING")]
        return ids[0] if ids else ""

    found: str = eventually_sync(look, what=f"{name} runs")
    return found


def answers(skerry: Skerry, ids: dict[str, str]) -> Iterator[tuple[str, bytes]]:
    """The answer of every GET route, as an admin gets it."""
    for row in rules.HTTP_RULES:
        method, path = row.split(" ")
        if method != "GET":
            continue
        for noun, id in ids.items():
            path = path.replace(f"/{noun}/{{id}}", f"/{noun}/{id}").replace(
                f"/{noun}/{{name}}", f"/{noun}/{id}"
            )
        path = path.replace("{namespace}", "default").replace("{id}", "x").replace("{name}", "x")
        path += "?follow=false&since=0" if path.endswith("events") and "instance" not in path else ""
        connection = skerry.connect()
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            yield row, response.read()
        except (http.client.HTTPException, OSError):  # a WebSocket, which this is not
            pass
        finally:
            connection.close()


def files_under(folder: Path) -> Iterator[Path]:
    for home, folders, names in os.walk(folder):
        # Mounted there: the containers' own roots, which may see what they were given, and namespaces.
        folders[:] = [name for name in folders if not os.path.ismount(os.path.join(home, name))]
        for name in names:
            path = Path(home, name)
            if path.is_file() and not path.is_symlink() and not os.path.ismount(path):
                yield path


def holders(given: set[int]) -> list[str]:
    """Processes with the canary in their environment or command line, but for those that were given it."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) not in given:
            for part in ("environ", "cmdline"):
                try:
                    if here := found_in((process / part).read_bytes()):
                        name, cell = (process / "comm").read_text(), (process / "cgroup").read_text()
                        found.append(f"{process.name} {name.strip()} {part} {here} {cell}")
                except OSError:
                    continue
    return found


def pids_of(skerry: Skerry, container: str) -> set[int]:
    """The processes in the cell of a container."""
    found = set()
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if container in (process / "cgroup").read_text():
                    found.add(int(process.name))
            except OSError:
                continue
    return found


def test_a_canary_is_found_nowhere_but_with_those_that_were_given_it(
    tmp_path: Path, image: str, registry: Registry
) -> None:
    value, later, code = tmp_path / "value", tmp_path / "later", tmp_path / "keyed.py"
    value.write_text(CANARY)
    later.write_text(LATER)
    code.write_text(_CODE)
    folder = tmp_path / "skerry"
    folder.mkdir()
    with killed_at_the_end(folder) as skerry:
        cli(skerry, "secret", "set", "canary", str(value))
        cli(
            skerry,
            "registry",
            "login",
            registry.address,
            "-u",
            USER,
            "-n",
            "shop",
            "--password-file",
            _file(tmp_path),
        )
        # Those that are given it: a container with a file and a variable, a service, a function.
        uses = ["--secret", "canary", "--secret-env", "CANARY=canary"]
        at_once = ["--stop-grace", "0s"]
        cli(skerry, "run", "--name", "keyed", *uses, *at_once, image)
        cli(skerry, "run", "--name", "other", *at_once, image)
        service = {
            "name": "web",
            "image": image,
            "secrets": ["canary:key"],
            "stop_grace_s": 0,
            "update": {"min_ready_s": 0, "drain_s": 0},
        }
        assert skerry.call("PUT", "/service/", service)[0] == 201
        cli(skerry, "fn", "deploy", *uses, str(code))
        keyed, other = running_id(skerry, "keyed"), running_id(skerry, "other")
        first = running_id(skerry, "web-0")
        assert cli(skerry, "exec", keyed, "--", "cat", "/run/secrets/canary") == CANARY
        assert f"CANARY={CANARY}\n" in cli(skerry, "exec", keyed, "--", "env")
        assert skerry.cli("exec", keyed, "--", "sh", "-c", "echo x > /run/secrets/canary").returncode != 0
        assert cli(skerry, "exec", first, "--", "cat", "/run/secrets/key") == CANARY
        assert cli(skerry, "exec", other, "--", "sh", "-c", "ls /run/secrets || true") == ""
        assert (
            skerry.call("POST", "/invoke/keyed", {"Params": {}})[1]["Result"] == f'["{CANARY}", "{CANARY}"]'
        )
        # The login is used for images of its namespace, and of no other.
        private = f"{registry.address}/team/app:1"
        cli(skerry, "run", "-n", "shop", "--name", "app", "--detach", *at_once, private)
        running_id(skerry, "app", "shop")
        body = {"name": "thief", "uri": private, "restart": "never"}
        assert skerry.call("PUT", "/namespace/lab/instance/", body)[0] == 201
        _refused(skerry)
        # A new version rolls the service out, and a plain instance keeps the one that it has.
        cli(skerry, "secret", "set", "canary", str(later))

        def second() -> str:
            _, answer = skerry.call("GET", "/service/web")
            ready = [
                copy["instance_id"] for copy in answer["copies"] if copy["revision"] == 2 and copy["ready"]
            ]
            return ready[0] if ready else ""

        rolled = eventually_sync(second, what="the service is rolled out")
        assert cli(skerry, "exec", rolled, "--", "cat", "/run/secrets/key") == LATER
        assert cli(skerry, "exec", keyed, "--", "cat", "/run/secrets/canary") == CANARY
        cli(skerry, "secret", "rotate-key")
        # Everything that can be read, by anybody.
        ids = {"instance": keyed, "service": "web", "secret": "canary", "function": "keyed"}
        shown = dict(answers(skerry, ids))
        assert {row for row, data in shown.items() if found_in(data)} == set()
        assert b'"canary"' in shown["GET /secret/{name}"]
        assert len(shown) > 50
        for arguments in (
            ("describe", "instance", keyed),
            ("secret", "versions", "canary"),
            ("events",),
            ("status",),
        ):
            assert not found_in(skerry.cli(*arguments).stdout.encode())
        assert not found_in(skerry.log.read_bytes())
        leaks = {path for path in files_under(skerry.data) if found_in(path.read_bytes())}
        assert leaks == set()
        assert holders(pids_of(skerry, keyed) | pids_of(skerry, "@functions") | {os.getpid()}) == []
    # A killed agent leaves what runs as it is, and the next one can restart it.
    with running(folder) as skerry:

        def is_read() -> bool:
            return skerry.cli("exec", keyed, "--", "cat", "/run/secrets/canary").stdout == CANARY

        eventually_sync(is_read, what="the node is connected again")
        cli(skerry, "stop", keyed)
        cli(skerry, "start", keyed)
        running_id(skerry, "keyed")
        eventually_sync(is_read, what="it is restarted with its secret")
        for path in ("/service/web", f"/instance/{keyed}", f"/instance/{other}"):
            skerry.call("DELETE", path)
        skerry.call("POST", "/delete", {"Name": "keyed"})
        eventually_sync(
            lambda: (
                all(
                    one["namespace"] != "default"
                    for one in skerry.call("GET", "/instance/?namespace=*")[1]["instances"]
                )
                and skerry.call("GET", "/service/web")[0] == 404
            ),
            what="all is removed",
        )
        cli(skerry, "delete", "instance", "-n", "shop", "app")
        cli(skerry, "delete", "instance", "-n", "lab", "thief")
        cli(skerry, "secret", "delete", "canary")
        assert {path for path in files_under(skerry.data) if found_in(path.read_bytes())} == set()
    assert left_of(skerry) == []
    assert not [
        path for path in Path("/run/skerry-secrets").glob("*/values/*") if found_in(path.read_bytes())
    ]


def _file(folder: Path) -> str:
    path = folder / "password"
    path.write_text(LOGIN)
    return str(path)


def _refused(skerry: Skerry) -> None:
    def look() -> bool:
        _, answer = skerry.call("GET", "/namespace/lab/instance/")
        (thief,) = answer["instances"]
        return thief["status"] == "FAILED" and "login" in thief["reason"]

    eventually_sync(look, what="an image that is private to another namespace is refused")
