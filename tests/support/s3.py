"""A real store with the API of S3 on loopback: rclone, which checks every signature, over a folder."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

from skerry.model.snapshots import ObjectStore
from tests.support.shares import free_port
from tests.support.waiting import PATIENCE_S

BUCKET = "backups"


class S3Server:
    """One server with one bucket. `folder` is what it stores."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / BUCKET).mkdir(parents=True)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def store(self) -> ObjectStore:
        return ObjectStore(
            f"http://127.0.0.1:{self.port}", BUCKET, "eu-west-1", "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG"
        )

    def start(self) -> None:
        store = ObjectStore("", BUCKET, "", "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG")
        with open(self.folder.parent / "rclone.log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    str(Path(sys.executable).with_name("rclone")),
                    *("--config", "", "serve", "s3"),
                    *("--auth-key", f"{store.access_key},{store.secret_key}"),
                    *("--addr", f"127.0.0.1:{self.port}"),
                    *("--vfs-cache-mode", "off", "--dir-cache-time", "20ms"),
                    str(self.folder),
                ],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    text = (self.folder.parent / "rclone.log").read_text()[-2000:]
                    raise AssertionError(f"rclone did not start: {text}") from None
                time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
            self._process = None

    def objects(self) -> set[str]:
        root = self.folder / BUCKET
        return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
