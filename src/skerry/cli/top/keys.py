"""Names of keys, from the bytes that a terminal sends for them. Pure."""

from __future__ import annotations

import codecs
from typing import Final

_SEQUENCES: Final = {
    **dict.fromkeys(("[A", "OA"), "up"),
    **dict.fromkeys(("[B", "OB"), "down"),
    **dict.fromkeys(("[C", "OC"), "right"),
    **dict.fromkeys(("[D", "OD"), "left"),
    **dict.fromkeys(("[H", "OH", "[1~", "[7~"), "home"),
    **dict.fromkeys(("[F", "OF", "[4~", "[8~"), "end"),
    **dict.fromkeys(("OP", "[11~", "[[A"), "f1"),
    **dict.fromkeys(("OS", "[14~", "[[D"), "f4"),
    "[5~": "page-up",
    "[6~": "page-down",
    "[Z": "back-tab",
    "[17~": "f6",
    "[21~": "f10",
}
_CONTROLS: Final = {
    "\r": "enter",
    "\n": "enter",
    "\t": "tab",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x03": "ctrl-c",
}
_LONGEST: Final = 8


class KeyDecoder:
    """Bytes may come in pieces, also within one key."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._rest = ""

    @property
    def is_waiting(self) -> bool:
        """Whether a sequence has begun; if nothing follows, it was the key Escape: `flush`."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[str]:
        text, self._rest = self._rest + self._decoder.decode(data), ""
        found: list[str] = []
        while text:
            if text[0] != "\x1b":
                key = _CONTROLS.get(text[0], text[0])
                text = text[1:]
                if len(key) > 1 or key.isprintable():
                    found.append(key)
                continue
            known = next((size for size in range(1, _LONGEST) if text[1 : 1 + size] in _SEQUENCES), 0)
            if known:
                found.append(_SEQUENCES[text[1 : 1 + known]])
                text = text[1 + known :]
            elif any(sequence.startswith(text[1:]) for sequence in _SEQUENCES):
                self._rest, text = text, ""
            else:
                text = _after_unknown(text)
        return found

    def flush(self) -> list[str]:
        """Escape, if it was that key."""
        rest, self._rest = self._rest, ""
        return ["escape"] if rest else []


def _after_unknown(text: str) -> str:
    """What follows a sequence that means nothing here: `ESC [`, parameters, and a letter."""
    if not text.startswith("\x1b["):
        return text[2:]
    end = 2
    while end < len(text) and not "@" <= text[end] <= "~":
        end += 1
    return text[end + 1 :]
