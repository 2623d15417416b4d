"""The program in a Node.js worker."""

from __future__ import annotations

import asyncio
import subprocess

import pytest

from skerry.model.calls import CallFailure, CodeLoadError, WorkerExited
from skerry.node.workers import worker_frames
from tests.support.programs import NODE, PROGRAM, Programs

# One worker shows many things: a blank process takes a tenth of a second.
MANY = r"""
const { execFileSync } = require('node:child_process');
const { readlinkSync } = require('node:fs');
exports.handler = (params, context) => doing[params.do](params, context);
const doing = {
  echo: (params, context) => ({ got: params.value, in: context }),
  promise: async () => { await null; return 'later'; },
  generator: function* () { yield 1; yield 2; },
  later: async function* () { yield 1; yield 2; },
  text: () => Buffer.from('hallö'),
  bytes: () => Buffer.from([255, 0]),
  nothing: () => undefined,
  null: () => [null],
  surrogate: () => '\ud800',
  print: () => { console.log('out', 1); console.error('err'); process.stdout.write('half'); return 1; },
  flood: () => { for (let i = 0; i < 50; i += 1) console.log('ä'.repeat(100000)); },
  nan: () => ({ a: [NaN, null] }),
  bigint: () => 1n,
  function: () => () => 1,
  circular: () => { const a = {}; a.a = a; return a; },
  large: ({ size }) => 'x'.repeat(size),
  throw: () => { console.log('before'); throw new TypeError('odd'); },
  reject: async () => { await null; throw new Error('late'); },
  text_thrown: () => { throw 'just text'; },
  deep: () => doing.deep(),
  mutate: (params, context) => { const was = context.mark ?? 0; context.mark = 1; return was; },
  environment: () => process.env,
  folder: () => process.cwd(),
  descriptors: () => [readlinkSync('/proc/self/fd/3'), `${execFileSync('ls', ['-l', '/proc/self/fd'])}`],
  change: () => { process.chdir('/'); console.log = () => {}; delete process.env.PATH; return 1; },
};
"""


async def test_what_a_handler_gets_and_gives_back(node: Programs) -> None:
    async with node.load(MANY, handler="hello", environment={"COLOUR": "grün"}) as worker:
        version = subprocess.run([NODE or "", "--version"], capture_output=True, text=True, check=True).stdout
        assert worker.runtime == f"Node.js {version.strip().removeprefix('v')}"
        echoed = await worker.result({"do": "echo", "value": [1.5, "ä"]})
        assert echoed == {"got": [1.5, "ä"], "in": {"name": "hello", "version": 3}}
        for name, expected in {
            "promise": "later",
            "generator": [1, 2],
            "later": [1, 2],
            "text": "hallö",
            "bytes": {"base64": "/wA="},
            "nothing": None,
            "null": [None],
            "surrogate": "\ud800",
        }.items():
            assert await worker.result({"do": name}) == expected, name
        large = await worker.result({"do": "large", "size": 3_000_000})
        assert large == "x" * 3_000_000
        assert (await worker.result({"do": "echo", "value": large}))["got"] == large
        environment = await worker.result({"do": "environment"})
        assert (environment.pop("COLOUR"), list(environment)) == ("grün", ["PATH"])
        assert (await worker.result({"do": "folder"})).endswith("/code")
        assert [await worker.result({"do": "mutate"}) for _ in range(2)] == [0, 0]
        own, childs = await worker.result({"do": "descriptors"})
        assert own.startswith("socket:")
        assert own not in childs  # the platform's socket is not handed on


