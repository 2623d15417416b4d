"""Functions: code with a handler, as it is registered.

What it needs of a worker, not the workers themselves: those are `skerry.functions`. The code is named by its
digest and kept elsewhere, so that a function is small enough to be watched.
"""

from __future__ import annotations

import msgspec

from skerry.model import errors, ids, secrets
from skerry.model.containers import NetworkMode
from skerry.model.function_names import check_function_key
from skerry.model.ids import Digest, FunctionName
from skerry.model.images import ImageAccess
from skerry.model.resources import MAX_AMOUNT, Megabytes, Millicores
from skerry.model.secrets import SecretUse
from skerry.model.workloads import check_environment

CUSTOM = "custom"  # the runtime of functions that bring an image of their own
PROGRAMS = "go"  # runtimes that begin so run executables, which need no handler
MAX_CONCURRENCY = 2**15 - 1
MAX_TIMEOUT_S = 86_400


class Function(msgspec.Struct, frozen=True):
    """A registered function."""

    name: FunctionName  # with its namespace, see `skerry.model.function_names`
    runtime: str
    memory: Megabytes  # of each worker
    created_at: float
    cpu: Millicores | None = None  # of each worker; None: no cap
    max_concurrency: int = 1  # calls at once in one worker
    handler: str = ""
    code: Digest | None = None
    image: str = ""
    environment: tuple[str, ...] = ()
    network: NetworkMode = NetworkMode.BRIDGE  # NONE: its workers have no network
    timeout_s: float | None = None  # of each call; None: the node's setting
    updated_at: float = 0.0
    version: int = 1  # goes up with every update; workers of older ones serve no new call
    is_idempotent: bool = False  # a call that may have run may be run again
    policy: str = ""  # where its calls run; empty: the node's setting
    image_access: ImageAccess = ImageAccess.REGISTRIES  # what `image` may lead to
    signature: str = ""  # its inputs and outputs as declared by its author: a JSON object, not interpreted
    secrets: tuple[SecretUse, ...] = ()  # and configs, of its namespace
    is_web: bool = False  # its handler takes HTTP requests
    uses_template: bool = True  # its workers may be copies of one that has loaded the code

    def __post_init__(self) -> None:
        check_function_key(self.name)
        ids.check_id(self.runtime, "runtime")
        if not 1 <= self.memory <= MAX_AMOUNT:
            raise errors.Invalid(f"memory must be 1 to {MAX_AMOUNT} MB, not {self.memory}", field="memory")
        if self.cpu is not None and not 1 <= self.cpu <= MAX_AMOUNT:
            raise errors.Invalid(f"cpu must be 1 to {MAX_AMOUNT} milli-cores, not {self.cpu}", field="cpu")
        if not 1 <= self.max_concurrency <= MAX_CONCURRENCY:
            raise errors.Invalid(f"max_concurrency must be 1 to {MAX_CONCURRENCY}", field="max_concurrency")
        ids.check_display_text(self.handler, "handler")
        ids.check_display_text(self.image, "image")
        ids.check_display_text(self.policy, "policy")
        if self.timeout_s is not None and not 0 < self.timeout_s <= MAX_TIMEOUT_S:
            raise errors.Invalid(f"timeout_s must be above 0 and at most {MAX_TIMEOUT_S}", field="timeout_s")
        if self.code is not None:
            ids.check_digest(self.code, "code")
        check_environment(self.environment)
        secrets.check_uses(self.secrets, self.environment)
        self._check_has_something_to_run()

    def _check_has_something_to_run(self) -> None:
        if self.runtime == CUSTOM:
            if not self.image:
                raise errors.Invalid("a function of runtime `custom` needs an image", field="image")
            return
        if self.image:
            raise errors.Invalid("only a function of runtime `custom` brings an image", field="image")
        if not self.handler and not self.runtime.startswith(PROGRAMS):
            raise errors.Invalid("a function needs a handler, such as `module.function`", field="handler")
        if self.code is None:
            raise errors.Invalid("a function needs its code", field="code")
