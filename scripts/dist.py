"""Build what is released, into `dist/`: the wheel, the Debian package, and an image of it.

`python scripts/dist.py [wheel|deb|image]...`; `make dist` calls it. The version is that of
`src/skerry/__init__.py`, dates are that of the last commit, so that the same commit gives the same bytes on
the same machine. The Debian package has Skerry with its locked Python packages in /usr/lib/skerry, as a
virtual environment of the system's Python; programs it calls are dependencies, from `system-packages.txt`.
"""

from __future__ import annotations

import compileall
import gzip
import os
import py_compile
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from datetime import UTC, datetime
from email.utils import format_datetime
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from scripts import man_pages  # noqa: E402 - the path above makes the next ones importable
from skerry import __version__  # noqa: E402

DIST = ROOT / "dist"
LOCK = ROOT / "requirements" / "etcd.lock"  # with the extra for etcd: nobody can add it there later
BUILD_ONLY = {"hatchling", "editables", "pathspec", "pluggy", "tomlkit", "trove-classifiers"}
PROGRAM = "usr/lib/skerry"
MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"
BASE = "docker.io/library/debian:bookworm-slim"
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/skerry",
    "zsh": "usr/share/zsh/vendor-completions/_skerry",
    "fish": "usr/share/fish/vendor_completions.d/skerry.fish",
}
LAUNCHER = """#!/usr/lib/skerry/bin/python3
import sys

from skerry.cli.main import main

sys.exit(main())
"""
# Units and data are those of `skerry install`: it removes them, and keeps the data.
PRERM = """#!/bin/sh
set -e
if [ "$1" = remove ] && [ -e /etc/skerry/installation.json ]; then
    /usr/bin/skerry uninstall --yes
fi
"""
# What Python has written beside the files of the package.
POSTRM = """#!/bin/sh
set -e
if [ "$1" = remove ] || [ "$1" = purge ]; then
    rm -rf /usr/lib/skerry
fi
"""
# Containers keep running during the restart, and systemd holds the sockets.
POSTINST = """#!/bin/sh
set -e
if [ "$1" = configure ] && [ -n "$2" ] && [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
    systemctl try-restart skerry.service || true
fi
"""
COPYRIGHT = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: skerry

Files: *
Copyright: the authors of Skerry
License: Apache-2.0
 On Debian systems the full text is in /usr/share/common-licenses/Apache-2.0.
Comment: Python packages below /usr/lib/skerry have their licences in their dist-info folders, files of
 the web console beside them.
"""


def say(text: str) -> None:
    print(f"dist: {text}", flush=True)


def run(*command: str | Path, **options: str) -> None:
    subprocess.run([str(part) for part in command], check=True, cwd=ROOT, env={**os.environ, **options})


def commit_time() -> int:
    """Of the last commit, or what SOURCE_DATE_EPOCH says."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    command = ["git", "log", "-1", "--format=%ct"]
    return int(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)


def build_wheel(folder: Path = DIST) -> Path:
    run(ROOT / "scripts" / "assets")  # files of the console: not in git
    for old in folder.glob("skerry-*.whl"):
        old.unlink()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    (made,) = folder.glob("skerry-*.whl")
    with zipfile.ZipFile(made) as archive:
        if "skerry/console/assets/third_party/htmx.js" not in archive.namelist():
            raise SystemExit("dist: the wheel lacks the files of the web console; run scripts/assets")
    return made


def build_deb(folder: Path = DIST, *, is_quick: bool = False) -> Path:
    """The Debian package in `folder`. A quick one, for tests, has the packages of this virtual environment,
    which come from the same lock, and is neither compiled nor compressed."""
    architecture = subprocess.run(
        ["dpkg", "--print-architecture"], check=True, capture_output=True, text=True
    ).stdout.strip()
    made = folder / f"skerry_{__version__}_{architecture}.deb"
    wheel = build_wheel(folder)
    with tempfile.TemporaryDirectory(prefix="skerry-deb-") as work:
        tree = Path(work) / "tree"
        tree.mkdir(mode=0o755)
        packages = _add_program(tree)
        (_copy_packages if is_quick else _install_packages)(packages)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(packages)
        if not is_quick:
            _compile(tree, packages)
        _add_documents(tree)
        _add_control(tree, architecture)
        _normalize(tree)
        for old in folder.glob("skerry_*.deb"):
            old.unlink()
        compression = ("-Znone",) if is_quick else ("-Zzstd", "-z9")
        run("dpkg-deb", "--root-owner-group", *compression, "--build", tree, made)
    return made


def _add_program(tree: Path) -> Path:
    """A virtual environment, made by hand: one that `venv` makes names the folder that it was made in.
    Returns the folder of its packages."""
    home = tree / PROGRAM
    packages = home / "lib" / f"python{MINOR}" / "site-packages"
    packages.mkdir(parents=True)
    (home / "bin").mkdir()
    (home / "bin" / "python3").symlink_to(f"/usr/bin/python{MINOR}")
    (home / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {MINOR}\n"
    )
    program = home / "bin" / "skerry"
    program.write_text(LAUNCHER)
    program.chmod(0o755)
    (tree / "usr" / "bin").mkdir()
    (tree / "usr" / "bin" / "skerry").symlink_to("../lib/skerry/bin/skerry")
    return packages