async def test_what_goes_wrong_is_told_and_the_worker_goes_on(node: Programs) -> None:
    async with node.load(MANY, handler="hello.handler", max_result_bytes=1000) as worker:
        for name, failure, reason in (
            ("nan", CallFailure.RESULT, "cannot hold: RangeError: NaN is no JSON number"),
            ("bigint", CallFailure.RESULT, "BigInt"),
            ("function", CallFailure.RESULT, "a function is no JSON"),
            ("circular", CallFailure.RESULT, "circular"),
            ("large", CallFailure.RESULT, "the handler returned 1001 bytes of JSON, and 1000 are allowed"),
            ("reject", CallFailure.HANDLER, "Error: late"),
            ("text_thrown", CallFailure.HANDLER, "it threw 'just text'"),
            ("deep", CallFailure.HANDLER, "RangeError: Maximum call stack"),
            ("no such thing", CallFailure.HANDLER, "TypeError"),
        ):
            answer = await worker.call({"do": name, "size": 999})
            assert (answer.failure, reason in answer.error) == (failure, True), answer
        answer = await worker.call({"do": "throw"})
        assert (answer.failure, answer.output) == (CallFailure.HANDLER, "before\n")
        assert answer.error.startswith("TypeError: odd\n\nTypeError: odd\n    at ")
        assert "code/hello.js" in answer.error
        assert "worker.js" not in answer.error
        broken = await worker.conversation.call(b"{", wants_output=False, within_s=60)
        assert "SyntaxError" in broken.error
        assert await worker.result({"do": "change"}) == 1
        assert await worker.result({"do": "promise"}) == "later"


async def test_output_is_given_back_if_it_is_asked_for_bounded_and_logged(node: Programs) -> None:
    async with node.load(MANY, handler="hello", max_output_bytes=1001) as worker:
        assert (await worker.call({"do": "print"}, output=True)).output == "out 1\nerr\nhalf"
        assert (await worker.call({"do": "print"})).output == ""
        assert worker.logged() == "out 1\nerr\nhalf" * 2
        answer = await worker.call({"do": "flood"}, output=True)
        assert answer.output.startswith("ä" * 500 + "\n... output cut after 1001 bytes")


async def test_calls_at_once_never_mix_and_what_is_left_behind_prints_into_none(node: Programs) -> None:
    code = """
      const waiting = [];
      let tell = [];
      exports.handler = async (n) => {
        console.log('in', n);
        const all = (go) => { if (waiting.push(go) === 3) waiting.forEach((each) => each()); };
        if (n < 4) await new Promise(all);
        else await new Promise((go) => { tell = [go]; });
        if (n === 3) setInterval(() => { console.log('left behind'); tell.forEach((each) => each()); }, 1);
        console.log('out', n);
      };
    """
    async with node.load(code, at_once=3) as worker:
        answers = await asyncio.gather(*(worker.call(n, output=True) for n in (1, 2, 3)))
        answers.append(await worker.call(4, output=True))
        assert [answer.output for answer in answers] == [f"in {n}\nout {n}\n" for n in (1, 2, 3, 4)]
        assert "left behind" in worker.logged()


ID = "module.exports = (n) => n;"


@pytest.mark.parametrize(
    ("files", "handler"),
    [
        ({"hello.js": ID}, "hello.js"),
        ({"mydir/hello.js": "exports.go = (n) => n;"}, "mydir/hello.go"),
        ({"mydir/hello.js": "exports.go = (n) => n;"}, "mydir.hello.go"),
        ({"hello.mjs": "export default (n) => n;"}, "hello"),
        ({"hello.js": "export const go = async (n) => n;", "package.json": '{"type": "module"}'}, "hello.go"),
        ({"hello.js": "exports.go = require('dep');", "node_modules/dep.js": ID}, "hello.go"),
    ],
)
async def test_a_handler_is_found_wherever_it_may_be(
    node: Programs, files: dict[str, str], handler: str
) -> None:
    async with node.load(files, handler=handler) as worker:
        assert await worker.result(7) == 7


