"""A Skerry of its own for a benchmark: free ports, a folder that goes afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def skerry(
    *flags: str,
    role: str = "up",
    data: Path | None = None,
    within: Path | None = None,
    python: Sequence[str] = (sys.executable,),
    environment: dict[str, str] | None = None,
) -> Iterator[dict[str, Any]]:
    """What the ready file of a running `skerry` says; its folder is `data`, or one that goes afterwards, in
    `within`. `python` is the command that starts its interpreter, possibly as another user."""
    with tempfile.TemporaryDirectory(prefix="skerry-bench-") as name:
        folder = within or Path(name)
        ready_file = folder / "ready.json"
        command = [
            *python,
            "-m",
            "skerry",
            role,
            "--data",
            str(data or folder / "data"),
            "--log-level",
            "warning",
        ]
        command += ["--http", "127.0.0.1:0", "--socket", str(folder / "s.sock")]
        if role != "node":
            command += ["--grpc", "127.0.0.1:0"]
        if environment is None:
            environment = {key: value for key, value in os.environ.items() if not key.startswith("SKERRY_")}
        process = subprocess.Popen(
            [*command, "--ready-file", str(ready_file), *flags], env=environment, cwd=within
        )
        try:
            while not ready_file.exists():
                if process.poll() is not None:
                    raise RuntimeError(f"skerry ended with {process.returncode} before it was ready")
                time.sleep(0.02)
            yield json.loads(ready_file.read_text())
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def percentile(seconds: list[float], share: float) -> float:
    """The value below which `share` of the sorted measurements lie."""
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
