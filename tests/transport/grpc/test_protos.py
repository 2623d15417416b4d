"""The committed stubs are what the compiler makes of the sources."""

from __future__ import annotations

from scripts import protos


def test_the_committed_stubs_are_those_of_the_sources(tmp_path):
    made = protos.compile_into(tmp_path)
    assert made
    for path in made:
        committed = protos.HOME / path.relative_to(tmp_path)
        assert committed.read_bytes() == path.read_bytes(), f"{committed.name} is out of date: run make fix"


def test_every_source_is_compiled():
    sources = {path.stem for path in protos.SOURCES.rglob("*.proto")}
    assert {f"{name}_pb2.py" for name in sources} == {path.name for path in protos.SOURCES.rglob("*_pb2.py")}
