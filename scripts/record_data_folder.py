"""Record a data folder and a node session, for the compatibility tests of later versions.

    python scripts/record_data_folder.py tests/compat/0.2.0    # of this version, as root, at its release
    python scripts/record_data_folder.py tests/compat/0.1.0 --source OTHER_CHECKOUT

It starts a real server and a real node on loopback, has them do one of everything that is stored, stops both,
and writes down what is left, without what tells of the machine: see tests/compat/README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import platform
import re
import runpy
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WORK = Path("/tmp/skerry-recording")  # it stands in records, and so must be the same on every machine
TAPPED = {"skerry.nodes.v1.FromNode": "server", "skerry.nodes.v1.ToNode": "node"}
CODE = "def handler(params, context):\n    return {'hello': params['name']}\n"
JSON = {"Content-Type": "application/json"}
# Nothing is started ahead, and addresses are the same in every recording.
SPARING = ("--set", "functions.spare_workers=0", "--set", "node.spare_inits=0")
SERVER = ("--http", "127.0.0.1:18323", "--grpc", "127.0.0.1:18324", "--set", "node.name=hub", *SPARING)
# Of what a data folder has, that which later starts read.
KEPT = (
    "store.db",
    "version.json",
    "history.json",
    "node.id",
    "pki",
    "functions/calls.db",
    "functions/code/archives",
)
# As long as the one of the machine: it stands in records of a given length.
NEUTRAL_KERNEL = "6.1.0".ljust(len(platform.release()), "0")
CLONE_NEWUTS = 0x04000000
HOST = socket.gethostname()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="the folder of the recording; made anew")
    parser.add_argument("--source", type=Path, default=ROOT, help="the checkout to record; default: this one")
    given = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    os.environ["PYTHONPATH"] = str(given.source.resolve() / "src")
    be_another_machine()
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir()
    facts = record()
    out: Path = given.out
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    keep_folder(WORK / "server" / "data", out / "server")
    keep_instances(WORK / "node" / "data", out / "node")
    keep_session(WORK / "session.jsonl", out / "session.jsonl")
    (out / "facts.json").write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n")
    take_away(facts)
    check(out)
    shutil.rmtree(WORK)


def be_another_machine() -> None:
    """Have another host name, in this process and all that it starts: it gets into certificates."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUTS) != 0:
        raise OSError(ctypes.get_errno(), "a host name of its own needs root")
    socket.sethostname("hub")


def record() -> dict[str, Any]:
    """Have a server and a node do everything once; what later tests look for, by name."""
    from tests.support import skerry as support

    (WORK / "server").mkdir()
    (WORK / "node").mkdir()
    with started(WORK / "server", *SERVER) as server:
        until_ready(server, "hub")
        call(server, "POST", "/node/hub/cordon")  # instances go to the node whose session is recorded
        facts = record_functions(server)
        facts["tokens"] = {
            role: call(server, "POST", "/token/", {"role": role, "note": "recorded"})["token"]
            for role in ("admin", "viewer", "invoker")
        }
        token = call(server, "POST", "/token/", {"role": "node"})["token"]
        support.COMMAND = [sys.executable, __file__, "--tap", str(WORK / "session.jsonl")]
        flags = ["--join", server.ready["http"], "--token", token, "--name", "edge-1"]
        with started(WORK / "node", *flags, *SPARING, role="node") as node:
            facts["node"] = node.ready["node"]
            until_ready(server, "edge-1")
            facts |= record_instances(server)
            offer = {"price": "0.10", "currency": "EUR", "cpu": 1, "memory": 1024, "id": "recorded"}
            call(server, "POST", "/market/flavors", offer)
            facts |= {"flavor": "recorded", "version": call(server, "GET", "/about")["version"]}
    return facts


@contextlib.contextmanager
def started(folder: Path, *flags: str, role: str = "up") -> Iterator[Any]:
    """One that is ready; stopped in good order whatever happens, so that nothing is left on this machine."""
    from tests.support.skerry import Skerry

    skerry = Skerry(folder, *flags, role=role)
    try:
        skerry.wait_ready()
        yield skerry
    finally:
        assert skerry.stop() == 0, skerry.said()


def record_functions(server: Any) -> dict[str, Any]:
    from tests.support import functions
    from tests.support.waiting import eventually_sync

    functions.create(server, "greet", CODE, MemoryMB=64)
    functions.result(server, "greet", {"name": "sync"})
    asynchronous = functions.begin(server, "greet", {"name": "async"})
    eventually_sync(
        lambda: server.call("GET", f"/poll/{asynchronous}")[1].get("State") == "done", what="the async call"
    )
    return {"function": "greet", "async": asynchronous}


def record_instances(server: Any) -> dict[str, Any]:
    """One that runs, one that was stopped, and one that no node has the resources for."""
    from tests.support import imagery
    from tests.support.waiting import eventually_sync

    image = imagery.write_oci_archive(imagery.busybox(command=("sleep", "9999")), WORK / "image.tar")
    spec = {"uri": f"oci-archive:{image}", "resources": {"cpu": 50, "memory": 32}}
    workload = call(server, "PUT", "/workload/", {"name": "web", "environment": ["A=1"], **spec})["id"]
    huge = {**spec, "resources": {"cpu": 900_000, "memory": 32}}
    made = {
        "running": call(server, "PUT", "/instance/", {"workload_id": workload})["id"],
        "stopped": call(server, "PUT", "/instance/", {"name": "job", "namespace": "shop", **spec})["id"],
        "waiting": call(server, "PUT", "/instance/", {"name": "huge", **huge})["id"],
    }

    def until(name: str, status: str) -> None:
        path = f"/instance/{made[name]}"
        eventually_sync(lambda: call(server, "GET", path)["status"] == status, what=f"{name} {status}")

    until("running", "RUNNING")
    until("stopped", "RUNNING")
    call(server, "PATCH", f"/instance/{made['stopped']}", {"status": "STOPPED"})
    until("stopped", "STOPPED")
    return {"workload": workload, **made}


