"""Names of functions: the key of a function in the cloud, from its namespace and the name that callers use.

In the default namespace the key is the name, as it was before functions had namespaces; in others it is
`NAMESPACE:NAME`. No name has a colon, so nobody can spell the key of a function elsewhere. Ids of async calls
begin with the key of their function, and are translated in the same way.
"""

from __future__ import annotations

from typing import Final

from skerry.model import ids
from skerry.model.ids import DEFAULT_NAMESPACE, FunctionName, Namespace

SEPARATOR: Final = ":"


def function_key(namespace: str, name: str) -> FunctionName:
    """The key of `name` in a namespace; empty is the default one.

    Also of text that is no name: it is then the key of no function.
    """
    if namespace and namespace != DEFAULT_NAMESPACE:
        return FunctionName(f"{namespace}{SEPARATOR}{name}")
    return FunctionName(name if SEPARATOR not in name else SEPARATOR + name)


def namespace_of(key: str) -> Namespace:
    """The namespace of a function, or of an async call."""
    namespace, separator, _ = key.partition(SEPARATOR)
    return Namespace(namespace) if separator and namespace else DEFAULT_NAMESPACE


def plain_name(key: str) -> str:
    """The name of a function, or the id of an async call, as callers in its namespace use it."""
    namespace, separator, name = key.partition(SEPARATOR)
    return name if separator else namespace


def display_name(key: str) -> str:
    """The name for people who see all namespaces: `shop/hello`, or `hello` in the default one."""
    return key.replace(SEPARATOR, "/", 1)


def check_function_key(key: str, field: str = "name") -> FunctionName:
    """`key`, if a function may have it; raises `Invalid`."""
    namespace, separator, name = key.partition(SEPARATOR)
    if separator and namespace:
        ids.check_namespace(namespace)
        ids.check_id(name, field)
    else:
        # A name with a colon, as `function_key` writes it: refused as the caller wrote it.
        ids.check_id(name if SEPARATOR in name else key, field)
    return FunctionName(key)
