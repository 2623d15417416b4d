"""`skerry image`: the images on this machine, and a sample of one.

The commands talk to the node over its unix socket (`node_socket`); `pull_progress` shows the progress of
pulls. gRPC is imported by the commands when they run, never by this module.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from skerry.cli import image_references, message_format, options, pull_progress
from skerry.cli import output as printing
from skerry.cli.errors import call_node_each
from skerry.cli.options import AliasGroup
from skerry.client import discovery, node_socket

if TYPE_CHECKING:
    from skerry.transport.proto import containers_pb2 as pb
    from skerry.transport.proto.containers_grpc import ImageServiceStub


@click.group(cls=AliasGroup, aliases={"ls": "list", "rm": "remove"})
def image() -> None:
    """Pull, list and remove images on this machine.

    An image comes from a registry or from files:

    \b
      example.org/team/web:1.2      a registry; 'web' alone is docker.io/library/web:latest
      example.org/web@sha256:...    by digest
      oci:PATH[:TAG]                a folder in the OCI layout
      oci-archive:FILE              a tar archive of such a folder
      docker-archive:FILE           an archive by 'docker save'
      rootfs:PATH                   a folder or a tarball that is the root file system
    """


@image.command()
@click.argument("reference", metavar="IMAGE")
@click.option("-q", "--quiet", is_flag=True, help="Print only the id.")
@options.node
@printing.option
def pull(node: node_socket.NodeSocket, reference: str, quiet: bool, output: str) -> None:
    """Pull an image, or a newer version of it.

    With --output json each line is an object: the progress, and last the image.

    \b
      skerry image pull docker.io/library/nginx:1.27
      skerry image pull localhost:5000/web
      skerry image pull oci-archive:web.tar
    """
    from skerry.transport.proto.containers_pb2 import PullRequest

    request = PullRequest(reference=image_references.resolve(reference))

    async def pulling(stub: ImageServiceStub) -> pb.Image:
        with pull_progress.show_progress(output, quiet=quiet) as show:
            return (await pull_progress.run_with_progress(stub.Pull, request, show)).image

    reply = node_socket.call_node(node, node_socket.images, pulling)
    if output == "json":
        printing.as_json_line({"image": message_format.message_to_dict(reply)})
    elif quiet:
        click.echo(reply.id)
    else:
        click.echo(f"pulled {reference}: {pull_progress.short(reply.id)}, {printing.size(reply.bytes)}")


@image.command(name="list")
@options.node
@printing.option
def list_images(node: node_socket.NodeSocket, output: str) -> None:
    """List images, one line per name."""
    from skerry.transport.proto.containers_pb2 import ListImagesRequest

    found = node_socket.call_node(
        node, node_socket.images, lambda stub: stub.List(ListImagesRequest(), timeout=node_socket.CALL_S)
    )
    printing.show(
        {"images": [message_format.message_to_dict(each) for each in found]},
        output,
        columns=("image", "id", "size", "platform", "pulled"),
        rows=lambda value: [
            (
                name,
                pull_progress.short(each["id"]),
                printing.size(each["bytes"]),
                each["platform"],
                printing.ago(each["pulled_at"]),
            )
            for each in value["images"]
            for name in each["names"] or ["none"]
        ],
    )


@image.command()
@click.argument("names", metavar="IMAGE...", nargs=-1, required=True)
@options.node
def remove(node: node_socket.NodeSocket, names: tuple[str, ...]) -> None:
    """Remove images by name or by a prefix of the id.

    An image is removed with its last name. An image that a container uses is kept.
    """
    from skerry.transport.proto.containers_pb2 import RemoveImageRequest

    async def removing(stub: ImageServiceStub, name: str) -> str:
        request = RemoveImageRequest(image=image_references.resolve(name))
        reply = await stub.Remove(request, timeout=node_socket.CALL_S)
        return f"removed {name}, freed {printing.size(reply.bytes_freed)}"

    call_node_each(node, node_socket.images, names, removing)


@image.command()
@click.argument("folder", required=False, type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--data", metavar="DIR", envvar="SKERRY_DATA", help="Data folder of the node. [env: SKERRY_DATA]"
)
def sample(folder: Path | None, data: str | None) -> None:
    """Make a small image of this machine's own Python: a web server, to try Skerry without a registry.

    Writes it to FOLDER in the OCI layout, by default to 'sample' in the data folder, and prints its
    reference. It listens on port 80. Nothing is downloaded, and nodes on other machines do not have it.

    \b
      skerry run --name web -p 8080:80 $(skerry image sample)
      curl http://127.0.0.1:8080
    """
    from skerry.demo import sample_image

    target = folder.absolute() if folder else discovery.data_folder(data) / "sample"
    try:
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        sample_image.write(target)
    except sample_image.SampleImageFailed as error:
        raise click.ClickException(f"The sample image cannot be made: {error}") from None
    except OSError as error:
        raise click.ClickException(
            f"{target} cannot be written: {error.strerror}. Name another folder."
        ) from None
    click.echo(f"oci:{target}")


@image.command()
@options.node
@printing.option
def prune(node: node_socket.NodeSocket, output: str) -> None:
    """Remove data that no named image and no container uses."""
    from skerry.transport.proto.containers_pb2 import CollectRequest

    reply = node_socket.call_node(
        node, node_socket.images, lambda stub: stub.Collect(CollectRequest(), timeout=node_socket.CALL_S)
    )
    if output == "json":
        printing.as_json({"bytes_freed": reply.bytes_freed})
    else:
        click.echo(f"freed {printing.size(reply.bytes_freed)}")
