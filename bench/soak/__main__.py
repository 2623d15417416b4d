"""Run one campaign, or all: `python -m bench.soak [CAMPAIGN] [options]`; `--help` lists them.

The exit code is 1 if anything was lost, doubled, untrue or left behind.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Mapping
from typing import Any

CAMPAIGNS: Mapping[str, str] = {
    "cells": "make and end thousands of cells",
    "kills": "kill processes at random while calls and writes go on",
    "disk": "fill the disk, end things, make room",
    "heads": "send requests with wrong heads, made by seeds",
    "stalls": "everything at once, and what stalls the event loop",
    "times": "how long others take to take over, on default settings",
}
OPTIONS: Mapping[str, Mapping[str, type]] = {
    "cells": {"cycles": int, "at_once": int},
    "kills": {"count": int, "seed": int, "minutes": float},
    "disk": {"rounds": int, "seed": int},
    "heads": {"rounds": int, "seed": int},
    "stalls": {"minutes": float, "objects": int},
    "times": {"repeat": int},
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make soak ARGS=", description=__doc__)
    campaigns = parser.add_subparsers(dest="campaign", metavar="CAMPAIGN")
    for name, meaning in CAMPAIGNS.items():
        one = campaigns.add_parser(name, help=meaning)
        for option, kind in OPTIONS[name].items():
            one.add_argument(f"--{option.replace('_', '-')}", type=kind, default=argparse.SUPPRESS)
    options: dict[str, Any] = vars(parser.parse_args(arguments))
    chosen = options.pop("campaign")
    violations: list[str] = []
    for name in [chosen] if chosen else CAMPAIGNS:
        began = time.monotonic()
        print(f"{name}:", flush=True)
        found = importlib.import_module(f"bench.soak.{name}").run(**options)
        violations += [f"{name}: {each}" for each in found]
        print(f"  took {time.monotonic() - began:.0f} s", flush=True)
    print("\n".join(["VIOLATED:", *violations]) if violations else "nothing was violated")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
