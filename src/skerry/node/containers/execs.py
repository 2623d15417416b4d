"""Commands run in a container that is up.

`Containers.exec` begins one; an `ExecSession` is one that has begun. It ends with its command, with the
container, or when whoever asked for it goes away: nobody is left to read what it says.
"""

from __future__ import annotations


class ExecSession:
    """A command that was begun in a container."""

    async def exit_code(self) -> int:
        """Its exit code once it has ended; 128 and the number of the signal that ended it, 126 if it cannot
        be executed, 127 if it is not there."""
        raise NotImplementedError

    def resize(self, rows: int, columns: int) -> None:
        """Its terminal has this size from now on; nothing if it has none, or has ended."""
        raise NotImplementedError

    def signal(self, number: int) -> None:
        """Send a signal to the command; nothing if it has ended."""
        raise NotImplementedError

    async def kill(self) -> None:
        """End it with every process of its session; nothing if it has ended."""
        raise NotImplementedError