def take_away(facts: dict[str, Any]) -> None:
    """What runs goes on when its node has stopped: start both again, and delete it."""
    from tests.support.waiting import eventually_sync

    with (
        started(WORK / "server", *SERVER) as server,
        started(WORK / "node", "--name", "edge-1", *SPARING, role="node"),
    ):
        until_ready(server, "edge-1")
        for name in ("running", "stopped", "waiting"):
            path = f"/instance/{facts[name]}"
            call(server, "DELETE", path)
            eventually_sync(partial(is_gone, server, path), what=f"{name} is gone")


def is_gone(server: Any, path: str) -> bool:
    status, _ = server.call("GET", path)
    return bool(status == 404)


def call(server: Any, verb: str, path: str, body: Any = None) -> Any:
    """The answer to a request, which must go well."""
    status, answer = server.call(verb, path, body, JSON)
    assert status < 400, f"{verb} {path}: {status} {answer}"
    return answer


def until_ready(server: Any, node: str) -> None:
    from tests.support.waiting import eventually_sync

    eventually_sync(
        lambda: server.call("GET", f"/node/{node}")[1].get("status") == "ready", what=f"{node} is ready"
    )


def keep_folder(data: Path, out: Path) -> None:
    """What a server reads when it starts again; the store without its log and free pages."""
    out.mkdir()
    for name in KEPT:
        if name == "version.json" and not (data / name).exists():  # 0.1 has none
            continue
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        if (data / name).is_dir():
            shutil.copytree(data / name, out / name, ignore=shutil.ignore_patterns(".lock"))
        else:
            shutil.copy(data / name, out / name)
    store = sqlite3.connect(out / "store.db", isolation_level=None)
    tables = [name for (name,) in store.execute("select name from sqlite_master where type = 'table'")]
    for table in tables:
        columns = [row[1] for row in store.execute(f"pragma table_info({table})")]
        for column in columns:
            for row, value in store.execute(f"select rowid, {column} from {table}").fetchall():
                if isinstance(value, bytes) and (changed := neutral(value)) != value:
                    store.execute(f"update {table} set {column} = ? where rowid = ?", (changed, row))
    store.execute("vacuum")
    store.execute("pragma wal_checkpoint(truncate)")
    store.close()


def neutral(value: bytes) -> bytes:
    return value.replace(platform.release().encode(), NEUTRAL_KERNEL.encode())


def keep_instances(data: Path, out: Path) -> None:
    """The orders that a node wrote down."""
    out.mkdir()
    for found in sorted(data.rglob("*")):
        if found.is_file() and "instances" in found.relative_to(data).parts and found.suffix == ".json":
            shutil.copy(found, out / found.name)


def keep_session(tapped: Path, out: Path) -> None:
    """Every message in order, less heartbeats, with a neutral kernel."""
    from skerry.transport.proto import nodes_pb2 as pb

    lines = []
    for line in tapped.read_text().splitlines():
        message = json.loads(line)
        kind: type[pb.FromNode | pb.ToNode] = pb.FromNode if message["to"] == "server" else pb.ToNode
        known = kind.FromString(bytes.fromhex(message["bytes"]))
        if known.WhichOneof("message") == "heartbeat":
            continue
        if isinstance(known, pb.FromNode) and known.WhichOneof("message") == "hello":
            known.hello.facts.kernel = (
                NEUTRAL_KERNEL  # fields that this version does not know stay as they are
            )
            message["bytes"] = known.SerializeToString(deterministic=True).hex()
        lines.append(json.dumps({**message, "kind": known.WhichOneof("message")}))
    out.write_text("\n".join(lines) + "\n")


def check(out: Path) -> None:
    """Refuse a recording that tells of the machine."""
    names = {HOST, platform.release(), str(Path.home()), str(ROOT)}
    telling = re.compile(
        rb"(?<![\w+/=-])(" + b"|".join(re.escape(name.encode()) for name in names) + rb")(?![\w+/=-])"
    )
    for path in out.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            if path.suffix == ".crt":
                data += subprocess.run(
                    ["openssl", "x509", "-in", path, "-noout", "-text"], capture_output=True, check=True
                ).stdout
            assert not (found := telling.search(data)), f"{path} tells {found[0]!r}"


def tap(file: Path, arguments: list[str]) -> None:
    """Be `skerry`, and write down every message of the node session."""
    from grpclib.encoding.proto import ProtoCodec

    def noted(message: Any, data: bytes) -> None:
        if (to := TAPPED.get(type(message).DESCRIPTOR.full_name)) is not None:
            with file.open("a") as out:
                out.write(json.dumps({"to": to, "bytes": data.hex()}) + "\n")

    encode, decode = ProtoCodec.encode, ProtoCodec.decode

    def noting_encode(self: ProtoCodec, message: Any, message_type: Any) -> bytes:
        data = encode(self, message, message_type)
        noted(message, data)
        return data

    def noting_decode(self: ProtoCodec, data: bytes, message_type: Any) -> Any:
        message = decode(self, data, message_type)
        noted(message, data)
        return message

    ProtoCodec.encode, ProtoCodec.decode = noting_encode, noting_decode  # type: ignore[method-assign]
    sys.argv = ["skerry", *arguments]
    runpy.run_module("skerry", run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--tap"]:
        tap(Path(sys.argv[2]), sys.argv[3:])
    else:
        main()
