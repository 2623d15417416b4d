"""What an agent does with its namespace, as a program: one that has entered cannot return to the test.

    agent_program.py FOLDER ACTION

Prints one line of JSON. ACTION: `stay` waits for its end, `observe` tries what is allowed, and `end` ends the
namespace if nothing else is in it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from skerry.kit import namespace_marker
from skerry.node.rootless import holder, trials


def main(folder: Path, action: str) -> None:
    marker = holder.enter(folder)
    answer = {
        "holder": marker.holder,
        "uid": marker.uid,
        "inside": os.getuid(),
        "own": namespace_marker.own_uid(),
        "namespace": os.readlink("/proc/self/ns/user"),
        "network": os.fstat(holder.network_namespace(marker)).st_ino,
        "is_machine_root": namespace_marker.is_machine_root(),
        "here": os.getcwd(),
        "others": holder.others_inside(marker),
    }
    if action == "observe":
        seen = trials.observe(folder, marker)
        answer |= {"user_ids": seen.user_ids, "proc": seen.proc, "files": sorted(os.listdir(folder))}
    if action == "end":
        answer["ended"] = holder.end_if_unused(folder, marker)
    print(json.dumps(answer), flush=True)  # noqa: T201 - for the test that started this
    if action == "stay":
        signal.pause()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
