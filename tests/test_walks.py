"""Walks cannot lie: what they name exists, and is called by what stands before it."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts import generate, walks

CODE = """
class Front:
    def take(self):
        self._check()
        return store(1)

    def _check(self):
        pass


def store(value):
    return value


async def loop():
    pass
"""
WALK = """
title = "A parcel: from the door to the shelf"
[[step]]
text = "it is taken in; and `checked`"
at = "house"
by = "client"
calls = ["front.py Front.take", "front.py Front._check"]
[[step]]
text = "it is stored"
calls = ["front.py store"]
[[step]]
text = "somebody looks for it"
by = "queue"
calls = ["front.py loop"]
[[step]]
text = "and stores it again"
after = "Front.take"
calls = ["front.py store"]
"""


@pytest.fixture
def walk(tmp_path: Path) -> Path:
    (tmp_path / "front.py").write_text(CODE)
    (tmp_path / "parcel.toml").write_text(WALK)
    return tmp_path / "parcel.toml"


def edited(walk: Path, old: str, new: str) -> walks.Walk:
    text = walk.read_text()
    assert old in text
    walk.write_text(text.replace(old, new, 1))
    return walks.load(walk, walk.parent)


def test_callers_are_found_in_the_code(walk: Path) -> None:
    found = walks.load(walk, walk.parent)
    assert [(call.function, call.caller and call.caller.function, call.way) for call in found.calls] == [
        ("Front.take", None, "client"),
        ("Front._check", "Front.take", ""),
        ("store", "Front.take", ""),
        ("loop", None, "queue"),
        ("store", "Front.take", ""),
    ]


def test_a_function_that_was_renamed_is_an_error(walk: Path) -> None:
    (walk.parent / "front.py").write_text(CODE.replace("_check", "_look"))
    with pytest.raises(walks.WalkError, match=r"there is no function Front\._check in front\.py"):
        walks.load(walk, walk.parent)


def test_a_module_that_was_moved_is_an_error(walk: Path) -> None:
    (walk.parent / "front.py").rename(walk.parent / "back.py")
    with pytest.raises(walks.WalkError, match="there is no function"):
        walks.load(walk, walk.parent)


def test_a_function_that_is_not_called_any_more_is_an_error(walk: Path) -> None:
    (walk.parent / "front.py").write_text(CODE.replace("store(1)", "1"))
    with pytest.raises(walks.WalkError, match=r"'it is stored': .* names 'store'"):
        walks.load(walk, walk.parent)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('by = "queue"', "", "names 'loop'"),
        ('by = "queue"', 'by = "magic"', "not 'magic'"),
        ('after = "Front.take"', 'after = "Front.give"', "not on the walk before"),
        ('after = "Front.take"', "", "names 'store'"),
    ],
)
def test_how_a_step_is_reached_must_be_said_and_make_sense(
    walk: Path, old: str, new: str, message: str
) -> None:
    with pytest.raises(walks.WalkError, match=message):
        edited(walk, old, new)


def test_a_walk_is_a_picture_and_a_table(walk: Path) -> None:
    text = walks.page([walks.load(walk, walk.parent)])
    assert "4 functions in 1 modules." in text
    assert "    participant house_front.py as house: front.py\n" in text
    assert "    client-)house_front.py: it is taken in, and checked\n" in text
    assert "    house_front.py->>front.py: it is stored\n" in text
    assert "    front.py-)front.py: somebody looks for it\n" in text
    assert (
        "| it is taken in; and `checked` | from outside | `front.py`: `Front.take`, `Front._check` |" in text
    )
    assert "| it is stored | called by `Front.take` | `front.py`: `store` |" in text


def test_a_broken_walk_fails_the_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> dict[Path, bytes]:
        raise walks.WalkError("x.toml, 'a step': there is no function f in m.py")

    monkeypatch.setattr(generate, "generated", broken)
    assert generate.main(["--check"]) == 1
    assert "docs/walks/x.toml, 'a step': there is no function f" in capsys.readouterr().err
