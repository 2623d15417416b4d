"""Registering, deleting, prewarming, listing, describing functions, their output, and the node's status."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
import structlog

from skerry.functions.registry.registry import NewFunction
from skerry.kit import pki
from skerry.kit.clock import ManualClock, SystemClock
from skerry.model import errors
from skerry.model.calls import CodeLoadError
from skerry.model.cells import OutputChannel
from skerry.model.containers import NetworkMode
from skerry.model.images import ImageAccess
from skerry.model.resources import Millicores
from skerry.node.workers.function_logs import FunctionLogLine
from tests.support.waiting import eventually
from tests.transport.http.conftest import serving
from tests.transport.http.talking import get, post
from tests.wire.serverledge.conftest import SETTINGS, Serverledge
from tests.wire.serverledge.fakes import Fakes

JSON = "application/json; charset=UTF-8"
TEXT = "text/plain; charset=UTF-8"
CODE = b"a tar archive"
# What serverledge-cli sends, in its order.
CLI: dict[str, Any] = {
    "Name": "hello",
    "Runtime": "python38",
    "MemoryMB": 128,
    "CPUDemand": 0,
    "MaxConcurrency": 1,
    "Handler": "hello.handler",
    "TarFunctionCode": base64.b64encode(CODE).decode(),
    "CustomImage": "",
    "SupportedArchs": None,
    "Signature": {"Inputs": [], "Outputs": []},
}
NO_SIGNATURE = '{"Inputs": [], "Outputs": []}'
HELLO = NewFunction(
    "hello",
    "python38",
    128,
    handler="hello.handler",
    code=CODE,
    signature=NO_SIGNATURE,
    caller_access=ImageAccess.ALL,
)


def body(**changes: Any) -> bytes:
    return json.dumps({**CLI, **changes}).encode()


@pytest.mark.parametrize("path", ["/create", "/update"])
async def test_what_the_public_client_sends_registers_a_function(ledge: Serverledge, path: str) -> None:
    answer = await ledge.post(path, body())
    assert (answer.status, answer.headers["content-type"]) == (200, JSON)
    assert (
        answer.body
        == b'{"Created":"hello","Runtime":"Python 3.11.2","Version":1,"Copies":1,"CopiesWanted":2}\n'
    )
    assert ledge.fakes.functions.asked == [HELLO]


async def test_an_update_is_the_next_version(ledge: Serverledge) -> None:
    await ledge.post("/create", body())
    assert (await ledge.post("/update", body(MemoryMB=256))).json["Version"] == 2
    assert ledge.fakes.functions.asked[-1].memory == 256


async def test_every_field_of_a_function_is_read(ledge: Serverledge) -> None:
    sent = body(
        CPUDemand=0.5,
        MaxConcurrency=4,
        Environment={"A": "1", "B": "x=y"},
        Network="none",
        TimeoutS=2.5,
        Idempotent=True,
        Policy="edgecloud",
        Runtime="custom",
        CustomImage="example.org/f:1",
        Handler="",
        TarFunctionCode="",
    )
    assert (await ledge.post("/create", sent)).status == 200
    assert ledge.fakes.functions.asked == [
        NewFunction(
            "hello",
            "custom",
            128,
            cpu=Millicores(500),
            max_concurrency=4,
            image="example.org/f:1",
            environment=("A=1", "B=x=y"),
            network=NetworkMode.NONE,
            timeout_s=2.5,
            is_idempotent=True,
            policy="edgecloud",
            signature=NO_SIGNATURE,
            caller_access=ImageAccess.ALL,
        )
    ]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"Environment": ["A=1"]}, {"environment": ("A=1",)}),
        ({"CPUDemand": -1.0}, {"cpu": None}),
        ({"CPUDemand": 0.0001}, {"cpu": 1}),
        ({"CPUDemand": 2}, {"cpu": 2000}),
        ({"MaxConcurrency": 0}, {"max_concurrency": 1}),
        ({"TimeoutS": -1}, {"timeout_s": None}),
        ({"Template": False}, {"uses_template": False}),
        ({}, {"uses_template": True}),
        ({"Network": ""}, {"network": NetworkMode.BRIDGE}),
        ({"TarFunctionCode": "YSB0\r\nYXI="}, {"code": b"a tar"}),
    ],
)
async def test_other_ways_to_say_it(
    ledge: Serverledge, changes: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert (await ledge.post("/create", body(**changes))).status == 200
    made = ledge.fakes.functions.asked[0]
    assert {name: getattr(made, name) for name in expected} == expected


async def test_names_of_fields_are_read_in_any_case(ledge: Serverledge) -> None:
    spelt = {name.lower(): value for name, value in CLI.items()}
    assert (await ledge.post("/create", json.dumps(spelt).encode())).status == 200
    assert ledge.fakes.functions.asked == [HELLO]


async def test_a_name_that_is_taken_is_409_without_a_text(ledge: Serverledge) -> None:
    answer = await ledge.post("/create", body(Name="isprime"))
    assert (answer.status, answer.headers["content-type"], answer.body) == (409, TEXT, b"")


@pytest.mark.parametrize("path", ["/create", "/update"])
@pytest.mark.parametrize("sent", [b"", b"{}", body(Runtime="cobol")])
async def test_a_runtime_that_is_none_is_404(ledge: Serverledge, path: str, sent: bytes) -> None:
    answer = await ledge.post(path, sent)
    assert (answer.status, answer.headers["content-type"], answer.body) == (404, TEXT, b"Invalid runtime.")


@pytest.mark.parametrize("memory", [0, -5])
async def test_memory_below_one_is_422(ledge: Serverledge, memory: int) -> None:
    answer = await ledge.post("/create", body(MemoryMB=memory))
    assert (answer.status, answer.headers["content-type"]) == (422, TEXT)
    assert answer.body == b"Invalid memory limit"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"MemoryMB": "128"}, "`MemoryMB`: Expected `int`, got `str`"),
        ({"MemoryMB": 1.5}, "`MemoryMB`: Expected `int`, got `float`"),
        ({"MemoryMB": 2**40}, "memory must be"),
        ({"CPUDemand": "1"}, "`CPUDemand`: Expected `float`, got `str`"),
        ({"CPUDemand": 1e300}, "CPUDemand must be at most"),
        ({"MaxConcurrency": 2**15}, "max_concurrency"),
        ({"Name": 7}, "`Name`: Expected `str`, got `int`"),
        ({"Name": "a/b"}, "name 'a/b' must be"),
        ({"Name": ""}, "name '' must be"),
        ({"Handler": ""}, "needs a handler"),
        ({"TarFunctionCode": ""}, "needs its code"),
        ({"TarFunctionCode": "a tar"}, "TarFunctionCode is not base64"),
        ({"TarFunctionCode": "YQ"}, "TarFunctionCode is not base64"),
        ({"TarFunctionCode": "é"}, "TarFunctionCode is not base64"),
        ({"Environment": {"A": 1}}, "`Environment"),
        ({"Environment": {"A=B": "1"}}, "must not hold `=`"),
        ({"Environment": "A=1"}, "`Environment`"),
        ({"Network": "host"}, "Network must be `none` or `bridge`"),
        ({"TimeoutS": 1e9}, "timeout_s"),
    ],
)
async def test_what_is_wrong_with_a_function_is_said(
    ledge: Serverledge, changes: dict[str, Any], said: str
) -> None:
    answer = await ledge.post("/create", body(**changes))
    assert (answer.status, answer.headers["content-type"]) == (400, JSON)
    assert said in answer.json["message"]
    assert ledge.fakes.functions.names() == ["isprime"]


async def test_code_that_cannot_be_loaded_is_422_with_its_output_and_traceback(ledge: Serverledge) -> None:
    ledge.fakes.functions.failing = CodeLoadError("Traceback...\nImportError: nope", output="hi\n")
    answer = await ledge.post("/create", body())
    assert answer.status == 422
    assert answer.json == {
        "message": "Traceback...\nImportError: nope",
        "code": "unprocessable",
        "Output": "hi\n",
    }


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.TooLarge("too much"), 413),
        (errors.ResourcesExhausted("no room"), 507),
        (errors.Unavailable("away"), 503),
        (errors.Unprocessable("no"), 422),
    ],
)
async def test_any_other_reason_is_told_as_it_is(
    ledge: Serverledge, error: errors.SkerryError, status: int
) -> None:
    ledge.fakes.functions.failing = error
    answer = await ledge.post("/create", body())
    assert (answer.status, answer.json) == (status, {"message": error.message, "code": error.slug})


async def test_code_of_the_largest_size_fits_into_the_body_and_more_does_not(ledge: Serverledge) -> None:
    largest = base64.b64encode(b"x" * SETTINGS.max_code_bytes).decode()
    assert (await ledge.post("/create", body(TarFunctionCode=largest))).status == 200
    wire = await ledge.site.wire()
    await wire.send(post("/create", b"", length=3 * 1024 * 1024))
    answer = await wire.answer()
    assert (answer.status, answer.json["code"]) == (413, "too-large")


async def test_a_function_is_deleted_by_what_the_public_client_sends(ledge: Serverledge) -> None:
    sent = dict.fromkeys(CLI) | {"Name": "isprime", "MemoryMB": 0}
    answer = await ledge.post("/delete", json.dumps(sent).encode())
    assert (answer.status, answer.body) == (200, b'{"Deleted":"isprime"}\n')
    assert ledge.fakes.functions.names() == []


@pytest.mark.parametrize("sent", [b"", b'{"Name":"nobody"}'])
async def test_deleting_what_is_not_there_is_404(ledge: Serverledge, sent: bytes) -> None:
    answer = await ledge.post("/delete", sent)
    assert (answer.status, answer.headers["content-type"], answer.body) == (404, TEXT, b"Unknown function.")


async def test_prewarming_tells_how_many_it_became(ledge: Serverledge) -> None:
    answer = await ledge.post("/prewarm", b'{"Function":"isprime","Instances":5,"ForceImagePull":true}')
    assert (answer.status, answer.body) == (200, b'{"Prewarmed":2}\n')
    assert (await ledge.post("/prewarm", b'{"function":"isprime"}')).body == b'{"Prewarmed":0}\n'
    assert ledge.fakes.invoker.prewarmed == [("isprime", 5, True), ("isprime", 0, False)]


async def test_prewarming_an_unknown_function_is_404(ledge: Serverledge) -> None:
    answer = await ledge.post("/prewarm", b'{"Function":"nobody","Instances":1}')
    assert (answer.status, answer.headers["content-type"], answer.body) == (404, TEXT, b"Unknown function.")


async def test_the_quota_of_prewarming_is_that_of_the_function_of_the_namespace(
    cloud: pki.CertificateAuthority,
) -> None:
    checked: list[str] = []
    fakes = Fakes(ManualClock(), SETTINGS)
    fakes.functions.add("isprime", "shop:isprime", "lab:secret")
    bundle = msgspec.structs.replace(
        fakes.bundle, check_prewarm=lambda function, instances: checked.append(function.name)
    )
    with structlog.testing.capture_logs():
        async with serving(cloud, functions=SETTINGS, serverledge=bundle) as site:
            ledge = Serverledge(site, await site.session(), fakes, ManualClock())
            await ledge.post("/prewarm?namespace=shop", b'{"Function":"isprime","Instances":1}')
            # The key of a function of another namespace is no name, and nothing of it is looked at.
            elsewhere = await ledge.post(
                "/prewarm?namespace=shop", b'{"Function":"lab:secret","Instances":1}'
            )
    assert checked == ["shop:isprime"]
    assert (elsewhere.status, elsewhere.body) == (404, b"Unknown function.")


@pytest.mark.parametrize("instances", ["-1", "1.5", '"1"'])
async def test_a_number_of_instances_that_is_none_is_400(ledge: Serverledge, instances: str) -> None:
    answer = await ledge.post("/prewarm", b'{"Function":"isprime","Instances":%s}' % instances.encode())
    assert answer.status == 400
    assert "`Instances`" in answer.json["message"]


async def test_prewarming_that_failed_says_why(ledge: Serverledge) -> None:
    ledge.fakes.invoker.failing = errors.Unavailable("the image is nowhere")
    answer = await ledge.post("/prewarm", b'{"Function":"isprime","Instances":1}')
    assert (answer.status, answer.json["message"]) == (503, "the image is nowhere")


@pytest.mark.parametrize("path", ["/function", "/functions", "/function/", "/functions/"])
async def test_functions_are_listed_under_both_names(ledge: Serverledge, path: str) -> None:
    ledge.fakes.functions.add("b", "a")
    answer = await ledge.get(path)
    assert (answer.status, answer.headers["content-type"]) == (200, JSON)
    assert answer.body == b'["a","b","isprime"]\n'
    await ledge.post("/delete", b'{"Name":"isprime"}')
    assert (await ledge.get(path)).body == b'["a","b"]\n'


async def test_no_functions_are_an_empty_list(ledge: Serverledge) -> None:
    ledge.fakes.functions.known.clear()
    assert (await ledge.get("/function")).body == b"[]\n"
    assert (await ledge.get("/function?pretty")).body == b"[]\n"


async def test_a_function_is_described_with_what_really_runs_it(ledge: Serverledge) -> None:
    await ledge.post("/create", body(CPUDemand=0.25, Environment={"A": "1"}))
    answer = await ledge.get("/function/hello")
    assert answer.json == {
        "Name": "hello",
        "Runtime": "python38",
        "Runs": "Python 3.11.2",
        "MemoryMB": 128,
        "CPUDemand": 0.25,
        "MaxConcurrency": 1,
        "Handler": "hello.handler",
        "CustomImage": "",
        "Code": "sha256:" + "0" * 64,
        "Environment": ["A=1"],
        "Network": "bridge",
        "TimeoutS": 300.0,
        "Version": 1,
        "CreatedAt": 1_700_000_000.0,
        "UpdatedAt": 1_700_000_000.0,
        "Idempotent": False,
        "Policy": "",
        "Signature": {"Inputs": [], "Outputs": []},
        "Copies": 1,
        "CopiesWanted": 2,
        "Namespace": "default",
        "Secrets": [],
        "Configs": [],
    }


@pytest.mark.parametrize(
    "signature",
    [{"Inputs": [{"Name": "n", "Type": "Int"}], "Outputs": [{"Name": "result", "Type": "Bool"}]}, None],
)
async def test_a_signature_is_given_back_as_it_was_declared(ledge: Serverledge, signature: object) -> None:
    assert (await ledge.post("/create", body(Signature=signature))).status == 200
    assert (await ledge.get("/function/hello")).json["Signature"] == signature


@pytest.mark.parametrize("signature", [[], "Inputs", 7])
async def test_a_signature_that_is_no_object_is_400(ledge: Serverledge, signature: object) -> None:
    answer = await ledge.post("/create", body(Signature=signature))
    assert (answer.status, answer.json["code"]) == (400, "invalid")
    assert "Signature must be an object" in answer.json["message"]


async def test_names_that_differ_only_in_case_are_two_functions(ledge: Serverledge) -> None:
    assert (await ledge.post("/create", body(Name="IsPrime"))).status == 200
    assert (await ledge.get("/function")).json == ["IsPrime", "isprime"]
    assert (await ledge.get("/function/ISPRIME")).status == 404


async def test_a_function_that_nothing_here_can_run_is_described_all_the_same(ledge: Serverledge) -> None:
    await ledge.post("/create", body(Runtime="custom", CustomImage="example.org/f:1"))
    answer = await ledge.get("/function/hello")
    assert (answer.status, answer.json["CustomImage"]) == (200, "example.org/f:1")
    assert answer.json["Runs"] == "nothing here: this machine runs no containers"


@pytest.mark.parametrize("path", ["/function/nobody", "/function/nobody/logs"])
async def test_an_unknown_function_cannot_be_looked_at(ledge: Serverledge, path: str) -> None:
    answer = await ledge.get(path)
    assert (answer.status, answer.headers["content-type"], answer.body) == (404, TEXT, b"Unknown function.")


@pytest.mark.parametrize(
    ("query", "expected"), [("", b"one\ntwo\nthree\n"), ("?tail=1", b"three\n"), ("?tail=0", b"")]
)
async def test_what_a_function_printed_is_given_as_it_is(
    ledge: Serverledge, query: str, expected: bytes
) -> None:
    answer = await ledge.get(f"/function/isprime/logs{query}")
    assert (answer.status, answer.headers["content-type"], answer.body) == (200, TEXT, expected)
    assert ledge.fakes.logs.is_closed


async def test_output_that_is_missing_is_told_on_a_line_of_its_own(ledge: Serverledge) -> None:
    ledge.fakes.logs.lines = [
        FunctionLogLine(1, "w1", OutputChannel.STDOUT, "half a li", is_partial=True),
        FunctionLogLine(2, "w1", OutputChannel.STDERR, "an\ufffd error", lost=3),
    ]
    answer = await ledge.get("/function/isprime/logs")
    expected = "half a li\n[skerry: output is missing here: stderr 3]\nan\ufffd error\n"
    assert answer.body.decode() == expected


async def test_output_is_followed_until_the_reader_goes_away(ledge: Serverledge) -> None:
    wire = await ledge.site.wire()
    await wire.send(get("/function/isprime/logs?follow=true&tail=1"))
    await wire.reader.readuntil(b"three\n")
    assert not ledge.fakes.logs.is_closed
    assert ledge.fakes.bundle.streams.taken == 1
    wire.vanish()
    await eventually(lambda: ledge.fakes.logs.is_closed and ledge.fakes.bundle.streams.taken == 0)


@pytest.mark.parametrize("query", ["tail=-1", "tail=x", "follow=perhaps", "since=1"])
async def test_output_that_cannot_be_asked_for_is_400(ledge: Serverledge, query: str) -> None:
    answer = await ledge.get(f"/function/isprime/logs?{query}")
    assert (answer.status, answer.headers["content-type"]) == (400, JSON)
    assert "query" in answer.json["message"]


async def test_the_status_has_the_fields_of_the_document_and_of_the_program(ledge: Serverledge) -> None:
    answer = await ledge.get("/status")
    assert (answer.status, answer.headers["content-type"]) == (200, JSON)
    assert answer.body == (
        b'{"Url":"http://127.0.0.1:1323","AvailableWarmContainers":{"isprime":1},"AvailableMemMB":3072,'
        b'"AvailableCPUs":6.5,"TotalMemory":4096,"AvailableMemory":3072,"FreeMemory":2944,"TotalCPU":8.0,'
        b'"UsedCPU":1.5,"Coordinates":{"Vec":[0.0,0.0,0.0],"Error":1.5,"Height":0.00001},'
        b'"LoadAvg":[1.34,1.43,0.94],"LastUpdateTime":1700000000,"Workers":3,"QueueLength":0,'
        b'"UnderReplicated":["once"],"MissingCode":["nowhere"]}\n'
    )


async def test_neighbours_are_shown_as_this_node_sees_them(ledge: Serverledge) -> None:
    answer = await ledge.get("/neighbours")
    assert answer.status == 200
    assert answer.body == (
        b'[{"Node":"edge-2","Area":"harbour","Address":"192.0.2.2:7400","Up":true,"RTT":0.004,"Heard":null,'
        b'"AvailableMemMB":128,"AvailableCPUs":1.5,"QueueLength":3,"Done":7,"Refused":1,"Lost":0}]\n'
    )


async def test_calls_of_all_members_are_shown_as_sums(ledge: Serverledge) -> None:
    answer = await ledge.get("/function-calls")
    assert answer.status == 200
    assert answer.body == (
        b'{"Time":1000.5,"Members":2,"Missing":["edge-2: it does not answer"],"Functions":[{"Name":"pay",'
        b'"Namespace":"shop","Calls":7,"Failed":2,"ColdStarts":1,"RunSeconds":0.25}]}\n'
    )


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/create"),
        ("POST", "/update"),
        ("POST", "/delete"),
        ("POST", "/invoke/isprime"),
        ("POST", "/prewarm"),
        ("GET", "/poll/x"),
        ("GET", "/status"),
        ("GET", "/neighbours"),
        ("GET", "/function-calls"),
        ("GET", "/function"),
        ("GET", "/functions"),
        ("GET", "/function/isprime"),
        ("GET", "/function/isprime/logs"),
    ],
)
async def test_a_server_without_functions_says_so(
    cloud: pki.CertificateAuthority, method: str, path: str
) -> None:
    async with serving(cloud) as site:
        session = await site.session()
        async with session.request(method, path) as reply:
            assert reply.status == 503
            assert "this node runs no functions" in (await reply.json())["message"]


@pytest.mark.parametrize("path", ["/create", "/update", "/delete", "/prewarm", "/invoke/isprime"])
async def test_a_wrong_verb_is_405(ledge: Serverledge, path: str) -> None:
    answer = await ledge.get(path)
    assert (answer.status, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/create", 405),
        ("PUT", "/invoke/isprime", 405),
        ("DELETE", "/poll/x-1", 405),
        ("POST", "/status", 405),
        ("PATCH", "/function/isprime", 405),
        ("GET", "/poll/", 404),
        ("POST", "/invoke/", 404),
        ("GET", "/function/isprime/nothing", 404),
        ("POST", "/create/more", 404),
        ("POST", "/workflow/create", 404),
        ("POST", "/workflow/invoke/w", 404),
        ("GET", "/workflow/list", 404),
        ("PUT", "/workflow", 404),
    ],
)
async def test_an_unknown_path_or_verb_is_told_in_the_shape_of_the_contract(
    ledge: Serverledge, method: str, path: str, status: int
) -> None:
    answer = await ledge.ask(method, path)
    assert (answer.status, answer.headers["content-type"]) == (status, JSON)
    message, code = {404: ("Not Found", "not-found"), 405: ("Method Not Allowed", "wrong-verb")}[status]
    assert answer.body.startswith(
        b'{"message":"%b","code":"%b","Detail":"' % (message.encode(), code.encode())
    )
    assert answer.json["Detail"]


async def test_who_may_not_is_told_in_the_shape_of_the_contract(cloud: pki.CertificateAuthority) -> None:
    async with serving(cloud, serverledge=Fakes(SystemClock()).bundle) as site:
        session = await site.session(headers={"Authorization": "Bearer nonsense"})
        async with session.post("/invoke/isprime") as reply:
            said = await reply.json()
            assert (reply.status, said["code"]) == (401, "unauthenticated")
            assert said["message"]
            assert "WWW-Authenticate" in reply.headers
