"""A web service is run, updated, reverted and deleted by what docs/howto-services.md says, and no more."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import imagery, pages
from tests.support.remains import left_of
from tests.support.skerry import COMMAND, Skerry, environment, running
from tests.support.walkthrough import DOCS, steps

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(600),  # every step waits for containers, on a machine that may be busy
]

PAGE = "howto-services.md"
SERVE = "trap 'exit 0' TERM; httpd -f -p 80 -h /www & wait"
_LONGEST_S = 240.0


class Reader:
    """Somebody who types what the page says. The images of the page are files here, as nothing is fetched."""

    def __init__(self, skerry: Skerry, folder: Path) -> None:
        self.skerry = skerry
        self._folder = folder
        for version in ("1.28", "1.29"):
            page = imagery.layer(imagery.folder("www"), imagery.file("www/index.html", f"nginx {version}\n"))
            image = imagery.busybox(page, command=("sh", "-c", SERVE))
            imagery.write_oci_archive(image, folder / f"{version}.tar")
        manifest = re.search(r"^```yaml\n(.*?)^```$", (DOCS / PAGE).read_text(), re.MULTILINE | re.DOTALL)
        assert manifest is not None
        (folder / "web.yaml").write_text(self._local(manifest[1]))

    def follow(self, title: str, code: int = 0) -> list[subprocess.CompletedProcess[str]]:
        """Type the commands of a section; each must end with `code`."""
        done = []
        for step in steps(PAGE, title):
            words = shlex.split(self._local(step.command))
            assert words[0] == "skerry"
            ended = subprocess.run(
                [*COMMAND, *words[1:]],
                cwd=self._folder,
                env=environment(SKERRY_DATA=str(self.skerry.data)),
                capture_output=True,
                text=True,
                timeout=_LONGEST_S,
            )
            assert ended.returncode == code, f"{step.command}\n{ended.stdout}{ended.stderr}"
            done.append(ended)
        return done

    def service(self) -> dict[str, Any]:
        status, found = self.skerry.call("GET", "/service/web")
        assert status == 200, found
        return dict(found)

    def outcomes(self) -> list[str]:
        """Of its revisions."""
        status, found = self.skerry.call("GET", "/service/web/revisions")
        assert status == 200, found
        return [one["outcome"] for one in found["revisions"]]

    def pages(self) -> set[str]:
        """What the ready copies answer."""
        return {pages.get(80, copy["ip"]) for copy in self.service()["copies"] if copy["ready"]}

    def _local(self, text: str) -> str:
        return re.sub(r"docker\.io/library/nginx:([\d.]+)", rf"oci-archive:{self._folder}/\1.tar", text)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with running(tmp_path) as skerry:
        yield Reader(skerry, tmp_path)
    assert left_of(skerry) == []


def test_a_service_is_run_updated_reverted_scaled_and_deleted_as_the_page_says(reader: Reader) -> None:
    reader.follow("Create the service")
    first = reader.service()
    assert (first["status"], first["ready"], first["revision"]) == ("HEALTHY", 3, 1)
    assert reader.pages() == {"nginx 1.28\n"}

    plan, update = reader.follow("Look before an update, and update")
    assert "would be updated to revision 2: start-first" in plan.stdout
    assert update.stdout.startswith("updated service web: HEALTHY, revision 2")
    assert reader.pages() == {"nginx 1.29\n"}

    before = {copy["instance_id"] for copy in reader.service()["copies"] if copy["ready"]}
    [failed] = reader.follow("What happens to a bad version", 1)
    assert "the update of web to revision 3 failed" in failed.stderr
    assert "3 of 3 copies ready" in failed.stderr
    assert {copy["instance_id"] for copy in reader.service()["copies"] if copy["ready"]} == before
    assert reader.outcomes() == ["good", "good", "failed"]

    canary, promoted = reader.follow("Try a version on one copy first")
    assert "skerry service promote web" in canary.stderr
    assert promoted.stdout.startswith("promoted service web: HEALTHY, revision 4")
    assert reader.pages() == {"nginx 1.28\n"}

    reader.follow("Scale, and go back")
    back = reader.service()
    assert (back["replicas"], back["ready"], back["revision"]) == (5, 5, 1)

    _, applied, again = reader.follow("Keep it in a file")
    assert applied.stdout.startswith("changed service web")
    assert again.stdout == "unchanged: service web\n"

    reader.follow("Delete it")
    assert reader.skerry.call("GET", "/service/web")[0] == 404
    listed = json.loads(reader.skerry.cli("get", "instances", "-o", "json").stdout)
    assert listed["count"] == 0
