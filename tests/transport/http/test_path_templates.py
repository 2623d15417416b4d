"""Which paths a template is for, and the values of its names."""

from __future__ import annotations

import pytest

from skerry.transport.http.path_templates import PathTemplate


@pytest.mark.parametrize(
    ("template", "path", "values"),
    [
        ("/token/{id}", "/token/t1", {"id": "t1"}),
        ("/token/{id}", "/token/a\nb {x}", {"id": "a\nb {x}"}),
        ("/token/{id}", "/token/", None),
        ("/token/{id}", "/tokens/t1", None),
        ("/a/{b}/c/{d}", "/a/1/c/2", {"b": "1", "d": "2"}),
        ("/a/{b}/c/{d}", "/a//c/2", None),
        ("/a/{b}/c/{d}", "/a/1/e/2", None),
        ("/a.b", "/a.b", {}),
        ("/a.b", "/acb", None),
        ("/", "/", {}),
    ],
)
def test_a_name_takes_one_whole_segment(template: str, path: str, values: dict[str, str] | None) -> None:
    assert PathTemplate(template).match(path.split("/")) == values


def test_a_name_within_a_segment_is_no_template() -> None:
    with pytest.raises(ValueError, match="a whole segment"):
        PathTemplate("/archive/{name}.tar")
