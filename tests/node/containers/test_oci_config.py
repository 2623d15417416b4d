"""What a container is configured to be, by the rules and as a real runtime makes it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.kit import json_codec
from skerry.model import errors
from skerry.model.containers import ContainerSpec
from skerry.model.images import ImageConfig
from skerry.node.containers import confinement, oci_config
from skerry.node.containers.etc_files import EtcFiles, write_files
from skerry.node.containers.users import ContainerUser
from tests.support.bundles import Bundle, busybox_root, lend_python, needs_runc

FILES = EtcFiles(Path("/c/resolv.conf"), Path("/c/hosts"), Path("/c/hostname"))
DOCKER_CAPABILITIES = {
    *("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID"),
    *("CAP_SETUID", "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL"),
    "CAP_AUDIT_WRITE",
}
DOCKER_MASKED = {
    *("/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats"),
    *("/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats"),
    *("/sys/devices/virtual/powercap", "/sys/firmware"),
}
LISTEN = """
import socket
socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP).close()
socket.create_server(("127.0.0.1", 80)).close()
"""
DOCKER_READ_ONLY = {"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}


def a_spec(**changes: Any) -> ContainerSpec:
    return ContainerSpec(**{"name": "web", "image": "example.org/web", **changes})


def a_config(
    spec: ContainerSpec | None = None,
    image: ImageConfig | None = None,
    *,
    identity: ContainerUser = ContainerUser(),  # noqa: B008 - frozen
    network_namespace: str | None = None,
    cgroups_path: str = "/skerry/web/box",
) -> dict[str, Any]:
    """As the runtime reads it."""
    created = oci_config.make_config(
        spec or a_spec(arguments=("true",)),
        image or ImageConfig(),
        identity=identity,
        rootfs=Path("/c/rootfs"),
        cgroups_path=cgroups_path,
        network_namespace=network_namespace,
        files=FILES,
    )
    config: dict[str, Any] = json.loads(json_codec.encode(created))
    return config


@pytest.mark.parametrize(
    ("entrypoint", "arguments", "words"),
    [
        ((), (), "img-entry img-command"),
        ((), ("mine",), "img-entry mine"),
        (("other",), (), "other"),
        (("other",), ("mine",), "other mine"),
    ],
)
def test_what_runs_is_put_together_as_docker_does(
    entrypoint: tuple[str, ...], arguments: tuple[str, ...], words: str
) -> None:
    image = ImageConfig(entrypoint=("img-entry",), command=("img-command",))
    spec = a_spec(entrypoint=entrypoint, arguments=arguments)
    assert a_config(spec, image)["process"]["args"] == words.split()


def test_an_image_without_an_entrypoint_runs_its_command_or_the_arguments() -> None:
    image = ImageConfig(command=("img-command",))
    assert oci_config.command(a_spec(), image) == ("img-command",)
    assert oci_config.command(a_spec(arguments=("a", "b")), image) == ("a", "b")


def test_a_container_that_nobody_says_what_to_run_in_is_refused() -> None:
    with pytest.raises(errors.Invalid, match=r"image example\.org/web has no command; give") as caught:
        oci_config.command(a_spec(), ImageConfig())
    assert caught.value.field == "arguments"


def test_the_environment_is_the_defaults_the_image_and_the_spec_in_this_order() -> None:
    image = ImageConfig(environment=("A=image", "B=image", "HOME=/image"))
    spec = a_spec(arguments=("true",), environment=("B=spec=1", "C=", "PATH=/spec"))
    environment = a_config(spec, image, identity=ContainerUser(home="/root"))["process"]["env"]
    assert environment == ["PATH=/spec", "HOSTNAME=web", "HOME=/image", "A=image", "B=spec=1", "C="]


def test_the_environment_has_defaults() -> None:
    environment = a_config(identity=ContainerUser(home="/srv/web"))["process"]["env"]
    assert environment == [
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOSTNAME=web",
        "HOME=/srv/web",
    ]


def test_what_an_image_has_in_its_environment_that_is_no_setting_is_left_out() -> None:
    assert oci_config.merge_environment(["NOTHING", "=x", "A=\0", "B=1"]) == ["B=1"]


@given(st.lists(st.lists(st.text(max_size=6), max_size=6), max_size=4))
def test_each_key_of_the_environment_is_there_once_with_its_last_value(sources: list[list[str]]) -> None:
    merged = oci_config.merge_environment(*sources)
    keys = [setting.partition("=")[0] for setting in merged]
    assert len(set(keys)) == len(keys)
    for setting in merged:
        key = setting.partition("=")[0]
        written = [
            one for source in sources for one in source if one.startswith(f"{key}=") and "\0" not in one
        ]
        assert written[-1] == setting


@pytest.mark.parametrize(
    ("requested", "of_image", "folder"),
    [
        ("", "", "/"),
        ("", "app", "/app"),
        ("", "/app/", "/app"),
        ("/spec", "/app", "/spec"),
        ("", "../../x", "/x"),
        ("", "/a/../..", "/"),
    ],
)
def test_the_working_folder_is_absolute_whatever_the_image_says(
    requested: str, of_image: str, folder: str
) -> None:
    config = a_config(a_spec(arguments=("true",), folder=requested), ImageConfig(folder=of_image))
    assert config["process"]["cwd"] == folder


def test_the_stop_signal_is_the_specs_or_the_images_or_term() -> None:
    image = ImageConfig(stop_signal="SIGQUIT")
    assert oci_config.stop_signal(a_spec(), ImageConfig()) == 15
    assert oci_config.stop_signal(a_spec(), image) == 3
    assert oci_config.stop_signal(a_spec(stop_signal="INT"), image) == 2
    with pytest.raises(errors.Invalid, match="'SIGWHAT' is not a signal"):
        oci_config.stop_signal(a_spec(), ImageConfig(stop_signal="SIGWHAT"))


def test_root_has_no_capability_that_docker_does_not_give_and_others_have_none() -> None:
    root = a_config()["process"]["capabilities"]
    assert root.keys() == {"bounding", "effective", "permitted"}
    assert all(set(names) < DOCKER_CAPABILITIES for names in root.values())
    assert all(
        DOCKER_CAPABILITIES - set(names) == {"CAP_MKNOD", "CAP_NET_RAW", "CAP_AUDIT_WRITE"}
        for names in root.values()
    )
    other = a_config(identity=ContainerUser(uid=1000))["process"]["capabilities"]
    assert all(names == [] for names in other.values())


def test_nothing_is_open_that_docker_hides() -> None:
    linux = a_config()["linux"]
    assert set(linux["maskedPaths"]) >= DOCKER_MASKED
    assert set(linux["readonlyPaths"]) >= DOCKER_READ_ONLY


def test_it_is_confined_whoever_it_is() -> None:
    config = a_config()
    assert config["process"]["noNewPrivileges"] is True
    assert config["linux"]["seccomp"]["defaultAction"] == "SCMP_ACT_ERRNO"
    assert config["linux"]["resources"] == {"devices": [{"allow": False, "access": "rwm"}]}
    assert config["linux"]["rootfsPropagation"] == "rprivate"
    limits = {limit["type"]: (limit["soft"], limit["hard"]) for limit in config["process"]["rlimits"]}
    assert limits["RLIMIT_CORE"] == (0, 0)
    assert 0 < limits["RLIMIT_NOFILE"][0] <= 1024 <= limits["RLIMIT_NOFILE"][1]


def test_every_namespace_is_its_own_and_the_network_is_the_given_one() -> None:
    own = {"pid", "ipc", "uts", "mount", "cgroup", "network"}
    alone = a_config()["linux"]["namespaces"]
    assert {namespace["type"] for namespace in alone} == own
    assert all("path" not in namespace for namespace in alone)
    given_one = a_config(network_namespace="/n/7")["linux"]["namespaces"]
    assert {namespace["type"] for namespace in given_one} == own
    assert [namespace for namespace in given_one if "path" in namespace] == [
        {"type": "network", "path": "/n/7"}
    ]


def test_sysctls_are_set_by_the_runtime_only_for_a_network_that_it_creates() -> None:
    assert a_config()["linux"]["sysctl"]["net.ipv4.ip_unprivileged_port_start"] == "0"
    assert "sysctl" not in a_config(network_namespace="/n/7")["linux"]


def test_its_own_files_are_bound_read_only() -> None:
    bound = {mount["destination"]: mount for mount in a_config()["mounts"] if mount["type"] == "bind"}
    assert {name: mount["source"] for name, mount in bound.items()} == {
        "/etc/resolv.conf": "/c/resolv.conf",
        "/etc/hosts": "/c/hosts",
        "/etc/hostname": "/c/hostname",
    }
    assert all({"ro", "nosuid", "nodev", "noexec"} <= set(mount["options"]) for mount in bound.values())


def test_the_host_name_is_the_containers_unless_another_is_given() -> None:
    assert a_config()["hostname"] == "web"
    assert a_config(a_spec(arguments=("true",), host_name="Shop-1"))["hostname"] == "Shop-1"


def test_the_place_of_everything_is_as_given() -> None:
    config = a_config(a_spec(arguments=("true",), read_only=True))
    assert config["root"] == {"path": "/c/rootfs", "readonly": True}
    assert config["linux"]["cgroupsPath"] == "/skerry/web/box"
    assert a_config()["root"]["readonly"] is False


def test_a_further_process_is_confined_like_the_first() -> None:
    spec, image = a_spec(arguments=("true",), environment=("A=spec",)), ImageConfig(folder="/app")
    first = oci_config.make_process(spec, image, ("true",), identity=ContainerUser())
    further = oci_config.make_process(
        spec,
        image,
        ("sh",),
        identity=ContainerUser(5, 6, (7,)),
        environment=("A=exec",),
        folder="/x",
        tty=True,
    )
    assert further["user"] == {"uid": 5, "gid": 6, "additionalGids": (7,)}
    assert (further["cwd"], further["terminal"], further["args"]) == ("/x", True, ("sh",))
    assert {"A=exec", "TERM=xterm"} <= set(further["env"])
    assert "TERM=xterm" not in first["env"]
    for key in ("rlimits", "noNewPrivileges", "oomScoreAdj"):
        assert further[key] == first[key]


def test_files_are_readable_to_all_and_written_over(tmp_path: Path) -> None:
    write_files(tmp_path, host_name="old", address="10.0.0.2", resolv_conf="x" * 100)
    files = write_files(tmp_path, host_name="web", address="10.0.0.3", resolv_conf="nameserver 10.0.0.1\n")
    assert files.resolv_conf.read_text() == "nameserver 10.0.0.1\n"
    assert files.hostname.read_text() == "web\n"
    assert "127.0.0.1\tlocalhost\n" in files.hosts.read_text()
    assert files.hosts.read_text().endswith("10.0.0.3\tweb\n")
    assert {path.stat().st_mode & 0o777 for path in (files.resolv_conf, files.hosts, files.hostname)} == {
        0o644
    }


def test_a_container_without_a_network_finds_itself_on_its_loopback(tmp_path: Path) -> None:
    files = write_files(tmp_path, host_name="web", address="", resolv_conf="")
    assert files.hosts.read_text().endswith("127.0.0.1\tweb\n")


@needs_runc
@pytest.mark.root
class TestByARealRuntime:
    @pytest.fixture
    def box(self, tmp_path: Path) -> Bundle:
        return Bundle(tmp_path, busybox_root(tmp_path / "rootfs"))

    def test_it_runs_and_its_code_comes_back(self, box: Bundle) -> None:
        done = box.run(box.config("/bin/sh", "-c", "exit 7"))
        assert (done.returncode, done.stderr) == (7, "")

    def test_it_has_the_name_the_environment_and_the_folder_it_was_given(self, box: Bundle) -> None:
        image = ImageConfig(environment=("A=1",), folder="/made/for/it")
        printed = box.output("hostname; pwd; echo $A $HOME; cat /etc/hostname /etc/resolv.conf", image=image)
        assert printed.split() == ["box", "/made/for/it", "1", "/", "box", "nameserver", "192.0.2.1"]

    def test_it_is_the_user_it_was_given(self, box: Bundle) -> None:
        identity = ContainerUser(1000, 1001, (6, 26), "/srv/web")
        printed = box.output("id; grep Cap /proc/self/status", identity=identity)
        assert "uid=1000(web) gid=1001(web) groups=6(disk),26(tape)" in printed
        assert {line.split()[1] for line in printed.splitlines()[1:]} == {"0" * 16}

    def test_root_in_it_has_the_capabilities_of_the_list(self, box: Bundle) -> None:
        printed = box.output("grep -E 'CapEff|CapBnd|CapInh|CapAmb|NoNewPrivs|Seccomp:' /proc/self/status")
        status = dict(line.split(":\t") for line in printed.splitlines())
        assert status["CapEff"] == status["CapBnd"]
        assert int(status["CapEff"], 16).bit_count() == len(confinement.CAPABILITIES)
        assert int(status["CapInh"], 16) == int(status["CapAmb"], 16) == 0
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")

    def test_it_sees_only_itself(self, box: Bundle) -> None:
        printed = box.output(
            "echo $$; ls /proc | grep -c '^[0-9]'; cat /proc/net/dev | grep -c :; cat /proc/self/cgroup"
        )
        first, processes, interfaces, *groups = printed.splitlines()
        assert first == "1"
        assert int(processes) <= 3
        assert interfaces == "1"
        assert {line.split(":")[2] for line in groups} == {"/"}

    def test_it_cannot_change_the_kernel_or_its_own_groups(self, box: Bundle) -> None:
        script = """
        for file in /proc/sys/kernel/panic /proc/sysrq-trigger /sys/kernel/mm/ksm/run /etc/hosts; do
            (echo 1 > $file) 2>/dev/null && echo wrote $file
        done
        for folder in /sys/fs/cgroup /sys/fs/cgroup/*/; do
            mkdir $folder/mine 2>/dev/null && echo made $folder/mine
        done
        cat /proc/kcore /proc/keys /proc/timer_list /proc/interrupts 2>/dev/null
        ls -A /sys/firmware 2>/dev/null
        ls -A /proc/acpi 2>/dev/null
        true
        """
        assert box.output(script) == ""

    def test_it_has_only_harmless_devices(self, box: Bundle) -> None:
        printed = box.output("ls /dev; head -c 4 /dev/zero | stat -c %s - 2>/dev/null; echo x > /dev/null")
        assert set(printed.split()) >= {"full", "null", "random", "tty", "urandom", "zero", "shm", "mqueue"}
        assert not any(
            name.startswith(("sd", "vd", "nvme", "mem", "kmsg", "loop")) for name in printed.split()
        )
        done = box.run(box.config("/bin/sh", "-c", "mknod /tmp/disk b 8 0"))
        assert done.returncode != 0
        assert "not permitted" in done.stderr

    def test_a_device_node_of_the_image_cannot_be_opened(self, box: Bundle) -> None:
        subprocess.run(["mknod", str(box.rootfs / "memory"), "c", "1", "1"], check=True)
        done = box.run(box.config("/bin/sh", "-c", "head -c 1 /memory"))
        assert done.returncode != 0
        assert "not permitted" in done.stderr

    def test_any_user_may_ping_and_listen_on_low_ports(self, box: Bundle) -> None:
        config = box.config("", identity=ContainerUser(1000, 1001))
        config["process"]["args"] = [lend_python(config, box.rootfs), "-I", "-c", LISTEN]
        done = box.run(config)
        assert (done.returncode, done.stderr) == (0, "")

    def test_a_read_only_root_cannot_be_written_to(self, box: Bundle) -> None:
        done = box.run(box.config("/bin/sh", "-c", "touch /tmp/x", read_only=True))
        assert done.returncode != 0
        assert "Read-only file system" in done.stderr
        assert box.output("echo y > /dev/shm/x; cat /dev/shm/x", read_only=True) == "y\n"

    def test_it_leaves_no_core_and_has_room_for_files(self, box: Bundle) -> None:
        assert box.output("ulimit -c; ulimit -n").split() == ["0", "1024"]


def test_a_container_without_a_cgroup_has_no_limits_devices_or_mount_of_one() -> None:
    config = a_config(cgroups_path="")
    assert not {"cgroupsPath", "resources"} & config["linux"].keys()
    assert "/sys/fs/cgroup" not in [each["destination"] for each in config["mounts"]]


@pytest.mark.parametrize(("ids", "has_group"), [(1, False), (5, False), (6, True), (65_537, True)])
def test_a_container_has_only_the_groups_that_exist(ids: int, has_group: bool) -> None:
    config = a_config(identity=ContainerUser(ids=ids))
    terminals = next(each for each in config["mounts"] if each["destination"] == "/dev/pts")
    assert ("gid=5" in terminals["options"]) is has_group
    assert config["linux"]["sysctl"]["net.ipv4.ping_group_range"] == f"0 {ids - 1}"
