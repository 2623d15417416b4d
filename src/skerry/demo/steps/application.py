"""Step: an application of a service and a function, from an image that is made here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from skerry.demo import sample_image
from skerry.demo.narration import Assertion
from skerry.demo.sites import EDGES
from skerry.demo.stage import BAD, COPIES, FUNCTION, GOOD, SHOP, Stage, image, nothing_lost

TITLE: Final = "An application"
REASON: Final = (
    "A shop: a web service in three copies, and a function that recommends something. Its image was made "
    "of this machine's own Python; nothing is downloaded."
)
# It waits, as a function does that queries a database: so the demo costs this machine little.
_CODE: Final = """import time


def handler(params, context):
    time.sleep(0.2)
    return {"user": params["user"], "items": [3, 5, 8]}
"""


def make_images(stage: Stage) -> None:
    """Make both versions of the image, and start the registry that serves them."""
    sample_image.write(
        stage.sites.image_folder, {GOOD: {"VERSION": GOOD}, BAD: {"VERSION": BAD, "BROKEN": "1"}}
    )
    stage.sites.serve_images()


def show(stage: Stage) -> Iterator[Assertion]:
    stage.run(
        *("service", "create", SHOP, "--replicas", str(COPIES), "--max-per-node", "1", "--port", "80"),
        *("--cpu", "100", "--memory", "64", "--check", "http:80/health,interval=1s"),
        *("--min-ready", "1s", "--drain", "1s", image(GOOD)),
    )
    service = stage.service(SHOP)
    nodes = {copy["node_id"] for copy in service["copies"]}
    yield Assertion(f"{COPIES} copies are ready, on {len(nodes)} machines", len(nodes) == COPIES)
    code = stage.folder / f"{FUNCTION}.py"
    code.write_text(_CODE)
    stage.run("fn", "deploy", str(code), "--memory", "64", "--idempotent")
    stage.narrator.say(
        f"Clients at {', '.join(site.name for site in EDGES)} call the function on the machine beside them, "
        "and request pages of the service at its virtual address:"
    )
    edge = EDGES[0].name
    stage.narrator.command(
        ["skerry", "demo", "exec", edge, "skerry", "fn", "invoke", FUNCTION, "-p", "user:=7"]
    )
    stage.narrator.command(["skerry", "demo", "exec", edge, "curl", f"http://{service['address']}/"])
    with stage.load() as load:
        load.observe()
        calls, pages = load.stop()
    yield nothing_lost(calls, pages)
    at_edges = calls.share(*(site.name for site in EDGES))
    yield Assertion(f"{at_edges:.0%} of the calls ran at the edge", at_edges > 0.5)
