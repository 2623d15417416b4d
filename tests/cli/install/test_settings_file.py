"""The settings file of an installation: changed in place."""

from __future__ import annotations

import tomllib

import pytest

from skerry.cli.install import settings_file


def test_a_new_file_has_the_given_keys() -> None:
    made = settings_file.update(
        "", {"http.listen": "0.0.0.0:1323", "http.tls": True, "http.names": ("a", "b")}
    )
    assert made.startswith("#")
    assert tomllib.loads(made) == {"http": {"listen": "0.0.0.0:1323", "tls": True, "names": ["a", "b"]}}


def test_only_the_lines_of_given_keys_change() -> None:
    own = '# mine\nhttp.listen = "127.0.0.1:1" # why\nnode.name = "a"\n\n[log]\nlevel = "debug"\n'
    made = settings_file.update(own, {"http.listen": "127.0.0.1:2", "data": '/a "b"\\c'})
    assert made == (
        '# mine\nhttp.listen = "127.0.0.1:2"\nnode.name = "a"\n'
        'data = "/a \\"b\\"\\\\c"\n\n[log]\nlevel = "debug"\n'
    )
    assert tomllib.loads(made)["data"] == '/a "b"\\c'
    assert settings_file.update(made, {"data": '/a "b"\\c'}) == made


def test_a_key_in_a_table_is_left_to_its_owner() -> None:
    own = '[http]\nlisten = "127.0.0.1:1"\n'
    assert settings_file.update(own, {"http.listen": "127.0.0.1:1"}) == own
    with pytest.raises(settings_file.SetElsewhere, match=r"http\.listen"):
        settings_file.update(own, {"http.listen": "127.0.0.1:2"})
