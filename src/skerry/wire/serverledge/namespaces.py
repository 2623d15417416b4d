"""Namespaces of functions over HTTP: `?namespace=`, which Serverledge's API does not have.

Without it a request is about the default namespace, or the first one of a caller that is bound to some, which
`skerry.transport.access.namespaces` fills in. Clients of the public program need not know of namespaces.
Unknown parameters of a query are ignored, as there.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from skerry.model import ids
from skerry.model.function_names import function_key
from skerry.model.ids import DEFAULT_NAMESPACE, FunctionName
from skerry.model.namespace_scope import WHOLE_CLOUD, NamespaceScope
from skerry.transport.access.namespaces import EVERY, SEPARATOR


class FunctionQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The namespace of a function."""

    namespace: Annotated[str, Meta(description=f"Its namespace; without it: `{DEFAULT_NAMESPACE}`")] = ""

    def key(self, name: str) -> FunctionName:
        """The key of the function `name`, or of a call with that id."""
        return function_key(ids.check_namespace(self.namespace) if self.namespace else "", name)


class FunctionListQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The namespaces of a list."""

    lists_namespaces: ClassVar[bool] = True

    namespace: Annotated[
        str,
        Meta(
            description=f"Without it: `{DEFAULT_NAMESPACE}`; `{EVERY}`: all that the caller may see, as "
            "`NAMESPACE/NAME` where that is not the default one"
        ),
    ] = ""

    @property
    def is_of_one(self) -> bool:
        return self.namespace != EVERY and SEPARATOR not in self.namespace

    @property
    def scope(self) -> NamespaceScope:
        if self.namespace == EVERY:
            return WHOLE_CLOUD
        named = (self.namespace or DEFAULT_NAMESPACE).split(SEPARATOR)
        return NamespaceScope(tuple(map(ids.check_namespace, named)))
