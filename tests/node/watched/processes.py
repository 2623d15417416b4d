"""Real processes with tags, for groups that are told by them."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from skerry.node.kernel.process_marks import ProcessMarks

_BECOME = (
    "import os, resource, sys; "
    "resource.setrlimit(10, (int(sys.argv[1]),) * 2); "
    "os.execvp(sys.argv[2], sys.argv[2:])"
)


@contextlib.contextmanager
def tagged(marks: ProcessMarks | None, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """`command` with the tag, once it prints its first line. It is killed at the end."""
    assert marks is not None
    process = subprocess.Popen(
        (sys.executable, "-I", "-S", "-c", _BECOME, str(marks.tag), *command),
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()
