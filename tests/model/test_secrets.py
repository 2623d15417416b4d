"""Uses of secrets and configs: how they are written, and what is refused."""

from __future__ import annotations

import pytest

from skerry.model import errors
from skerry.model.ids import Namespace
from skerry.model.secrets import MAX_USES, RegistryLoginValue, SecretKind, SecretUse, check_name, check_uses
from skerry.model.workloads import InstanceSpec


def test_a_use_is_written_as_it_is_read() -> None:
    for text in ("db", "db:password", "db:/etc/pw", "db:pw,mode=0440", "db,mode=0400,uid=70,gid=0"):
        assert str(SecretUse.parse(text)) == text
    config = SecretUse.parse("app.conf:/etc/app.conf", SecretKind.CONFIG)
    assert (config.path, config.file_mode) == ("/etc/app.conf", 0o444)
    variable = SecretUse.parse_variable("DB_PASSWORD=db")
    assert (str(variable), variable.path) == ("DB_PASSWORD=db", "")


def test_a_secret_is_a_file_of_its_name_that_only_its_owner_reads() -> None:
    use = SecretUse.parse("db")
    assert (use.path, use.file_mode) == ("/run/secrets/db", 0o400)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a/b",
        "db:a/b",
        "db:..",
        "db:/",
        "db:/a/../b",
        "db:/run/secrets",
        "db:/run/secrets/x",
        "db:/proc/self",
        "db:/dev",
        "db,mode=9",
        "db,mode=7777",
        "db,uid=-1",
        "db,uid=70000",
        "db,size=1",
        "db,uid=1,uid=2",
        "x" * 101,
    ],
)
def test_a_use_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(errors.Invalid):
        SecretUse.parse(text)


def test_a_config_is_a_file_that_all_may_read_and_no_variable() -> None:
    config = SecretUse.parse("app.conf", SecretKind.CONFIG)
    assert (config.path, config.file_mode) == ("/run/configs/app.conf", 0o444)
    with pytest.raises(errors.Invalid):
        SecretUse("app", SecretKind.CONFIG, variable="A")
    for bad in ("A", "=db", "1A=db", "A B=db"):
        with pytest.raises(errors.Invalid):
            SecretUse.parse_variable(bad)


def test_no_two_are_in_one_place() -> None:
    a, b = SecretUse.parse("a:x"), SecretUse.parse("b:x")
    with pytest.raises(errors.Invalid, match="two files"):
        check_uses((a, b))
    with pytest.raises(errors.Invalid, match="set twice"):
        InstanceSpec("web", "example.org/web", environment=("A=1",), secrets=(SecretUse("s", variable="A"),))
    with pytest.raises(errors.Invalid, match="below"):
        check_uses((SecretUse.parse("a:/etc/x"), SecretUse.parse("b:/etc/x/y")))
    with pytest.raises(errors.Invalid, match=str(MAX_USES)):
        check_uses(tuple(SecretUse(f"s{n}") for n in range(MAX_USES + 1)))


def test_a_registry_is_named_as_images_name_it() -> None:
    for name in ("docker.io", "registry.example.org:5000", "localhost:5000", "[::1]:5000"):
        assert check_name(SecretKind.REGISTRY, name) == name
    for name in ("https://docker.io", "docker.io/library", "Docker.io", "", "a b"):
        with pytest.raises(errors.Invalid):
            check_name(SecretKind.REGISTRY, name)


def test_values_are_in_no_text_of_these() -> None:
    assert "hush" not in repr(RegistryLoginValue("robot", "hush"))
    ref = SecretUse.parse("db").ref(Namespace("shop"))
    assert str(ref) == "secret db version 0"
