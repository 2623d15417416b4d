"""Other versions of Skerry as programs: one built from the history of this repository, and later ones that
are this one under another version.

    folder = installed(V0_1_0, tmp_path)
    Skerry(home, env=environment(PYTHONPATH=str(folder)), cwd=str(home))
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import skerry

_REPOSITORY = Path(__file__).resolve().parents[2]
_SOURCES = ("src", "pyproject.toml", "README.md", "LICENSE")


class PastVersion(NamedTuple):
    """A version, and the commit that it is built from: the last one before the version was raised."""

    version: str
    commit: str


V0_1_0 = PastVersion("0.1.0", "76258a53045bc72bbe3113da3da92ab3a812e160")


def missing_history(past: PastVersion) -> str:
    """Why `past` cannot be built here, empty if it can: an archive or a shallow clone has no history."""
    done = subprocess.run(
        ["git", "-C", _REPOSITORY, "cat-file", "-e", f"{past.commit}^{{commit}}"],
        capture_output=True,
        check=False,
    )
    if done.returncode == 0:
        return ""
    return (
        f"commit {past.commit[:8]} of {past.version} is not in this checkout, so it cannot be built; what is "
        "left to test are its recordings, in test_recorded_versions.py"
    )


def installed(past: PastVersion, folder: Path) -> Path:
    """Build a wheel of `past`, and install it below `folder`; its packages are those of this environment."""
    sources, wheels, target = (folder / name for name in ("sources", "wheels", "site"))
    sources.mkdir(parents=True)
    archive = subprocess.run(
        ["git", "-C", _REPOSITORY, "archive", past.commit, *_SOURCES], capture_output=True, check=True
    )
    subprocess.run(["tar", "-x", "-C", sources], input=archive.stdout, check=True)
    _run("hatchling", "build", "-t", "wheel", "-d", str(wheels), cwd=sources)
    (wheel,) = wheels.iterdir()
    assert wheel.name.startswith(f"skerry-{past.version}-"), wheel.name
    _run(
        *("pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile", "--no-cache-dir"),
        *("--disable-pip-version-check", "--root-user-action=ignore"),
        *("--target", str(target), str(wheel)),
        cwd=folder,
    )
    (built,) = metadata.distributions(path=[str(target)])
    for requirement in built.requires or ():
        if "extra ==" not in requirement:
            metadata.version(re.split(r"[^A-Za-z0-9._-]", requirement)[0])  # raises if it is not there
    return target


def renamed(version: str, folder: Path) -> Path:
    """This Skerry as `version`, in a folder for PYTHONPATH."""
    own = Path(skerry.__file__).parent
    shutil.copytree(own, folder / "skerry")  # with what is compiled: times of files are copied, too
    first = folder / "skerry" / "__init__.py"
    text = first.read_text()
    assert skerry.__version__ in text
    first.write_text(text.replace(skerry.__version__, version))
    return folder


def _run(module: str, *arguments: str, cwd: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
