"""The program in a Python worker: what a handler gets, and what becomes of what it gives back."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from textwrap import dedent

import pytest

from skerry.model.calls import CallFailure, CodeLoadError
from tests.support.programs import SOURCES, Programs

CONTEXT = {"name": "hello", "version": 3}


async def returned(python: Programs, code: str, params: object = None) -> str:
    """The JSON text that the handler in `code` gives back."""
    async with python.load(code) as worker:
        answer = await worker.call(params)
    assert answer.failure is None, answer.error
    return answer.result.decode()


async def test_a_handler_gets_parameters_and_context_and_its_result_is_json(python: Programs) -> None:
    code = "def handler(params, context):\n    return {'got': params, 'in': context}"
    async with python.load(code) as worker:
        assert worker.runtime == f"Python {sys.version.split()[0]}"
        answer = await worker.call({"n": [1, "ä", None]})
    assert answer.failure is None
    assert json.loads(answer.result) == {"got": {"n": [1, "ä", None]}, "in": CONTEXT}
    assert 0 <= answer.duration_s < 60


async def test_results_are_spelled_as_the_contract_shows_them(python: Programs) -> None:
    assert await returned(python, "def handler(p, c):\n    return {'IsPrime': False}") == '{"IsPrime": false}'


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        ("def handler(params):\n    return [params]", [7]),
        ("def handler(params, context=None):\n    return [params, context]", [7, CONTEXT]),
        ("def handler(params, *, context):\n    return [params, context]", [7, CONTEXT]),
        ("def handler(params, /, **more):\n    return [params, more]", [7, {"context": CONTEXT}]),
        ("def handler(*all):\n    return all", [7, CONTEXT]),
        ("class C:\n    def __call__(self, p, c):\n        return [p, c]\nhandler = C()", [7, CONTEXT]),
        ("class C:\n    def run(self, p):\n        return [p]\nhandler = C().run", [7]),
        ("import functools\nhandler = functools.partial(lambda a, b: [a, b], 1)", [1, 7]),
        ("handler = dict.fromkeys", None),  # says what it made of its arguments
        ("async def handler(params):\n    return [params]", [7]),
    ],
)
async def test_a_handler_is_called_with_what_it_takes(
    python: Programs, definition: str, expected: object
) -> None:
    async with python.load(definition) as worker:
        answer = await worker.call(7)
    if expected is None:
        assert answer.failure is CallFailure.HANDLER
    else:
        assert json.loads(answer.result) == expected


async def test_a_handler_that_takes_nothing_is_refused_with_its_signature(python: Programs) -> None:
    with pytest.raises(CodeLoadError, match=r"hello\.handler\(\) must be callable with \(params, context\)"):
        async with python.load("def handler():\n    return 1"):
            pass


async def test_packages_and_dependencies_beside_the_code_are_found(python: Programs) -> None:
    code = {
        "mydir/hello.py": "import helper\nfrom mydir import near\ndef handler(p): return helper.X + near.Y",
        "mydir/near.py": "Y = 1",
        "helper/__init__.py": "X = 41",
    }
    async with python.load(code, handler="mydir.hello.handler") as worker:
        assert await worker.result() == 42


async def test_the_codes_own_modules_win_over_those_that_were_imported_before(python: Programs) -> None:
    code = {"random.py": "import json\ndef handler(p): return json.HERE", "json/__init__.py": "HERE = 5"}
    async with python.load(code, handler="random.handler") as worker:
        assert await worker.result() == 5


async def test_the_environment_is_what_is_given_and_the_folder_is_the_codes(python: Programs) -> None:
    code = {
        "hello.py": "import os\ndef handler(p): return [dict(os.environ), open('data.txt').read()]",
        "data.txt": "beside it",
    }
    async with python.load(code, environment={"COLOUR": "grün"}) as worker:
        environment, text = await worker.result()
    assert environment.pop("PATH")
    assert (environment, text) == ({"COLOUR": "grün"}, "beside it")


async def test_nothing_of_this_program_is_on_the_path_of_a_function(python: Programs) -> None:
    code = "import sys\ndef handler(p): return [sys.path, sys.argv]"
    async with python.load(code) as worker:
        path, arguments = await worker.result()
    assert str(SOURCES) not in path
    assert path[0].endswith("/code")
    assert arguments == ["hello.handler"]


async def test_two_forks_of_one_zygote_draw_different_numbers(python: Programs) -> None:
    code = "import random\ndef handler(p): return random.random()"
    drawn = set()
    for _ in range(2):
        async with python.load(code) as worker:
            drawn.add(await worker.result())
    assert len(drawn) == 2


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return (n for n in range(3))", [0, 1, 2]),
        ("yield params\n    yield 2", [7, 2]),
        ("return map(str, [1, 2])", ["1", "2"]),
        ("return b'hall\\xc3\\xb6'", "hallö"),
        ("return b'\\xff\\x00'", {"base64": "/wA="}),
        ("return {'deep': [bytearray(b'x'), memoryview(b'y')]}", {"deep": ["x", "y"]}),
        ("yield b'a'", ["a"]),
        ("return None", None),
        ("pass", None),
        ("return (1, 2)", [1, 2]),
        ("return {1: True, None: 0.5}", {"1": True, "null": 0.5}),
        ("return '\\ud800'", "\ud800"),
        ("import collections\n    return collections.OrderedDict(a=1)", {"a": 1}),
        ("async def later():\n        return [params]\n    return later()", [7]),
    ],
)
async def test_what_a_handler_may_give_back(python: Programs, body: str, expected: object) -> None:
    assert json.loads(await returned(python, f"def handler(params):\n    {body}", 7)) == expected


async def test_an_async_handler_is_awaited_in_a_loop_that_stays(python: Programs) -> None:
    code = """
        import asyncio
        loops = []
        async def handler(params):
            loops.append(asyncio.get_running_loop())
            await asyncio.sleep(0)
            return loops[0] is loops[-1]
    """
    async with python.load(dedent(code)) as worker:
        assert [await worker.result(), await worker.result()] == [True, True]


async def test_an_async_generator_is_a_list(python: Programs) -> None:
    assert await returned(python, "async def handler(params):\n    yield 1\n    yield 2") == "[1, 2]"


@pytest.mark.parametrize(
    "number", ["9007199254740993", "1.0", "-0.0", "100000.0", "1e+22", "1" * 400, "7" * 6000]
)
async def test_a_number_comes_back_as_it_was(python: Programs, number: str) -> None:
    async with python.load("def handler(params): return params") as worker:
        answer = await worker.conversation.call(number.encode(), wants_output=False, within_s=60)
    assert answer.result.decode() == number


@pytest.mark.parametrize("size", [0, 70_000, 5_000_000])
async def test_parameters_and_results_of_any_size_pass(python: Programs, size: int) -> None:
    async with python.load("def handler(params): return params + '!'") as worker:
        assert await worker.result("x" * size) == "x" * size + "!"
        assert await worker.result("y") == "y!"


async def test_a_result_above_the_limit_is_an_error_that_says_so(python: Programs) -> None:
    async with python.load("def handler(n): return 'x' * n", max_result_bytes=1000) as worker:
        answer = await worker.call(999)
        assert answer.failure is CallFailure.RESULT
        assert answer.error.startswith("the handler returned 1001 bytes of JSON, and 1000 are allowed")
        assert await worker.result(998) == "x" * 998


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("{1, 2}", "TypeError: a set is no JSON"),
        ("object()", "TypeError: an object is no JSON"),
        ("[float('nan')]", "Out of range float values"),
        ("{'a': float('inf')}", "Out of range float values"),
        ("print", "is no JSON"),
        ("type('Thing', (), {})()", "TypeError: a Thing is no JSON"),
        ("{(1, 2): 3}", "keys must be str"),
        ("(lambda a: a.append(a) or a)([])", "Circular reference"),
        ("__import__('functools').reduce(lambda a, _: [a], range(100000), [])", "nested too deeply"),
        ("1j", "TypeError: a complex is no JSON"),
    ],
)
async def test_what_json_cannot_hold_is_an_error_that_says_why(
    python: Programs, value: str, reason: str
) -> None:
    async with python.load(
        f"def handler(params):\n    print('hi')\n    return {value} if params else 1"
    ) as worker:
        answer = await worker.call(True)
        assert answer.failure is CallFailure.RESULT
        assert answer.error.startswith("the handler returned what JSON cannot hold: ")
        assert reason in answer.error
        assert answer.output == "hi\n"
        assert await worker.result(False) == 1


async def test_a_handler_that_is_a_class_gives_back_what_json_cannot_hold(python: Programs) -> None:
    async with python.load("class handler:\n    def __init__(self, params): pass") as worker:
        answer = await worker.call()
    assert answer.failure is CallFailure.RESULT
    assert "a handler is no JSON" in answer.error


async def test_an_error_is_told_with_its_traceback_and_what_was_printed(python: Programs) -> None:
    code = "def deeper(n):\n    return 1 / n\ndef handler(params):\n    print('before')\n    return deeper(0)"
    async with python.load(code) as worker:
        answer = await worker.call()
    assert answer.failure is CallFailure.HANDLER
    assert answer.output == "before\n"
    first, empty, *trace = answer.error.splitlines()
    assert (first, empty) == ("ZeroDivisionError: division by zero", "")
    assert trace[0] == "Traceback (most recent call last):"
    assert 'code/hello.py", line 5, in handler' in trace[1]
    assert "return 1 / n" in answer.error
    assert "skerry" not in answer.error


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("import sys; sys.exit(3)", "it called sys.exit(3)"),
        ("exit('bye')", "it called sys.exit('bye')"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("handler(params)", "RecursionError"),
        ("raise MemoryError", "MemoryError"),
        ("[0] * 2**60", "MemoryError"),
        ("raise GeneratorExit", "GeneratorExit"),
        (
            "class E(Exception):\n        def __str__(self): raise ValueError\n    raise E",
            "E: <exception str()",
        ),
        ("raise ValueError('x' * 1000000)", "ValueError: xxx"),
        ("yield 1\n    raise OSError('late')", "OSError: late"),
        ("async def later(): raise OSError('late')\n    return later()", "OSError: late"),
        ("async def later(): raise SystemExit(4)\n    return later()", "it called sys.exit(4)"),
        ("return __import__('nowhere')", "ModuleNotFoundError"),
        ("raise BaseExceptionGroup('all', [KeyError(1)])", "all (1 sub-exception)"),
    ],
)
async def test_after_whatever_a_handler_raises_the_worker_goes_on(
    python: Programs, body: str, reason: str
) -> None:
    code = f"def bad(params):\n    {body}\ndef handler(params):\n    return bad(params) if params else 'fine'"
    async with python.load(code) as worker:
        answer = await worker.call(1)
        assert answer.failure is CallFailure.HANDLER
        assert reason in answer.error
        assert len(answer.error.encode()) <= 64 * 1024
        assert await worker.result(0) == "fine"


@pytest.mark.parametrize(
    ("params", "reason"),
    [(b"{", "JSONDecodeError"), (b"\xff", "UnicodeDecodeError"), (b"[" * 9999, "Recursion")],
)
async def test_parameters_that_are_no_json_are_an_error(python: Programs, params: bytes, reason: str) -> None:
    async with python.load("def handler(params): return 1") as worker:
        answer = await worker.conversation.call(params, wants_output=False, within_s=60)
        assert answer.failure is CallFailure.HANDLER
        assert reason in answer.error
        assert await worker.result() == 1


@pytest.mark.parametrize(
    ("code", "handler", "reason"),
    [
        ("x = 1", "hello.handler", "module 'hello' has no 'handler'"),
        ("def other(p): pass", "hello.handler", "it has other"),
        ("handler = 5", "hello.handler", "'hello.handler' is no function but an int"),
        ("", "nowhere.handler", "there is no module 'nowhere' in the code"),
        ("", "hello.deep.handler", "there is no module 'hello.deep'"),
        ("", "handler", "must read `module.function`"),
        ("", ".handler", "must read `module.function`"),
        ("", "..hello.handler", "there is no module"),
        ("import nowhere", "hello.handler", "No module named 'nowhere'"),
        ("def handler(:", "hello.handler", "SyntaxError"),
        ("\0", "hello.handler", "null bytes"),
        ("print('loading')\n1 / 0", "hello.handler", "ZeroDivisionError"),
        ("import sys; sys.exit(1)", "hello.handler", "it called sys.exit(1)"),
        ("import os; os._exit(1)", "hello.handler", "its worker ended"),
        ("import os; os.closerange(3, 100)\ndef handler(p): pass", "hello.handler", "its worker ended"),
    ],
)
async def test_code_that_cannot_be_loaded_says_why(
    python: Programs, code: str, handler: str, reason: str
) -> None:
    with pytest.raises(CodeLoadError) as failure:
        async with python.load(code, handler=handler):
            pass
    assert reason in failure.value.message
    assert "skerry" not in failure.value.message
    assert failure.value.output == ("loading\n" if "loading" in code else "")


async def test_code_that_takes_too_long_to_load_is_given_up(python: Programs) -> None:
    with pytest.raises(CodeLoadError, match=r"'hello.handler' was not loaded within 0\.05 s"):
        async with python.load("import time; time.sleep(60)", within_s=0.05):
            pass


async def test_a_worker_ends_when_the_agent_is_gone(python: Programs) -> None:
    async with python.load("def handler(params): return 1") as worker:
        worker.conversation.close()
        assert await worker.process_has_ended()
        assert not worker.has_ended.is_set()  # it was not by itself


async def test_threads_that_are_left_do_not_keep_a_worker(python: Programs) -> None:
    code = (
        "import threading, time\ndef handler(p):\n    threading.Thread(target=time.sleep, args=(60,)).start()"
    )
    async with python.load(code) as worker:
        assert await worker.result() is None
        worker.conversation.close()
        assert await worker.process_has_ended()


AT_ONCE = """
import asyncio, contextvars, sys, threading
gate = threading.Barrier(4)
async_gate = None
mine = contextvars.ContextVar("mine", default=0)

