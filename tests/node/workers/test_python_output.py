"""What a Python function prints: with the call that printed it, always in the logs, and in no other call."""

from __future__ import annotations

from textwrap import dedent

import pytest

from skerry.model.calls import CallFailure
from tests.support.programs import Programs
from tests.support.waiting import eventually


async def printed(python: Programs, body: str) -> str:
    async with python.load(f"import os, sys, threading\ndef handler(params):\n    {body}") as worker:
        answer = await worker.call(output=True)
    assert answer.failure is None, answer.error
    return answer.output


async def test_output_is_given_back_if_it_is_asked_for_and_logged_in_any_case(python: Programs) -> None:
    code = "import sys\ndef handler(n):\n    print('out', n)\n    print('err', n, file=sys.stderr)"
    async with python.load(code) as worker:
        assert (await worker.call(1, output=True)).output == "out 1\nerr 1\n"
        assert (await worker.call(2)).output == ""
        assert worker.logged() == "out 1\nerr 1\nout 2\nerr 2\n"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("print('no end', end='')", "no end"),
        ("sys.stdout.buffer.write(b'by\\xc3\\xa4t\\n')", "byät\n"),
        ("sys.stdout.buffer.write(b'\\xff')", "\N{REPLACEMENT CHARACTER}"),
        ("print('\\ud800')", "\\ud800\n"),
        ("import logging; logging.warning('careful')", "WARNING:root:careful\n"),
        ("import warnings; warnings.warn('odd')", None),
        ("sys.stdout.writelines(['a', 'b'])", "ab"),
        ("sys.stdout.buffer.writelines([b'a', b'b'])", "ab"),
        ("sys.__stdout__.write('under')", "under"),
        ("sys.stdout.reconfigure(line_buffering=True); print(sys.stdout.isatty())", "False\n"),
        ("print(sys.stdout.fileno(), sys.stderr.name, sys.stdout.writable())", "1 <stderr> True\n"),
        ("[print(n, end='') for n in range(200)] and None", "".join(str(n) for n in range(200))),
        ("t = threading.Thread(target=print, args=('in it',)); t.start(); t.join()", "in it\n"),
        ("import asyncio; asyncio.run(asyncio.to_thread(print, 'there'))", "there\n"),
        ("os.write(1, b'only in the logs')\n    return None", ""),
    ],
)
async def test_whatever_way_it_is_printed(python: Programs, body: str, expected: str | None) -> None:
    output = await printed(python, body)
    if expected is None:
        assert "UserWarning: odd" in output
    else:
        assert output == expected


async def test_printing_what_is_no_text_fails_as_ever(python: Programs) -> None:
    async with python.load("import sys\ndef handler(params): sys.stdout.write(b'x')") as worker:
        answer = await worker.call()
    assert "TypeError: write() argument must be str, not bytes" in answer.error


async def test_output_without_an_end_of_line_is_logged_when_the_call_ends(python: Programs) -> None:
    async with python.load("def handler(params): print('half', end='')") as worker:
        await worker.call()
        assert worker.logged() == "half"


async def test_a_flood_is_kept_up_to_the_bound_and_says_so(python: Programs) -> None:
    code = "def handler(params):\n    for _ in range(200): print('ä' * 1_000_000)\n    return 'done'"
    async with python.load(code, max_output_bytes=1001, logs=False) as worker:
        answer = await worker.call(output=True)
        assert answer.result == b'"done"'
        flood = "ä" * 500  # an odd bound does not cut a letter in two
        note = "... output cut after 1001 bytes; the rest is in the logs of the function"
        assert answer.output == f"{flood}\n{note}\n"


async def test_a_thread_that_is_left_running_prints_into_no_other_call(python: Programs) -> None:
    code = """
        import threading
        go, gone = threading.Event(), threading.Event()
        def linger():
            go.wait(60)
            print("from the first call")
            gone.set()
        def handler(n):
            if n == 1:
                threading.Thread(target=linger, daemon=True).start()
            else:
                go.set()
                gone.wait(60)
            print("call", n)
    """
    async with python.load(dedent(code)) as worker:
        assert (await worker.call(1, output=True)).output == "call 1\n"
        assert (await worker.call(2, output=True)).output == "call 2\n"
        assert "from the first call\n" in worker.logged()


