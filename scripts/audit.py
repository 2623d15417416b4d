"""Ask a vulnerability service about every locked package: `make audit`.

It needs a network, and so is no part of `make check`. What could not be asked about is never called sound.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# It has every package of the other locks, at the same versions.
LOCK = ROOT / "requirements" / "dev.lock"


def main() -> int:
    command = [
        sys.executable,
        "-m",
        "pip_audit",
        "--disable-pip",
        "--require-hashes",
        "--progress-spinner",
        "off",
    ]
    done = subprocess.run(
        [*command, "--format", "json", "--requirement", str(LOCK)],
        capture_output=True,
        text=True,
        check=False,
    )
    status, text = verdict(done.stdout, done.stderr)
    print(text)
    return status


def verdict(printed: str, complaint: str) -> tuple[int, str]:
    """The exit status and what to say: 0 all are sound, 1 some are not, 2 not all could be asked about."""
    try:
        packages: list[dict[str, Any]] = json.loads(printed)["dependencies"]
    except (ValueError, KeyError):
        why = complaint.strip().splitlines()[-1:] or ["it said nothing"]
        return 2, f"audit: no vulnerability service could be asked, so nothing is known: {why[0]}"
    asked = [package for package in packages if "skip_reason" not in package]
    found = [package for package in asked if package["vulns"]]
    lines = [
        f"audit: {package['name']} {package['version']}: {flaw['id']},"
        f" mended in {', '.join(flaw['fix_versions']) or 'no version'}"
        for package in found
        for flaw in package["vulns"]
    ]
    lines.append(
        f"audit: {len(asked)} of {len(packages)} packages asked about, {len(found)} with known flaws"
    )
    if len(asked) < len(packages):
        lines.append(
            "audit: no vulnerability service that knows the others was reached; run this where there is one"
        )
    return (1 if found else 2 if len(asked) < len(packages) else 0), "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