def _install_packages(packages: Path) -> None:
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
    run(*pip, "--no-compile", "--require-hashes", "--prefer-binary", "-r", LOCK, "--target", packages)
    shutil.rmtree(packages / "bin", ignore_errors=True)  # programs of packages, which nobody calls
    for name in (each.replace("-", "_") for each in BUILD_ONLY):
        for path in (packages / name, *packages.glob(f"{name}-*.dist-info")):
            shutil.rmtree(path, ignore_errors=True)


def _copy_packages(packages: Path) -> None:
    for name in locked_names() - BUILD_ONLY:
        for file in metadata.distribution(name).files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                target = packages / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file.locate(), target)


def locked_names() -> set[str]:
    """The packages of the lock, but for those of another platform."""
    lines = [line.split(" ;")[0] for line in LOCK.read_text().splitlines() if re.match(r"[a-z0-9]", line)]
    return {re.split(r"[=\[ ]", line)[0] for line in lines}


def _compile(tree: Path, packages: Path) -> None:
    compiled = compileall.compile_dir(
        packages,
        quiet=2,
        stripdir=str(tree),
        prependdir="/",
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    if not compiled:
        say("some modules of packages were not compiled; they are compiled when they are imported")


def _add_documents(tree: Path) -> None:
    for name, text in man_pages.pages().items():
        _write(tree / "usr" / "share" / "man" / "man1" / f"{name}.gz", _zipped(text))
    for shell, path in COMPLETIONS.items():
        command = [sys.executable, "-m", "skerry", "completion", shell]
        made = subprocess.run(command, check=True, capture_output=True, cwd=ROOT / "src").stdout
        _write(tree / path, made)
    documents = tree / "usr" / "share" / "doc" / "skerry"
    _write(documents / "copyright", COPYRIGHT.encode())
    day = format_datetime(datetime.fromtimestamp(commit_time(), UTC))
    entry = (
        f"skerry ({__version__}) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n"
        f" -- The authors of Skerry <skerry@localhost>  {day}\n"
    )
    _write(documents / "changelog.gz", _zipped(entry))
    _write(documents / "CHANGELOG.md.gz", _zipped((ROOT / "CHANGELOG.md").read_text()))


def _add_control(tree: Path, architecture: str) -> None:
    size = sum(path.lstat().st_size for path in tree.rglob("*") if path.is_file()) // 1024
    control = f"""Package: skerry
Version: {__version__}
Architecture: {architecture}
Maintainer: The authors of Skerry <skerry@localhost>
Section: admin
Priority: optional
Installed-Size: {size}
Depends: {", ".join(dependencies())}
Recommends: systemd
Description: a small cloud on one machine or many
 Containers, functions and plain processes under one scheduler, from the edge to
 the cloud; neighbouring clouds lend each other capacity. 'skerry install' makes
 it a service of the machine, 'skerry up' starts it in a terminal.
"""
    _write(tree / "DEBIAN" / "control", control.encode())
    for name, script in (("prerm", PRERM), ("postrm", POSTRM), ("postinst", POSTINST)):
        _write(tree / "DEBIAN" / name, script.encode())
        (tree / "DEBIAN" / name).chmod(0o755)


def dependencies() -> list[str]:
    """Of the Debian package: the Python of its modules, and the programs that it calls."""
    following = f"{sys.version_info.major}.{sys.version_info.minor + 1}"
    lines = (ROOT / "system-packages.txt").read_text().splitlines()
    needed = [line.split()[1] for line in lines if line.startswith("run ")]
    return [f"python3 (>= {MINOR})", f"python3 (<< {following})", *needed]


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _zipped(text: str) -> bytes:
    return gzip.compress(text.encode(), 9, mtime=0)


def _normalize(tree: Path) -> None:
    """Modes that do not depend on the umask of who builds; times are set by dpkg-deb."""
    for path in (tree, *tree.rglob("*")):
        if not path.is_symlink():
            is_program = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(0o755 if is_program else 0o644)


def build_image(base: str) -> Path:
    """An image of the Debian package, by the Containerfile, as an archive that `skerry image pull` reads."""
    made = DIST / f"skerry-{__version__}.oci.tar"
    made.unlink(missing_ok=True)
    tag = f"localhost/skerry:{__version__}"
    options = ("--isolation", "chroot", "--timestamp", str(commit_time()), "--build-arg", f"BASE={base}")
    run("buildah", "build", *options, "--tag", tag, "--file", "Containerfile", ".")
    run("buildah", "push", "--quiet", tag, f"oci-archive:{made}:skerry")
    return made


def main(wanted: list[str]) -> int:
    DIST.mkdir(exist_ok=True)
    os.environ["SOURCE_DATE_EPOCH"] = str(commit_time())
    base = os.environ.get("BASE", "")
    if "image" in wanted or not wanted:
        if not list(DIST.glob("skerry_*.deb")) or not wanted:
            say(f"made {build_deb().relative_to(ROOT)}, and the wheel")
        if shutil.which("buildah") is None:
            say("no image: buildah is not installed (apt-get install buildah)")
            return 1 if wanted else 0
        try:
            say(f"made {build_image(base or BASE).relative_to(ROOT)}")
        except subprocess.CalledProcessError as error:
            say(f"no image: {' '.join(error.cmd[:2])} failed. The base image comes from a registry; name "
                "another with BASE=...")  # fmt: skip
            return 1 if wanted or base else 0
    elif "deb" in wanted:
        say(f"made {build_deb().relative_to(ROOT)}, and the wheel")
    elif "wheel" in wanted:
        say(f"made {build_wheel().relative_to(ROOT)}")
    else:
        print("usage: dist.py [wheel|deb|image]", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
