"""Names of devices, and requests for them."""

from __future__ import annotations

import pytest

from skerry.model import errors
from skerry.model.devices import DeviceRequest, check_device, check_requests, is_of_kind


@pytest.mark.parametrize(
    ("text", "request_", "shown"),
    [
        ("nvidia.com/gpu", DeviceRequest("nvidia.com/gpu"), "nvidia.com/gpu"),
        ("nvidia.com/gpu:1", DeviceRequest("nvidia.com/gpu"), "nvidia.com/gpu"),
        ("nvidia.com/gpu:2", DeviceRequest("nvidia.com/gpu", 2), "nvidia.com/gpu:2"),
        ("gpu:4", DeviceRequest("gpu", 4), "gpu:4"),
        ("nvidia.com/gpu=0", DeviceRequest("nvidia.com/gpu", name="0"), "nvidia.com/gpu=0"),
        ("nvidia.com/gpu=0:1", DeviceRequest("nvidia.com/gpu", name="0:1"), "nvidia.com/gpu=0:1"),
        ("a.b/c-d=GPU-4f.x_1", DeviceRequest("a.b/c-d", name="GPU-4f.x_1"), "a.b/c-d=GPU-4f.x_1"),
    ],
)
def test_a_request_is_read_and_written(text: str, request_: DeviceRequest, shown: str) -> None:
    assert DeviceRequest.parse(text) == request_
    assert str(request_) == shown
    assert DeviceRequest.parse(shown) == request_


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nvidia.com/",
        "/gpu",
        "nvidia.com/gpu=",
        "nvidia.com/gpu:",
        "nvidia.com/gpu:0",
        "nvidia.com/gpu:1025",
        "nvidia.com/gpu:two",
        "nvidia.com/gpu=-x",
        "nvidia.com/gpu/more",
        "gpu=0",
        "1vendor/gpu",
        "nvidia.com/gpu=a b",
        "nvidia.com/gpu=../x",
        "x" * 200,
    ],
)
def test_what_is_no_request_is_refused(text: str) -> None:
    with pytest.raises(errors.Invalid):
        DeviceRequest.parse(text)


def test_a_device_is_of_its_kind_and_class_and_no_other() -> None:
    device = check_device("nvidia.com/gpu=0")
    assert is_of_kind(device, "nvidia.com/gpu")
    assert is_of_kind(device, "gpu")
    assert not is_of_kind(device, "amd.com/gpu")
    assert not is_of_kind(device, "nvidia.com")


def test_the_same_kind_cannot_be_requested_twice() -> None:
    one = DeviceRequest("gpu")
    with pytest.raises(errors.Invalid, match="twice"):
        check_requests((one, DeviceRequest("gpu", 2)))
    with pytest.raises(errors.Invalid, match="at most 16"):
        check_requests(tuple(DeviceRequest(f"v{number}/gpu") for number in range(17)))
