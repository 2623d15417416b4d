"""Started in place of Python for each process that runs tests: asks for a forked one, else becomes Python.

    python worker_launcher.py SOCKET [ARGUMENT ...]

The process at SOCKET (`tests.support.forked_workers`) gets the standard input and output of this one for a
fork of it, and answers with the exit code of the fork when it has ended. Whoever kills the launcher kills the
fork. Where nobody answers, this is Python with the arguments. It imports little, to start at once.
"""

from __future__ import annotations

import os
import socket
import sys


def main() -> None:
    address, *arguments = sys.argv[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(address)
            socket.send_fds(connection, [b"fork"], [0, 1])
            is_forked = connection.recv(1) == b"+"
        except OSError:
            is_forked = False
        if not is_forked:
            os.execv(sys.executable, [sys.executable, *arguments])
        # Whoever reads from the fork is to see its end.
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        os._exit(int(connection.recv(16) or b"1"))


if __name__ == "__main__":
    main()
