"""Recordings of earlier versions, as tests read them: see tests/compat/README.md."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skerry.transport.proto import nodes_pb2 as pb

HOME = Path(__file__).resolve().parent.parent / "compat"


@dataclass(frozen=True)
class Recording:
    """What one version left."""

    folder: Path

    @property
    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads((self.folder / "facts.json").read_text())
        return facts

    def copy_data(self, to: Path) -> None:
        """The server's data folder, with the modes that the repository does not keep."""
        shutil.copytree(self.folder / "server", to)
        for path in [to, *to.rglob("*")]:
            path.chmod(0o700 if path.is_dir() else 0o600)

    def sent(self) -> list[pb.FromNode]:
        """What the node said, in order."""
        return [pb.FromNode.FromString(data) for to, data in self._messages() if to == "server"]

    def received(self) -> list[pb.ToNode]:
        """What the server said, in order."""
        return [pb.ToNode.FromString(data) for to, data in self._messages() if to == "node"]

    def _messages(self) -> list[tuple[str, bytes]]:
        lines = map(json.loads, (self.folder / "session.jsonl").read_text().splitlines())
        return [(line["to"], bytes.fromhex(line["bytes"])) for line in lines]


RECORDINGS = [Recording(path.parent) for path in sorted(HOME.glob("*/facts.json"))]


def version_of(recording: Recording) -> str:
    return recording.folder.name