def handler(n):
    mine.set(n)
    print("in", n)
    gate.wait(30)
    print("out", n, file=sys.stderr)
    return [n, mine.get()]

async def awaited(n):
    global async_gate
    async_gate = async_gate or asyncio.Barrier(4)
    print("in", n)
    await async_gate.wait()
    print("out", n)
    if n == 3:
        sys.exit(3)
    return [n, n]
"""


@pytest.mark.parametrize("name", ["handler", "awaited"])
async def test_calls_at_once_run_together_and_never_mix(python: Programs, name: str) -> None:
    async with python.load(AT_ONCE, handler=f"hello.{name}", at_once=4) as worker:
        for first in (0, 4):  # again, with the same threads
            numbers = range(first, first + 4)
            answers = await asyncio.gather(*(worker.call(n, output=True) for n in numbers))
            for n, answer in zip(numbers, answers, strict=True):
                assert answer.output == f"in {n}\nout {n}\n"
                if (name, n) == ("awaited", 3):
                    assert answer.failure is CallFailure.HANDLER
                else:
                    assert json.loads(answer.result) == [n, n]


async def test_a_task_that_exits_behind_the_back_of_calls_takes_nothing_down(python: Programs) -> None:
    code = """
        import asyncio, sys
        async def leave():
            sys.exit(9)
        async def handler(n):
            asyncio.get_running_loop().create_task(leave())
            await asyncio.sleep(0.01)
            return n
    """
    async with python.load(dedent(code), at_once=2) as worker:
        assert [await worker.result(n) for n in range(3)] == [0, 1, 2]


def test_it_runs_in_a_bare_interpreter_and_importing_it_does_nothing() -> None:
    script = (
        "import sys; before = sys.stdout; sys.path.append(sys.argv[1]); "
        "import skerry.node.workers.python_worker; "
        "assert sys.stdout is before; print(*sys.modules)"
    )
    command = [sys.executable, "-I", "-S", "-c", script, str(SOURCES)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    names = {name.partition(".")[0] for name in done.stdout.split()}
    assert names - set(sys.stdlib_module_names) == {"__main__", "skerry"}
    assert "asyncio" not in names  # what only some functions need is not paid for by all
