"""Processes of pytest-xdist that are forked from one which has collected all tests.

Collecting takes half a minute of a processor, and each process of a run would do it for itself. Here one more
process, the **template**, is configured as a worker and collects; then it waits at a socket. For each worker
xdist starts `worker_launcher.py`, which passes its standard input and output to the template, and the fork
of the template that gets them goes on as that worker: with its name, folder and connections. A worker that
crashed is replaced by another fork.

Where there is no template (it could not collect, or coverage is measured), a worker collects as ever.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

_LAUNCHER = Path(__file__).with_name("worker_launcher.py")
# Run by Python, with the order in its standard input. It is pytest that imports this module, as a plugin.
_TEMPLATE = """
import json, sys
order = json.load(sys.stdin)
sys.argv, sys.path = ["-c"], order["path"]
from _pytest.config import _prepareconfig
config = _prepareconfig(order["arguments"], None)
config.pluginmanager.get_plugin("tests.support.forked_workers").be_template(config, order)
"""


class TemplateProcess:
    """The template, as the process that started it sees it."""

    def __init__(self, config: pytest.Config, workers: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="skerry-tests-")
        self._address = f"{self._folder.name}/socket"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Open as long as this process lives.
        self._lifeline, theirs = socket.socketpair()
        with listener, theirs:
            listener.bind(self._address)
            listener.listen(64)
            order = {
                "path": sys.path,
                "arguments": [str(argument) for argument in config.invocation_params.args],
                "worker": _worker_input(config, workers),
                "listener": listener.fileno(),
                "lifeline": theirs.fileno(),
            }
            self._process = subprocess.Popen(
                [sys.executable, "-c", _TEMPLATE],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                cwd=config.invocation_params.dir,
                pass_fds=[listener.fileno(), theirs.fileno()],
                text=True,
            )
        assert self._process.stdin is not None
        with self._process.stdin as stdin, contextlib.suppress(BrokenPipeError):
            json.dump(order, stdin)

    @property
    def python(self) -> str:
        """What execnet is to start in place of Python."""
        return shlex.join([sys.executable, "-S", "-E", str(_LAUNCHER), self._address])

    def close(self) -> None:
        self._lifeline.close()
        self._process.wait()
        self._folder.cleanup()


_TEMPLATE_PROCESS = pytest.StashKey[TemplateProcess]()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    if config.pluginmanager.hasplugin("_cov") or not all(spec.popen and not spec.python for spec in specs):
        return
    template = config.stash[_TEMPLATE_PROCESS] = TemplateProcess(config, len(specs))
    for spec in specs:
        spec.python = template.python


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    if template := config.stash.get(_TEMPLATE_PROCESS, None):
        template.close()


def _worker_input(config: pytest.Config, workers: int) -> dict[str, Any]:
    """What plugins tell a worker, told for the template."""
    told: dict[str, Any] = {
        "workerid": "template",
        "workercount": workers,
        "testrunuid": "template",
        "mainargv": sys.argv,
    }
    config.hook.pytest_configure_node(node=SimpleNamespace(config=config, workerinput=told))
    return told


def be_template(config: pytest.Config, order: dict[str, Any]) -> NoReturn:
    """In the template: collect, and fork whenever a launcher asks."""
    from xdist.remote import setup_config  # type: ignore[import-untyped]

    os.environ["PYTEST_XDIST_WORKER"] = order["worker"]["workerid"]
    os.environ["PYTEST_XDIST_WORKER_COUNT"] = str(order["worker"]["workercount"])
    setup_config(config, None)
    config.workerinput = order["worker"]  # type: ignore[attr-defined]
    config.workeroutput = {}  # type: ignore[attr-defined]
    config.pluginmanager.register(Template(order["listener"], order["lifeline"]))
    config.hook.pytest_cmdline_main(config=config)
    os._exit(0)  # it could not collect: workers will say why


class Template:
    """Collects as a worker does, but runs no test: its forks do."""

    def __init__(self, listener: int, lifeline: int) -> None:
        self._listener = socket.socket(fileno=listener)
        self._lifeline = lifeline
        self._reports: list[pytest.CollectReport] = []
        self._warnings: list[dict[str, Any]] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self._reports.append(report)

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        self._warnings.append(
            {"warning_message": warning_message, "when": when, "nodeid": nodeid, "location": location}
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> NoReturn:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's is for the process that started this
        forks: dict[int, socket.socket] = {}  # by the descriptor of the process, to its launcher
        pids: dict[int, int] = {}
        while True:
            waiting: list[Any] = [self._lifeline, self._listener, *forks, *forks.values()]
            ready, _, _ = select.select(waiting, [], [])
            if self._lifeline in ready:
                os._exit(0)
            for process in forks.keys() & set(ready):
                code = os.waitstatus_to_exitcode(os.waitpid(pids.pop(process), 0)[1])
                with forks.pop(process) as launcher, contextlib.suppress(OSError):
                    launcher.send(str(code if code >= 0 else 128 - code).encode())
                os.close(process)
            for process, launcher in forks.items():
                if launcher in ready and not launcher.recv(1):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
            if self._listener in ready:
                launcher, _ = self._listener.accept()
                _, streams, _, _ = socket.recv_fds(launcher, 16, 2)
                if len(streams) != 2:
                    launcher.close()
                    continue
                pid = _fork()
                if pid == 0:
                    for inherited in (self._listener, launcher, *forks.values()):
                        inherited.close()
                    for descriptor in (self._lifeline, *forks):
                        os.close(descriptor)
                    Fork(session, self._reports, self._warnings, self).run(*streams)
                for stream in streams:
                    os.close(stream)
                launcher.send(b"+")
                process = os.pidfd_open(pid)
                forks[process], pids[process] = launcher, pid


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of plugins that only wait
        return os.fork()


class Fork:
    """A worker that need not collect."""

    def __init__(
        self,
        session: pytest.Session,
        reports: list[pytest.CollectReport],
        recorded: list[dict[str, Any]],
        template: Template,
    ) -> None:
        self._session = session
        self._config = session.config
        self._reports = reports
        self._warnings = recorded
        self._template = template

    def run(self, stdin: int, stdout: int) -> NoReturn:
        """What a Python that execnet starts does: it executes what comes, and that is `xdist.remote`."""
        import _pytest.config

        code = 1
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            # Files of the template's are at the same position in all forks: this one has its own.
            self._capture.stop_global_capturing()
            os.dup2(stdin, 0)
            os.dup2(stdout, 1)
            os.close(stdin)
            os.close(stdout)
            self._config.pluginmanager.unregister(self._template)
            self._config.pluginmanager.register(self)
            _pytest.config._prepareconfig = lambda *_: self._config
            sys.stdin = open(0, closefd=False)  # noqa: SIM115
            exec(eval(sys.stdin.readline()), {"__name__": "__main__"})
            code = 0
        except BaseException:  # noqa: BLE001 - as the interpreter does at its end
            sys.excepthook(*sys.exc_info())
        finally:
            threading._shutdown()  # type: ignore[attr-defined] # waits for threads
            atexit._run_exitfuncs()
            sys.stderr.flush()
            os._exit(code)

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> int:
        """`xdist.remote` has given it a name and listens to what plugins report."""
        session = self._session
        self._capture.start_global_capturing()
        self._capture.suspend_global_capture()
        config._tmp_path_factory._given_basetemp = Path(config.option.basetemp)  # type: ignore[attr-defined]
        told = config.workerinput  # type: ignore[attr-defined]
        if "sock_port" in told:  # pytest-rerunfailures: the template's connection serves one process
            config.failures_db.sock.close()  # type: ignore[attr-defined]
            config.failures_db = type(config.failures_db)(told["sock_port"], told["statusdb_token"])  # type: ignore[attr-defined]
        (interactor,) = (
            plugin
            for plugin in config.pluginmanager.get_plugins()
            if type(plugin).__name__ == "WorkerInteractor"
        )
        interactor.pytest_sessionstart(session)
        interactor.pytest_collection()
        for report in self._reports:
            interactor.pytest_collectreport(report)
        for recorded in self._warnings:
            interactor.pytest_warning_recorded(**recorded)
        interactor.pytest_collection_finish(session)
        try:
            config.hook.pytest_runtestloop(session=session)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED if session.testsfailed else pytest.ExitCode.OK
        except (KeyboardInterrupt, pytest.exit.Exception):
            session.exitstatus = pytest.ExitCode.INTERRUPTED
            config.hook.pytest_keyboard_interrupt(excinfo=pytest.ExceptionInfo.from_current())
        except BaseException:  # noqa: BLE001 - it is reported
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
            config.notify_exception(pytest.ExceptionInfo.from_current(), config.option)
        finally:
            os.chdir(session.startpath)
            config.hook.pytest_sessionfinish(session=session, exitstatus=session.exitstatus)
            config._ensure_unconfigure()
        return int(session.exitstatus)

    @property
    def _capture(self) -> Any:
        return self._config.pluginmanager.getplugin("capturemanager")