@pytest.mark.parametrize(
    ("code", "handler", "reason"),
    [
        ("exports.other = 1;", "hello.handler", "exports a function 'handler'; it exports other"),
        ("exports.other = 1;", "hello", "exports a function, or one called `handler`"),
        ("", "nowhere.handler", "there is no module in the code for handler 'nowhere.handler'"),
        ("require('nowhere');", "hello", "Cannot find module 'nowhere'"),
        ("function (", "hello", "SyntaxError"),
        ("console.log('loading'); throw new Error('at once');", "hello", "Error: at once"),
        ("process.exit(3);", "hello", "process.exit(3)"),
    ],
)
async def test_code_that_cannot_be_loaded_says_why(
    node: Programs, code: str, handler: str, reason: str
) -> None:
    with pytest.raises(CodeLoadError) as failure:
        async with node.load(code, handler=handler):
            pass
    assert reason in failure.value.message
    assert "worker.js" not in failure.value.message
    assert failure.value.output == ("loading\n" if "loading" in code else "")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("console.log('bye'); process.exit(3);", "it called process.exit(3)"),
        ("console.log('bye'); setTimeout(() => { throw new Error('in a timer'); }, 1);", "Error: in a timer"),
        ("console.log('bye'); Promise.reject(new Error('unheard'));", "Error: unheard"),
    ],
)
async def test_a_process_that_ends_by_its_own_fault_tells_its_call_why(
    node: Programs, body: str, reason: str
) -> None:
    async with node.load(f"exports.handler = () => new Promise(() => {{ {body} }});") as worker:
        answer = await worker.call()
        assert answer.failure is CallFailure.HANDLER
        assert answer.error.startswith(reason)
        assert answer.output.startswith("bye\n")
        assert await worker.process_has_ended()


@pytest.mark.parametrize(
    "body",
    [
        "process.kill(process.pid, 'SIGKILL')",
        "process.abort()",
        "require('fs').writeSync(3, 'is anybody there? I am.'); return new Promise(() => {})",
    ],
)
async def test_a_worker_that_is_ruined_is_seen_at_once(node: Programs, body: str) -> None:
    async with node.load(f"exports.handler = () => {{ {body} }};") as worker:
        with pytest.raises(WorkerExited):
            await worker.call()
        assert worker.has_ended.is_set()


async def test_calls_that_hang_are_given_up_and_then_it_is_over(node: Programs) -> None:
    async with node.load("exports.handler = () => new Promise(() => {});", at_once=3) as worker:
        waits = asyncio.ensure_future(worker.call("wait"))
        assert (await worker.call("hang", within_s=0.01)).failure is CallFailure.TIMEOUT
        assert not worker.conversation.is_alive
        assert not worker.has_ended.is_set()
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        assert worker.has_ended.is_set()
        assert await worker.process_has_ended()  # it saw our end close


def test_its_numbers_are_those_of_the_frames() -> None:
    text = PROGRAM.read_text()
    kinds = [
        worker_frames.LOAD,
        worker_frames.CALL,
        worker_frames.CANCEL,
        worker_frames.LOADED,
        worker_frames.FAILED,
        worker_frames.RESULT,
    ]
    outcomes = [
        worker_frames.OK,
        worker_frames.RAISED,
        worker_frames.UNREPRESENTABLE,
        worker_frames.TOO_LARGE,
    ]
    assert f"const HEADER = {worker_frames.HEADER.size};" in text
    assert f"const OUTCOME = {worker_frames.OUTCOME.size};" in text
    assert f"const [LOAD, CALL, CANCEL, LOADED, FAILED, RESULT] = {kinds};" in text
    web = [worker_frames.WEB_CALL, worker_frames.GRANT, worker_frames.WEB_HEAD, worker_frames.WEB_BODY]
    assert f"const [WEB_CALL, GRANT, WEB_HEAD, WEB_BODY] = {web};" in text
    assert f"const WINDOW = {worker_frames.WINDOW // 1024} * 1024;" in text
    assert f"const WEB_PART = {worker_frames.WEB_PART // 1024} * 1024;" in text
    assert f"const [OK, RAISED, UNREPRESENTABLE, TOO_LARGE] = {outcomes};" in text
