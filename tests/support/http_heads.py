"""Request heads that are wrong in every way a seed can think of, and a client that sends them.

Half of them follow the grammar with hostile values, the others were such and then had bytes changed. The
client sends each in random pieces, closes its half, its whole connection or nothing, and expects what every
server owes: an answer that is HTTP or none, and the end of the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

_METHODS = (b"GET", b"POST", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"CONNECT", b"TRACE", b"PRI", b"get")
_ODD_METHODS = (b"", b"G\x00T", b"GET\t", b"\xff\xfe", b"A" * 300, b"GET /x HTTP/1.1\r\nX:")
_VERSIONS = (*[b"HTTP/1.1"] * 14, b"HTTP/1.0", b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/1.10", b"")
_SEGMENTS = (
    b"admin", b"%61dmin", b"ADMIN", b"..", b".", b"", b"%2e%2e", b"%2e", b"%2f", b"%5c", b"\\", b"x", b"y",
    b"admin", b"admin", b"z", b";a=b", b"admin;x", b"a" * 500, b"?q=1", b"%252e%252e", b"admin%2fx",
)  # fmt: skip
_ODD_SEGMENTS = (b"%zz", b"%", b"%00", b"\x00", b"\xc0\xaf", b"#f", b"\xff", b" ", b"\t")
_GOOD_HEADERS = (
    b"Content-Length: 0", b"Transfer-Encoding: chunked", b"Connection: close", b"Connection: X-Forwarded-For",
    b"X-Forwarded-For: 6.6.6.6", b"X_Forwarded_For: 6.6.6.6", b"x-forwarded_for: 6.6.6.6", b"TE: trailers",
    b"Forwarded: for=6.6.6.6", b"X-Skerry-Public: 1", b"X-Real-IP: 6.6.6.6", b"X_Skerry: 1", b"X_Real_Ip: 6",
    b"Authorization: Basic ====", b"Cookie: " + b"a=b; " * 200, b"Range: bytes=0-,0-,0-", b"Origin: null",
    b"Accept-Encoding: " + b"gzip," * 100, b"Accept: */*", b"User-Agent: x", b"X-Request-Id: \x7f",
)  # fmt: skip
_ODD_HEADERS = (
    b"Content-Length: 5", b"Content-Length: -1", b"Content-Length: 5, 6", b"Content-Length: +5",
    b"Content-Length: 99999999999999999999", b"Content-Length : 5", b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding: chunked, identity", b"Transfer-Encoding:\x0bchunked", b"Transfer_Encoding: chunked",
    b"Connection: keep-alive, Upgrade", b"Upgrade: websocket", b"Upgrade: h2c", b"Host: b.test",
    b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA", b"Expect: 100-continue", b"Expect: 9", b" folded: 1",
    b"\tfolded", b": no name", b"no colon", b"", b"X: " + b"y" * 9000, b"X\x00: 1", b"X: \x00", b"X: \r",
    b"X: a\nY: b", b"Authorization: Bearer \xff", b"X-Forwarded-For : 6.6.6.6", b"X-Forwarded-For\t: 6.6.6.6",
)  # fmt: skip
_BODIES = (
    b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"FFFFFFFFFFFFFFFFF\r\n", b"-1\r\n",
    b"0\r\nX-Forwarded-For: 6\r\n\r\n", b'5;ext="\r\nhello\r\n0\r\n\r\n',
    b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n",
)  # fmt: skip
_ODD_HOSTS = (b"", b"a/b", b"[::1", b"x" * 300, b"a,b", b"\xff", b"..", b"x:0", b"a b")
_ODD_ENDS = (b"\n", b"\r", b"\r\r\n", b" \r\n")

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class HeadFuzzer:
    """The same seed gives the same heads."""

    def __init__(self, seed: int, hosts: Sequence[bytes] = (b"localhost",)) -> None:
        self.chance = random.Random(seed)
        self._hosts = hosts

    def head(self) -> bytes:
        made = self._grammatical()
        return self._mutated(made) if self.chance.random() < 0.5 else made

    def _grammatical(self) -> bytes:
        chance = self.chance
        method = chance.choice(_METHODS if chance.random() < 0.9 else _ODD_METHODS)
        target = b"/" + b"/".join(chance.choices(_SEGMENTS, k=chance.randrange(5)))
        if chance.random() < 0.1:
            target += chance.choice(_ODD_SEGMENTS)
        if chance.random() < 0.1:
            target = chance.choice(
                (b"*", b"http://a.test" + target, b"//a.test", b"a.test:80", b"", b"/" * 3000)
            )
        lines = [b" ".join((method, target, chance.choice(_VERSIONS)))]
        if chance.random() < 0.9:
            lines.append(b"Host: " + chance.choice(self._hosts if chance.random() < 0.9 else _ODD_HOSTS))
        lines += chance.choices(_GOOD_HEADERS, k=chance.randrange(6))
        lines += chance.choices(_ODD_HEADERS, k=min(int(chance.expovariate(1.2)), 150))
        end = b"\r\n" if chance.random() < 0.9 else chance.choice(_ODD_ENDS)
        return end.join(lines) + end * 2 + chance.choice(_BODIES)

    def _mutated(self, data: bytes) -> bytes:
        chance, changed = self.chance, bytearray(data)
        for _ in range(chance.randrange(1, 8)):
            at = chance.randrange(len(changed) + 1)
            match chance.randrange(5):
                case 0:
                    changed[at : at + 1] = chance.randbytes(1)
                case 1:
                    del changed[at : at + chance.randrange(1, 20)]
                case 2:
                    changed[at:at] = chance.choice((b"\r\n", b"\0", b"\n", b" ", b":", b"\xff", b"\r\n\r\n"))
                case 3:
                    part = changed[at : at + chance.randrange(1, 60)]
                    changed[at:at] = part * chance.randrange(1, 4)
                case _:
                    changed[at:at] = chance.randbytes(chance.randrange(1, 30))
        return bytes(changed)


async def send_heads(
    fuzzer: HeadFuzzer, connect: Connect, *, count: int, at_once: int = 8, within_s: float = 30.0
) -> Counter[str]:
    """Send so many, each over a connection of its own, and give the statuses of the first answers. Raises
    AssertionError with the head that was not answered as it should be."""
    found: Counter[str] = Counter()
    plans = iter([(fuzzer.head(), fuzzer.chance.random()) for _ in range(count)])

    async def client() -> None:
        for head, manner in plans:
            try:
                async with asyncio.timeout(within_s):
                    found[await _send(connect, head, manner)] += 1
            except TimeoutError as error:
                raise AssertionError(f"the connection stays after {head!r}") from error

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(client())
    return found


async def _send(connect: Connect, head: bytes, manner: float) -> str:
    reader, writer = await connect()
    try:
        with contextlib.suppress(ConnectionError):
            for start in range(0, len(head), max(1, int(len(head) * (0.3 + manner)))):
                writer.write(head[start : start + max(1, int(len(head) * (0.3 + manner)))])
                await writer.drain()
        if manner < 0.1:  # it is gone, with a reset
            with contextlib.suppress(OSError):  # the server was faster
                raw = writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            return "gone"
        with contextlib.suppress(OSError, RuntimeError):
            if writer.can_write_eof():
                writer.write_eof()
            else:
                writer.close()  # TLS has no half-close
        try:
            answer = await reader.read(-1)
        except (ConnectionError, OSError):
            return "reset"
        assert answer == b"" or answer.startswith((b"HTTP/1.", b"HTTP/0.9 ")), (head, answer[:200])
        return answer[9:12].decode("ascii", "replace") if answer else "closed"
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
