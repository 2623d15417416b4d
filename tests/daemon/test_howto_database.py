"""An application with a database is run, updated and restored as docs/howto-database.md says, and no more."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import imagery
from tests.support.remains import left_of
from tests.support.skerry import COMMAND, Skerry, environment, running
from tests.support.waiting import eventually_sync
from tests.support.walkthrough import DOCS, steps

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(600),  # every step waits for containers, on a machine that may be busy
]

PAGE = "howto-database.md"
_LONGEST_S = 240.0

# In the place of PostgreSQL: a server of one line per connection, `PASSWORD VERB [TEXT]`, that keeps its rows
# in a file of the volume, and takes its password from the file that is named in the environment.
DATABASE = """\
#!/bin/sh
read -r password verb text
[ "$password" = "$(cat $POSTGRES_PASSWORD_FILE)" ] || { echo "wrong password"; exit 1; }
rows=/var/lib/postgresql/data/rows
case "$verb" in
  insert) echo "$text" >> $rows;;
  select) cat $rows;;
  truncate) : > $rows;;
esac
"""
# The application: its settings from the config, its password from the secret, its rows from the database.
NOTES = """\
#!/bin/sh
. /etc/notes.conf
read -r verb path _
length=0
while read -r name value; do
  value=${value%?}
  case "$name" in [Cc]ontent-[Ll]ength:) length=$value;; esac
  [ "${#name}" -gt 1 ] || break
done
query() { echo "$(cat /run/secrets/db-password) $*" | nc -w 5 $DATABASE 5432; }
case "$verb $path" in
  "GET /health") body=ok;;
  "GET /notes") body="$TITLE, version VERSION
$(query select)";;
  "POST /notes") body=$(query insert "$(head -c $length)");;
  "POST /delete-all") body=$(query truncate);;
esac
printf 'HTTP/1.0 200 OK\\r\\nConnection: close\\r\\n\\r\\n%s\\n' "$body"
"""


class Reader:
    """Somebody who types what the page says. The images of the page are files here, as nothing is fetched."""

    def __init__(self, skerry: Skerry, folder: Path) -> None:
        self.skerry = skerry
        self._folder = folder
        self._images = {
            "docker.io/library/postgres:17": self._image("postgres", DATABASE, 5432),
            "example.org/notes:1": self._image("notes-1", NOTES.replace("VERSION", "1"), 8080),
            "example.org/notes:2": self._image("notes-2", NOTES.replace("VERSION", "2"), 8080),
        }
        shell = folder / "bin" / "skerry"
        shell.parent.mkdir()
        shell.write_text(f'#!/bin/sh\nexec {" ".join(map(str, COMMAND))} "$@"\n')
        shell.chmod(0o755)

    def write_config(self, title: str = "Notes") -> None:
        """The file of the page, with the address of this node's bridge."""
        found = re.search(r"^```ini\n(.*?)^```$", (DOCS / PAGE).read_text(), re.MULTILINE | re.DOTALL)
        assert found is not None
        _, instances = self.skerry.call("GET", "/instance/")
        bridge = instances["instances"][0]["ip"].rpartition(".")[0] + ".1"
        content = found[1].replace("192.0.2.10", bridge).replace("Notes", title)
        (self._folder / "notes.conf").write_text(content)

    def follow(self, title: str) -> list[str]:
        """Type the commands of a section, each of which must succeed; returns what each printed."""
        return [self.type(step.command) for step in steps(PAGE, title)]

    def type(self, command: str) -> str:
        for image, local in self._images.items():
            command = command.replace(image, local)
        known = environment(SKERRY_DATA=str(self.skerry.data))
        ended = subprocess.run(
            ["bash", "-c", command],
            cwd=self._folder,
            env={**known, "PATH": f"{self._folder / 'bin'}:{known['PATH']}"},
            capture_output=True,
            text=True,
            timeout=_LONGEST_S,
        )
        assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
        return ended.stdout

    def _image(self, name: str, script: str, port: int) -> str:
        layer = imagery.layer(
            imagery.file("bin/serve", script, mode=0o755),
            imagery.folder("var/lib/postgresql"),
            imagery.folder("var/lib/postgresql/data"),
        )
        serve = f"trap 'exit 0' TERM; nc -ll -p {port} -e /bin/serve & wait"
        imagery.write_oci_archive(
            imagery.busybox(layer, command=("sh", "-c", serve)), self._folder / f"{name}.tar"
        )
        return f"oci-archive:{self._folder}/{name}.tar"


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with running(tmp_path) as skerry:
        yield Reader(skerry, tmp_path)
    assert left_of(skerry) == []


def test_an_application_with_a_database_is_run_updated_and_restored_as_the_page_says(reader: Reader) -> None:
    reader.follow("Create a volume and a secret")
    _, described = reader.follow("Start the database")
    assert "READY" in described

    reader.write_config()
    *_, notes = reader.follow("Start the application")
    assert notes == "Notes, version 1\nthe first note\n"

    reader.write_config("Shopping")
    reader.follow("Change its configuration")
    read = "curl -sSf --retry 5 --retry-connrefused http://localhost:8080/notes"
    eventually_sync(lambda: reader.type(read) == "Shopping, version 1\nthe first note\n")

    *_, notes, snapshots = reader.follow("Take a snapshot, and update")
    assert notes == "Shopping, version 2\nthe first note\n"
    assert "before-2" in snapshots

    *_, notes = reader.follow("Restore after a mistake")
    assert notes == "Shopping, version 2\nthe first note\n"

    reader.follow("Delete everything")
    assert reader.skerry.call("GET", "/volume/")[1]["volumes"] == []
