"""Classes of calls as settings write them."""

from __future__ import annotations

import pytest

from skerry.functions.qos import DEFAULT_CLASSES, QosClass, class_of_call, parse_classes
from skerry.model import errors
from skerry.model.settings import FunctionSettings


def test_classes_are_read_in_order() -> None:
    assert parse_classes(("slow:1:60:1", " fast : 16 : 0.5 : 2.5 ")) == (
        QosClass("slow", 1, 60.0, 1.0),
        QosClass("fast", 16, 0.5, 2.5),
    )


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ((), "at least one class"),
        (("urgent",), "has 1 parts; write name:weight:deadline_s:utility"),
        (("urgent:1:2:3:4",), "has 5 parts"),
        ((":1:2:3",), "is no name"),
        (("very urgent:1:2:3",), "is no name"),
        (("a:0:2:3",), "weight must be a whole number above 0"),
        (("a:1.5:2:3",), "weight must be a whole number above 0, not '1.5'"),
        (("a:²:2:3",), "weight must be a whole number"),
        (("a:1:soon:3",), "deadline_s must be a number above 0, not 'soon'"),
        (("a:1:0:3",), "deadline_s must be a number above 0"),
        (("a:1:inf:3",), "deadline_s must be a number above 0"),
        (("a:1:2:nan",), "utility must be a number above 0"),
        (("a:1:2:-3",), "utility must be a number above 0"),
        (("a:1:2:3", "b:1:2:3", "a:4:5:6"), "two classes are called 'a'"),
    ],
)
def test_what_is_no_class_is_refused_with_what_is_wrong(lines: tuple[str, ...], words: str) -> None:
    with pytest.raises(errors.Invalid) as refused:
        parse_classes(lines)
    assert words in refused.value.message
    assert refused.value.field == "classes"


def test_a_call_of_a_class_beyond_the_last_counts_as_of_the_last() -> None:
    assert class_of_call(DEFAULT_CLASSES, 0).name == "background"
    assert class_of_call(DEFAULT_CLASSES, 255).name == "urgent"


def test_classes_are_written_as_they_are_read() -> None:
    assert parse_classes([str(one) for one in DEFAULT_CLASSES]) == DEFAULT_CLASSES


def test_those_of_settings_are_those_of_the_simulation() -> None:
    assert parse_classes(FunctionSettings().classes) == DEFAULT_CLASSES
