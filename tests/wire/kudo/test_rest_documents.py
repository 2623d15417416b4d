"""Documents in and out: every spelling is read, one is written, and what is written can be read back."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from skerry.kit import json_codec
from skerry.model import errors
from skerry.model.devices import DeviceRequest
from skerry.model.ids import InstanceId, WorkloadId
from skerry.model.ports import PortMapping, Protocol
from skerry.model.resources import MAX_AMOUNT, Gigabytes, Megabytes, Millicores, Resources
from skerry.model.statuses import InstanceStatus
from skerry.model.workloads import (
    HIDDEN,
    Instance,
    InstanceSpec,
    ObservedState,
    RestartMode,
    RestartPolicy,
    Workload,
)
from skerry.wire import spec_documents
from skerry.wire.kudo import documents
from skerry.wire.kudo.documents import InstanceInput, WorkloadInput
from skerry.wire.spec_documents import SpecInput
from tests.support.option_strategies import container_options

amounts = st.integers(0, MAX_AMOUNT)
names = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,20}[a-z0-9])?", fullmatch=True)
# Hypothesis tries texts of our own sources, too.
words = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20).filter(
    lambda word: word != HIDDEN
)
rooms = st.builds(
    Resources,
    amounts.map(Millicores),
    amounts.map(Megabytes),
    amounts.map(Gigabytes),
)
mappings = st.builds(PortMapping, st.integers(1, 65535), st.integers(1, 65535), st.sampled_from(Protocol))
specs = st.builds(
    InstanceSpec,
    name=names,
    uri=st.from_regex(r"[!-~]{1,40}", fullmatch=True),
    environment=st.dictionaries(names, words, max_size=5).map(
        lambda env: tuple(f"{key}={value}" for key, value in env.items())
    ),
    resources=rooms,
    ports=st.lists(mappings, max_size=5, unique_by=lambda port: (port.source, port.protocol)).map(tuple),
    restart=st.builds(RestartPolicy, st.sampled_from(RestartMode), st.integers(0, 1_000_000)),
    arguments=st.lists(words, max_size=5).map(tuple),
    architecture=st.sampled_from(["", "amd64", "arm64"]),
    constraints=st.lists(st.sampled_from(["zone=edge", "disk!=slow", "gpu="]), max_size=3).map(tuple),
    node=st.sampled_from(["", "edge-1"]),
    cpu_limit=st.sampled_from([None, Millicores(0), Millicores(MAX_AMOUNT)]),
    options=container_options,
    devices=st.sampled_from([(), ("gpu:2", "nvidia.com/gpu=0")]).map(
        lambda texts: tuple(map(DeviceRequest.parse, texts))
    ),
)

BASE = InstanceSpec(name="web", uri="example.org/web:1")


def read(text: Any, as_type: type[SpecInput] = SpecInput) -> SpecInput:
    return json_codec.decode(json.dumps(text), as_type)


def fields_of(document: msgspec.Struct) -> dict[str, Any]:
    """What is written of a spec, and nothing else of it."""
    written = json_codec.decode(json_codec.encode(document), dict[str, Any])
    return {name: value for name, value in written.items() if name in SpecInput.__struct_fields__}


def workload_of(spec: InstanceSpec) -> Workload:
    return Workload(WorkloadId("w1"), spec, 1.5)


def instance_of(spec: InstanceSpec, status: InstanceStatus = InstanceStatus.CRASHED) -> Instance:
    seen = ObservedState(status, 2.5, "exit code 3", exit_code=3, retry_at=12.5)
    return Instance(InstanceId("i1"), spec, 1.5, seen)


@given(specs)
def test_what_is_written_of_a_spec_is_read_as_the_same_spec(spec: InstanceSpec) -> None:
    for document in (
        documents.workload_document(workload_of(spec)),
        documents.instance_document(instance_of(spec), Resources(Millicores(1))),
    ):
        assert read(fields_of(document)).onto() == spec


@given(specs, specs)
def test_a_whole_document_over_another_is_that_document_and_an_empty_one_changes_nothing(
    before: InstanceSpec, after: InstanceSpec
) -> None:
    assert read(fields_of(documents.workload_document(workload_of(after)))).onto(before) == after
    assert read({}).onto(before) == before


@given(specs, st.sets(st.sampled_from(sorted(set(SpecInput.__struct_fields__) - {"name", "uri", "type"}))))
def test_null_goes_back_to_the_default_and_leaves_the_rest(spec: InstanceSpec, cleared: set[str]) -> None:
    after = read(dict.fromkeys(cleared)).onto(spec)
    plain = InstanceSpec(name=spec.name, uri=spec.uri)
    groups = {
        "environment": {"environment", "environnement", "env"},
        "resources": {"resources"},
        "ports": {"ports", "port_mappings"},
        "arguments": {"arguments"},
        "architecture": {"architecture"},
        "constraints": {"constraints"},
    }
    for field, spellings in groups.items():
        source = plain if spellings & cleared else spec
        assert getattr(after, field) == getattr(source, field)
    assert after.restart.when is (plain if "restart" in cleared else spec).restart.when
    assert after.restart.budget == (plain if "restart_budget" in cleared else spec).restart.budget


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ({"ports": ["80"]}, ["80:80"]),
        ({"ports": ["8080:80"]}, ["8080:80"]),
        ({"ports": ["8080:80/udp"]}, ["8080:80/udp"]),
        ({"ports": ["80/tcp"]}, ["80:80"]),
        ({"ports": [{"source": 8080, "destination": 80}]}, ["8080:80"]),
        ({"ports": [{"source": 8080, "dest": 80}]}, ["8080:80"]),
        ({"ports": [{"source": 53, "destination": 53, "protocol": "udp"}]}, ["53:53/udp"]),
        ({"ports": [{"source": 1, "destination": 2, "dest": 2}]}, ["1:2"]),
        ({"port_mappings": [{"source": 8080, "destination": 80}]}, ["8080:80"]),
        ({"ports": ["1:2"], "port_mappings": [{"source": 1, "destination": 2}]}, ["1:2"]),
        ({"ports": ["80", {"source": 81, "dest": 81}]}, ["80:80", "81:81"]),
    ],
)
def test_ports_are_read_in_every_spelling_and_written_in_one(given_: Any, expected: list[str]) -> None:
    spec = read(given_).onto(BASE)
    written = json_codec.decode(
        json_codec.encode(documents.workload_document(workload_of(spec))), dict[str, Any]
    )
    assert written["ports"] == expected
    assert [
        f"{one['source']}:{one['destination']}" + ("/udp" if one["protocol"] == "udp" else "")
        for one in written["port_mappings"]
    ] == expected


@pytest.mark.parametrize(
    "resources",
    [
        {"cpu": 5, "memory": 6, "disk": 7},
        {"max": {"cpu": 5, "memory": 6, "disk": 7}},
        {"limit": {"cpu": 5, "memory": 6, "disk": 7}},
        {"max": {"cpu": 5, "memory": 6}, "limit": {"disk": 7}},
        {"cpu": 5, "max": {"cpu": 5, "memory": 6, "disk": 7}, "limit": {"memory": 6}},
        {"max": {"cpu": 5, "memory": 6, "disk": 7}, "usage": {"cpu": 1, "memory": 1, "disk": 1}},
    ],
)
def test_resources_are_read_flat_and_nested_under_either_name(resources: Any) -> None:
    assert read({"resources": resources}).onto(BASE).resources == Resources(
        Millicores(5), Megabytes(6), Gigabytes(7)
    )


def test_a_part_of_the_resources_that_is_not_given_stays_and_null_clears_it() -> None:
    before = msgspec.structs.replace(BASE, resources=Resources(Millicores(1), Megabytes(2), Gigabytes(3)))
    assert read({"resources": {"memory": 9}}).onto(before).resources == Resources(
        Millicores(1), Megabytes(9), Gigabytes(3)
    )
    assert read({"resources": {"max": {"cpu": None}}}).onto(before).resources == Resources(
        Millicores(0), Megabytes(2), Gigabytes(3)
    )
    assert read({"resources": {"max": None}}).onto(before).resources == Resources()


@pytest.mark.parametrize("name", ["environment", "environnement", "env"])
def test_the_environment_is_read_by_each_of_its_names(name: str) -> None:
    assert read({name: ["A=1"]}).onto(BASE).environment == ("A=1",)


@pytest.mark.parametrize("text", ["CONTAINER", "container", "Container"])
def test_the_type_is_read_in_any_case(text: str) -> None:
    assert read({"type": text}).onto(BASE) == BASE


def test_a_document_has_what_kudos_document_says_and_both_names_where_two_are_in_use() -> None:
    spec = msgspec.structs.replace(BASE, resources=Resources(Millicores(5)), ports=(PortMapping(8080, 80),))
    shown = json_codec.decode(
        json_codec.encode(documents.instance_document(instance_of(spec), Resources(Millicores(2)))),
        dict[str, Any],
    )
    limit = {"cpu": 5, "memory": 0, "disk": 0}
    assert shown == {
        "id": "i1",
        "name": "web",
        "type": "CONTAINER",
        "status": "CRASHED",
        "uri": "example.org/web:1",
        "environment": [],
        "env": [],
        "resources": {
            **limit,
            "max": limit,
            "limit": limit,
            "usage": {"cpu": 2, "memory": 0, "disk": 0},
        },
        "ports": ["8080:80"],
        "port_mappings": [{"source": 8080, "destination": 80, "protocol": "tcp"}],
        "restart": "always",
        "restart_budget": None,
        "arguments": [],
        "architecture": "",
        "constraints": [],
        "userns": "private",
        "checks": [],
        "spread": [],
        "max_per_node": 0,
        "metric": None,
        "namespace": "default",
        "desired": "RUNNING",
        "since": 2.5,
        "reason": "exit code 3",
        "description": "exit code 3",
        "statusDescription": "exit code 3",
        "ready": False,
        "check_message": "",
        "exit_code": 3,
        "previous_exit_code": None,
        "retry_at": 12.5,
        "restarts": 0,
        "ip": "",
        "ip6": "",
        "node_id": None,
        "workload_id": None,
        "workload_version": 0,
        "owner": "",
        "generation": 1,
        "created_at": 1.5,
        "assigned_devices": [],
        "node": "",
        "cpu_limit": None,
        "user": "",
        "entrypoint": [],
        "stop_signal": "",
        "stop_grace_s": None,
        "read_only": False,
        "shm": 0,
        "ulimits": [],
        "init": False,
        "hostname": "",
        "extra_hosts": [],
        "dns": [],
        "secrets": [],
        "configs": [],
        "devices": [],
        "volumes": [],
        "tmpfs": [],
        "volume_templates": [],
        "egress": None,
    }
    shown = json_codec.decode(
        json_codec.encode(documents.workload_document(workload_of(spec))), dict[str, Any]
    )
    assert (shown["kind"], shown["resources"]) == ("workload", limit)
    assert {"id", "name", "type", "uri", "environment", "env", "resources", "ports"} <= set(shown)


@pytest.mark.parametrize(
    ("changed", "field", "value"),
    [
        ({"environment": ["A=2"]}, "environment", ("A=2",)),
        ({"env": []}, "environment", ()),
        ({"ports": ["81:80"]}, "ports", (PortMapping(81, 80),)),
        ({"port_mappings": []}, "ports", ()),
    ],
)
def test_who_changes_one_spelling_of_a_whole_document_means_that_one(
    changed: dict[str, Any], field: str, value: Any
) -> None:
    spec = msgspec.structs.replace(BASE, environment=("A=1",), ports=(PortMapping(8080, 80),))
    whole = fields_of(documents.workload_document(workload_of(spec)))
    assert getattr(read({**whole, **changed}).onto(spec), field) == value


@pytest.mark.parametrize("place", ["cpu", "max", "limit"])
def test_who_changes_one_spelling_of_an_amount_means_that_one(place: str) -> None:
    spec = msgspec.structs.replace(BASE, resources=Resources(Millicores(5), Megabytes(6)))
    whole = fields_of(documents.instance_document(instance_of(spec), Resources(Millicores(2))))
    whole["resources"][place] = 9 if place == "cpu" else {**whole["resources"][place], "cpu": 9}
    assert read(whole).onto(spec).resources == Resources(Millicores(9), Megabytes(6))


@pytest.mark.parametrize(
    ("uri", "begins"),
    [
        ("docker.io/library/nginx:1.27", "nginx-"),
        ("example.org:5000/team/web@sha256:" + "a" * 64, "web-"),
        ("rootfs:/srv/web_site/", "web-site-"),
        ("sha256:" + "a" * 64, "sha256-"),
        ("//", "unnamed-"),
        ("x" * 300, "x" * 40 + "-"),
    ],
)
def test_a_name_that_is_made_is_one_and_the_same_for_the_same_request(uri: str, begins: str) -> None:
    name = spec_documents.generated_name(uri, "seed")
    assert name.startswith(begins)
    assert InstanceSpec(name=name, uri="example.org/web")
    assert name == spec_documents.generated_name(uri, "seed")
    assert name != spec_documents.generated_name(uri, "other")


BAD: list[tuple[Any, type[errors.SkerryError], str, str]] = [
    ({"type": "vm"}, errors.Unprocessable, "", "virtual machines are not run here"),
    ({"type": "VM"}, errors.Unprocessable, "", "the type must be CONTAINER"),
    ({"type": "pod"}, errors.Invalid, "type", "'pod' is no type; it must be CONTAINER"),
    ({"name": None}, errors.Invalid, "name", "`name` is needed"),
    ({"uri": None}, errors.Invalid, "uri", "`uri` is needed"),
    ({"name": ""}, errors.Invalid, "name", "must be 1 to 128 letters"),
    ({"name": "a b"}, errors.Invalid, "name", "must be 1 to 128 letters"),
    ({"uri": "two words"}, errors.Invalid, "uri", "uri must name an image"),
    ({"environment": ["A"]}, errors.Invalid, "environment", "environment[0] must read KEY=VALUE"),
    ({"environment": ["A=1", "A=2"]}, errors.Invalid, "environment", "sets 'A' twice"),
    (
        {"environment": [f"K{n}=" for n in range(101)]},
        errors.Invalid,
        "environment",
        "101 variables are too many; at most 100",
    ),
    ({"env": ["A=1"], "environment": ["A=2"]}, errors.Invalid, "env", "mean the same and differ"),
    (
        {"ports": [f"{n}" for n in range(1, 102)]},
        errors.Invalid,
        "ports",
        "101 ports are too many; at most 100",
    ),
    ({"ports": ["0"]}, errors.Invalid, "ports", "'0' is no port mapping; write `80`, `8080:80`"),
    ({"ports": ["80:"]}, errors.Invalid, "ports", "is no port mapping"),
    ({"ports": ["80:80/sctp"]}, errors.Invalid, "ports", "is no port mapping"),
    ({"ports": ["70000"]}, errors.Invalid, "ports.source", "a port is 1 to 65535, not 70000"),
    ({"ports": [{"source": -1, "dest": 1}]}, errors.Invalid, "ports.source", "a port is 1 to 65535"),
    ({"ports": [{"source": 1}]}, errors.Invalid, "ports", "needs `source` and `destination`"),
    ({"ports": [{"source": 1, "dest": 1, "destination": 2}]}, errors.Invalid, "dest", "differ"),
    ({"ports": ["80", "80:81"]}, errors.Invalid, "ports", "port 80/tcp is mapped twice"),
    (
        {"ports": ["1"], "port_mappings": [{"source": 2, "dest": 2}]},
        errors.Invalid,
        "port_mappings",
        "mean the same and differ",
    ),
    ({"resources": {"max": {"cpu": 1}, "limit": {"cpu": 2}}}, errors.Invalid, "limit.cpu", "differ"),
    ({"resources": {"cpu": 1, "max": {"cpu": 2}}}, errors.Invalid, "max.cpu", "differ"),
    ({"arguments": ["a\0b"]}, errors.Invalid, "arguments", "without NUL bytes"),
    ({"constraints": ["zone"]}, errors.Invalid, "constraints", "'zone' is no constraint; write `zone=edge`"),
]


@pytest.mark.parametrize(("given_", "kind", "field", "text"), BAD)
def test_what_cannot_be_is_refused_with_its_place_and_what_to_do(
    given_: Any, kind: type[errors.SkerryError], field: str, text: str
) -> None:
    with pytest.raises(kind) as told:
        read(given_).onto(BASE)
    assert text in told.value.message
    assert getattr(told.value, "field", "") == field


@pytest.mark.parametrize(
    "given_",
    [
        {"odd": 1},
        {"resources": {"gpu": 1}},
        {"resources": {"cpu": -1}},
        {"resources": {"cpu": MAX_AMOUNT + 1}},
        {"resources": {"cpu": 1.5}},
        {"resources": {"cpu": "1"}},
        {"resources": [1]},
        {"ports": "80"},
        {"ports": [80]},
        {"ports": [{"source": "80", "dest": 80}]},
        {"environment": {"A": "1"}},
        {"environment": [1]},
        {"restart": "sometimes"},
        {"restart_budget": -1},
        {"type": 1},
        {"type": None},
    ],
)
def test_what_has_the_wrong_shape_is_not_read(given_: Any) -> None:
    with pytest.raises(json_codec.InvalidJson):
        read(given_)


def test_only_instances_have_a_status_and_a_workload() -> None:
    read({"status": "RUNNING", "workload_id": "x", "id": "i"}, InstanceInput)
    read({"id": "i"}, WorkloadInput)
    with pytest.raises(json_codec.InvalidJson):
        read({"status": "RUNNING"}, WorkloadInput)


def test_checks_come_as_texts_or_objects_and_go_out_whole() -> None:
    given = msgspec.convert(
        {
            "name": "web",
            "uri": "example.org/web:1",
            "checks": [
                "http:80/health,interval=2s",
                {"role": "liveness", "method": "exec", "command": ["a"]},
            ],
            "spread": ["zone"],
            "max_per_node": 2,
            "metric": {"name": "in_flight", "port": 9000},
        },
        SpecInput,
    )
    spec = given.onto()
    assert [(check.role, check.target) for check in spec.checks] == [
        ("readiness", "http:80/health"),
        ("liveness", "exec:a"),
    ]
    shown = msgspec.to_builtins(spec_documents.spec_fields(spec))
    assert shown["checks"][0]["interval_s"] == 2.0
    again = {field: shown[field] for field in ("checks", "spread", "max_per_node", "metric")}
    assert msgspec.convert(again, SpecInput).onto(replace(spec, checks=(), spread=(), metric=None)) == spec
    assert msgspec.convert({"checks": None, "metric": None}, SpecInput).onto(spec).checks == ()
    with pytest.raises(errors.Invalid, match="no check"):
        msgspec.convert({"checks": ["ftp:21"]}, SpecInput).onto(spec)