async def test_a_task_that_is_left_running_prints_into_no_other_call(python: Programs) -> None:
    code = """
        import asyncio
        async def linger():
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            print("from the first call")
        async def handler(n):
            if n == 1:
                asyncio.get_running_loop().create_task(linger())
            else:
                for _ in range(10): await asyncio.sleep(0)
            print("call", n)
    """
    async with python.load(dedent(code)) as worker:
        assert (await worker.call(1, output=True)).output == "call 1\n"
        assert (await worker.call(2, output=True)).output == "call 2\n"
        assert "from the first call\n" in worker.logged()


async def test_context_parameters_and_context_variables_of_a_call_are_its_own(python: Programs) -> None:
    code = """
        import contextvars
        seen = contextvars.ContextVar("seen", default=0)
        def handler(params, context):
            was = [seen.get(), "mark" in context, len(params)]
            seen.set(1)
            context["mark"] = 1
            params.append(1)
            return was
    """
    async with python.load(dedent(code)) as worker:
        assert [await worker.result([]), await worker.result([])] == [[0, False, 0], [0, False, 0]]


@pytest.mark.parametrize(
    "body",
    [
        "sys.stdout.close(); sys.stderr.close()",
        "os.close(1); os.close(2)",
        "os.dup2(os.open(os.devnull, os.O_WRONLY), 1)",
        "os.chdir('/'); os.environ.clear(); sys.path.clear()",
        "sys.modules.clear()",
        "sys.stdout = sys.stderr",
        "import gc; gc.disable()",
        "import signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL)",
        "sys.setrecursionlimit(200)",
        "os.set_blocking(1, False)",
        "import threading; threading.Thread(target=lambda: 1 / 0).start()",
    ],
)
async def test_whatever_a_call_does_to_its_process_the_next_one_prints_and_answers(
    python: Programs, body: str
) -> None:
    code = (
        f"import os, sys\ndef handler(n):\n    print('call', n)\n    if n == 1:\n        {body}\n    return n"
    )
    async with python.load(code) as worker:
        assert (await worker.call(1)).result == b"1"
        answer = await worker.call(2, output=True)
        assert (answer.result, answer.output) == (b"2", "call 2\n")


async def test_output_while_the_code_is_loaded_is_in_the_logs_and_in_no_call(python: Programs) -> None:
    async with python.load("print('loading')\ndef handler(params): print('called')") as worker:
        assert (await worker.call(output=True)).output == "called\n"
        assert worker.logged() == "loading\ncalled\n"


async def test_a_process_that_a_handler_forks_answers_nothing_and_repeats_nothing(python: Programs) -> None:
    code = """
        import os, sys
        def handler(params):
            print("half", end="")
            child = os.fork()
            if child == 0:
                print(" child")
                if params == "return":
                    return "child"
                if params == "raise":
                    raise ValueError
                sys.exit(7)
            _, status = os.waitpid(child, 0)
            return os.waitstatus_to_exitcode(status)
    """
    async with python.load(dedent(code)) as worker:
        assert await worker.result("return") == 0
        assert await worker.result("raise") == 1
        assert await worker.result("exit") == 7
        assert worker.logged().count("half") == 3
        assert "ValueError" in worker.logged()


async def test_other_processes_of_a_handler_work_as_ever(python: Programs) -> None:
    code = """
        import multiprocessing, subprocess
        def double(n): return n * 2
        def handler(params):
            with multiprocessing.get_context("fork").Pool(2) as pool:
                doubled = pool.map(double, [1, 2])
            return [doubled, subprocess.run(["echo", "hi"], capture_output=True, text=True).stdout]
    """
    async with python.load(dedent(code)) as worker:
        assert await worker.result() == [[2, 4], "hi\n"]


async def test_what_a_child_prints_is_logged(python: Programs) -> None:
    async with python.load("import subprocess\ndef handler(p): subprocess.Popen(['echo', 'hi'])") as worker:
        answer = await worker.call(output=True)
        assert (answer.failure, answer.output) == (None, "")
        await eventually(lambda: worker.logged() == "hi\n")


async def test_an_error_is_told_also_if_nothing_can_be_printed(python: Programs) -> None:
    async with python.load(
        "import os\ndef handler(p):\n    os.close(2)\n    print('x')\n    1 / 0"
    ) as worker:
        answer = await worker.call()
        assert (answer.failure, answer.output) == (CallFailure.HANDLER, "x\n")
