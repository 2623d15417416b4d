"""Errors of the client: what a person or program gets if a call fails.

`message` says what is wrong and what to do. The command line adds the exit codes.
"""

from __future__ import annotations

from typing import Any


class ClientError(Exception):
    """A call of a server or of a node failed."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidTarget(ClientError):
    """The URL, token, CA file or path that was given cannot be used."""


class ServerUnreachable(ClientError):
    """No server or node answered."""


class IncompleteReply(ServerUnreachable):
    """The connection broke off within a reply."""


class UnexpectedReply(ClientError):
    """Something answered that is not Skerry, or Skerry of another version."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}. Is Skerry there, and of the same version as this command? 'skerry version' shows it."
        )


class ApiError(ClientError):
    """The server answered with an error; the message is the server's."""

    def __init__(self, status: int, message: str, code: str, reply: Any = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.reply = reply  # the whole reply


class NodeError(ClientError):
    """The node answered with an error; the message is the node's, `status` the name of the gRPC status."""

    def __init__(self, message: str, status: str) -> None:
        super().__init__(message)
        self.status = status
