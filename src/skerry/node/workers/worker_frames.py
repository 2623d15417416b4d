"""The protocol between an agent and the program in a worker: frames on a stream socket.

A frame is a header, with the length of the payload, the kind and the call, and then the payload. The agent's
end is `worker_channel`; the programs are `python_worker` and `worker.js`, which repeats these numbers.
Standard library only, and little of it: the Python program is forked with this in it.

    to the worker    LOAD      JSON: what to load, from where, and the bounds; the first frame, once; with
                               the descriptor of a template's file, if there is one
                     CALL      a byte of flags, a traceparent if they say so, then the parameters: JSON
                     CANCEL    nobody waits for this call any more
                     WEB_CALL  the length of the head, the head: JSON, and the body of an HTTP request
                     GRANT     so many more bytes of the response may be sent
    from the worker  LOADED    JSON: `runtime`, what really runs; `used_s`, the processor time of loading;
                               `is_copy`, if it was made from a template
                     FAILED    JSON: `error` and `output`; the code cannot be loaded, and the worker ends
                     RESULT    an outcome, the seconds in the handler, the length of the output; then the
                               output, UTF-8; then the result, JSON, or the error, text
                     WEB_HEAD  JSON: `status` and `headers` of the response to a WEB_CALL, once
                     WEB_BODY  a part of its body; RESULT, without a result, comes after the last one

Of the body of a response a worker sends at most `WINDOW` bytes more than it was granted, and at most
`WEB_PART` in one frame.
"""

from __future__ import annotations

import struct
from typing import Final

HEADER: Final = struct.Struct("<IBxxxQ")  # length of the payload, kind, call
OUTCOME: Final = struct.Struct("<BdI")  # outcome, duration in seconds, length of the output
LENGTH: Final = struct.Struct("<I")  # of the head of a request; also what a GRANT grants

LOAD: Final = 1
CALL: Final = 2
CANCEL: Final = 3
WEB_CALL: Final = 4
GRANT: Final = 5
LOADED: Final = 10
FAILED: Final = 11
RESULT: Final = 12
WEB_HEAD: Final = 13
WEB_BODY: Final = 14

WANTS_OUTPUT: Final = 1  # flag of a call: return its output also if it succeeds
TRACED: Final = 2  # flag of a call: a traceparent comes before the parameters
TRACEPARENT_BYTES: Final = 55

OK: Final = 0
RAISED: Final = 1  # the handler raised
UNREPRESENTABLE: Final = 2  # it returned what cannot be encoded as JSON
TOO_LARGE: Final = 3  # its result is over the limit

WINDOW: Final = 256 * 1024  # as in `skerry.kit.response_stream`
WEB_PART: Final = 64 * 1024

MAX_ERROR_BYTES: Final = 64 * 1024  # of an error's text, with its traceback
_NOTES_BYTES: Final = 4 * 1024  # the fixed parts of a frame, and the note of truncated output


def bound(max_result_bytes: int, max_output_bytes: int) -> int:
    """The largest payload of a worker with these limits."""
    return max(max_result_bytes, MAX_ERROR_BYTES) + max_output_bytes + _NOTES_BYTES


def pack(kind: int, call: int, payload: bytes) -> bytes:
    return HEADER.pack(len(payload), kind, call) + payload
