"""`skerry console`: a one-time link to the web console."""

from __future__ import annotations

import click

from skerry.cli import options
from skerry.cli import output as printing
from skerry.client.api import ApiClient, JsonReply


@click.command()
@options.server
@click.option("--no-open", is_flag=True, help="Only print the link.")
@printing.option
def console(server: ApiClient, no_open: bool, output: str) -> None:
    """Open the web console: print a link that signs a browser in as you, and open it.

    The link works once, within two minutes; the session that it begins has your role and namespaces, and ends
    after 12 hours, when you sign out, or when your token is revoked.

    \b
    Examples:
      skerry console
      skerry console --no-open
    """
    reply = server.post("console", "link")
    link = server.target.url.rstrip("/") + reply["path"]
    printing.show(
        JsonReply(reply, url=link),
        output,
        columns=printing.DETAILS,
        rows=lambda value: [("console", value["url"])],
    )
    from skerry.cli.settings import has_display

    if not no_open and output != "json" and has_display():
        import webbrowser

        webbrowser.open(link)
