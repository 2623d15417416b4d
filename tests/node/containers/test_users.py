"""Users by an image's own files, which are hostile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from skerry.model import errors
from skerry.node.containers import rootfs_files
from skerry.node.containers.users import ContainerUser, resolve_user

PASSWD = """\
root:x:0:0:root:/root:/bin/sh
web:x:1000:1001:Web:/srv/web:/bin/sh
# web:x:1:1::/:/bin/sh
broken
negative:x:-1:0::/:/bin/sh
huge:x:4294967295:0::/:/bin/sh
homeless:x:1002:1002:::
33:x:2033:2033::/odd:/bin/sh
"""
GROUP = """\
root:x:0:
web:x:1001:
disk:x:6:root,web
tape:x:26:web,root
staff:x:50:webmaster
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root" / "etc").mkdir(parents=True)
    (tmp_path / "root" / "etc" / "passwd").write_text(PASSWD)
    (tmp_path / "root" / "etc" / "group").write_text(GROUP)
    return tmp_path / "root"


@pytest.mark.parametrize(
    ("user", "identity"),
    [
        ("", ContainerUser(0, 0, (6, 26), "/root")),
        ("root", ContainerUser(0, 0, (6, 26), "/root")),
        ("web", ContainerUser(1000, 1001, (6, 26), "/srv/web")),
        ("1000", ContainerUser(1000, 1001, (6, 26), "/srv/web")),
        ("web:tape", ContainerUser(1000, 26, (), "/srv/web")),
        ("web:77", ContainerUser(1000, 77, (), "/srv/web")),
        ("1000:1001", ContainerUser(1000, 1001, (), "/srv/web")),
        ("5000", ContainerUser(5000, 0, (), "/")),
        ("5000:6000", ContainerUser(5000, 6000, (), "/")),
        (":tape", ContainerUser(0, 26, (), "/root")),
        ("homeless", ContainerUser(1002, 1002, (), "/")),
        ("33", ContainerUser(2033, 2033, (), "/odd")),  # a name comes before a number
        ("2147483647", ContainerUser(2147483647, 0, (), "/")),
    ],
)
def test_a_user_is_looked_up_as_docker_does(root: Path, user: str, identity: ContainerUser) -> None:
    assert resolve_user(user, root) == identity


@pytest.mark.parametrize(
    "user", ["nobody", "broken", "huge", "negative", "4294967296", "2147483648", "-1", "1.5"]
)
def test_a_user_that_the_image_lacks_is_named(root: Path, user: str) -> None:
    with pytest.raises(errors.Invalid, match=f'image has no user "{user}"; name one of its /etc/passwd'):
        resolve_user(user, root)


def test_a_group_that_the_image_lacks_is_named(root: Path) -> None:
    with pytest.raises(errors.Invalid, match='image has no group "wheel"; name one of its /etc/group'):
        resolve_user("web:wheel", root)
    with pytest.raises(errors.Invalid, match='has no group after ":"'):
        resolve_user("web:", root)


def test_an_image_without_users_has_numbers_and_root(tmp_path: Path) -> None:
    assert resolve_user("", tmp_path) == ContainerUser(0, 0, (), "/")
    assert resolve_user("12:34", tmp_path) == ContainerUser(12, 34, (), "/")
    with pytest.raises(errors.Invalid, match='image has no user "root"'):
        resolve_user("root", tmp_path)


def test_no_link_leads_to_the_users_of_the_node(root: Path) -> None:
    passwd = root / "etc" / "passwd"
    outside = root.parent / "passwd"
    outside.write_text("root:x:0:0::/of-the-node:/bin/sh\n")
    for target in (str(outside), "../../passwd", "/../../../../../../../../" + str(outside)):
        passwd.unlink()
        passwd.symlink_to(target)
        assert resolve_user("", root).home == "/"


def test_a_link_is_followed_as_in_the_container(root: Path) -> None:
    (root / "usr").mkdir()
    (root / "etc" / "passwd").rename(root / "usr" / "passwd")
    (root / "etc" / "passwd").symlink_to("/usr/passwd")
    assert resolve_user("web", root).uid == 1000


def test_a_folder_that_leads_out_leads_nowhere(root: Path, tmp_path: Path) -> None:
    for file in (root / "etc").iterdir():
        file.unlink()
    (root / "etc").rmdir()
    (root / "etc").symlink_to(Path("/proc/self/root", "etc"))
    assert resolve_user("", root).home == "/"


def test_a_pipe_in_place_of_the_file_is_not_waited_for(root: Path) -> None:
    (root / "etc" / "passwd").unlink()
    os.mkfifo(root / "etc" / "passwd")
    assert resolve_user("", root) == ContainerUser(0, 0, (), "/")


def test_a_file_that_never_ends_is_refused(root: Path) -> None:
    os.truncate(root / "etc" / "passwd", 1 << 40)
    with pytest.raises(errors.TooLarge, match="etc/passwd in the image is larger than"):
        resolve_user("web", root)


def test_bytes_that_are_no_text_do_no_harm(root: Path) -> None:
    with open(root / "etc" / "passwd", "ab") as file:
        file.write(b"\xff\xfe:x:7:7::/\xff:/bin/sh\n")
    assert resolve_user("web", root).uid == 1000


def test_a_file_is_read_up_to_its_limit(root: Path) -> None:
    (root / "file").write_bytes(b"12345")
    assert rootfs_files.read_file(root, "file", 5) == b"12345"
    assert rootfs_files.read_file(root, "/file", 5) == b"12345"
    assert rootfs_files.read_file(root, "absent", 5) is None
    assert rootfs_files.read_file(root, "etc", 5) is None
    with pytest.raises(errors.TooLarge):
        rootfs_files.read_file(root, "file", 4)
