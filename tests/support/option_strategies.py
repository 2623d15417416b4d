"""Container options of every kind, for properties."""

from __future__ import annotations

from hypothesis import strategies as st

from skerry.model.container_options import (
    MAX_OPEN_FILES,
    ULIMIT_NAMES,
    UNLIMITED,
    ContainerOptions,
    HostAlias,
    Ulimit,
)
from skerry.model.resources import MAX_AMOUNT, Megabytes

_words = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=10)
_limits = st.integers(0, 2**62) | st.just(UNLIMITED)


def _ulimit(name: str, one: int, other: int) -> Ulimit:
    most = MAX_OPEN_FILES if name == "nofile" else UNLIMITED
    soft, hard = sorted((min(one, most), min(other, most)))
    return Ulimit(name, soft, hard)


container_options = st.builds(
    ContainerOptions,
    user=st.sampled_from(["", "guest", "1000:1000"]),
    entrypoint=st.lists(_words, max_size=3).map(tuple),
    stop_signal=st.sampled_from(["", "SIGINT", "9", "RTMIN+3"]),
    stop_grace_s=st.none() | st.floats(0, 86_400),
    read_only=st.booleans(),
    shm=st.integers(0, MAX_AMOUNT).map(Megabytes),
    ulimits=st.lists(
        st.builds(_ulimit, st.sampled_from(ULIMIT_NAMES), _limits, _limits),
        max_size=4,
        unique_by=lambda limit: limit.name,
    ).map(tuple),
    init=st.booleans(),
    host_name=st.sampled_from(["", "db-1"]),
    extra_hosts=st.lists(
        st.builds(
            HostAlias,
            st.sampled_from(["db", "db.example.org"]),
            st.ip_addresses().map(str).filter(lambda a: "%" not in a),
        ),
        max_size=3,
    ).map(tuple),
    dns=st.lists(st.sampled_from(["192.0.2.1", "10.0.0.7"]), max_size=3).map(tuple),
)
