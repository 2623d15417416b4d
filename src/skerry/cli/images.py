"""`skerry image`: the images on this machine.

The verbs talk to the node over its unix socket (`dialling`); how far a pull has come is shown by `progress`.
gRPC is imported by the verbs when they run, never by this module.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import click

from skerry.cli import dialling, progress, shapes
from skerry.cli import output as printing
from skerry.cli.options import Aliases

if TYPE_CHECKING:
    from skerry.wire.proto import containers_pb2 as pb
    from skerry.wire.proto.containers_grpc import ImageServiceStub

_PATHS: Final = ("oci", "oci-archive", "docker-archive", "rootfs")


@click.group(cls=Aliases, aliases={"ls": "list", "rm": "remove"})
def image() -> None:
    """Fetch, list and remove images on this machine.

    An image comes from a registry or from files:

    \b
      example.org/team/web:1.2      a registry; 'web' alone is docker.io/library/web:latest
      example.org/web@sha256:...    exactly this one
      oci:PATH[:TAG]                a folder in the OCI layout
      oci-archive:FILE              a tar of one
      docker-archive:FILE           what 'docker save' writes
      rootfs:PATH                   a folder or a tarball that is the root file system
    """


@image.command()
@click.argument("reference", metavar="IMAGE")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but the id.")
@dialling.options
@printing.option
def pull(door: dialling.Door, reference: str, quiet: bool, output: str) -> None:
    """Fetch an image, or see whether its name leads to a newer one.

    With --output json each line is one object: how far it has come, and last the image.

    \b
      skerry image pull docker.io/library/nginx:1.27
      skerry image pull localhost:5000/web
      skerry image pull oci-archive:web.tar
    """
    from skerry.wire.proto.containers_pb2 import PullRequest

    request = PullRequest(reference=resolve(reference))

    async def pulling(stub: ImageServiceStub) -> pb.Image:
        with progress.shown(output, quiet=quiet) as show:
            return (await progress.to_the_end(stub.Pull, request, show)).image

    told = dialling.ask(door, dialling.images, pulling)
    if output == "json":
        printing.as_json_line({"image": shapes.plain(told)})
    elif quiet:
        click.echo(told.id)
    else:
        click.echo(f"pulled {reference}: {progress.short(told.id)}, {printing.size(told.bytes)}")


@image.command(name="list")
@dialling.options
@printing.option
def list_images(door: dialling.Door, output: str) -> None:
    """List images, one line for each of their names."""
    from skerry.wire.proto.containers_pb2 import ListImagesRequest

    found = dialling.ask(
        door, dialling.images, lambda stub: stub.List(ListImagesRequest(), timeout=dialling.CALL_S)
    )
    printing.show(
        {"images": [shapes.plain(each) for each in found]},
        output,
        columns=("image", "id", "size", "platform", "pulled"),
        rows=lambda value: [
            (
                name,
                progress.short(each["id"]),
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
@dialling.options
def remove(door: dialling.Door, names: tuple[str, ...]) -> None:
    """Remove images, by name or by the beginning of an id.

    An image goes with its last name. One that a container is made from stays.
    """
    from skerry.wire.proto.containers_pb2 import RemoveImageRequest

    async def removing(stub: ImageServiceStub, name: str) -> str:
        reply = await stub.Remove(RemoveImageRequest(image=resolve(name)), timeout=dialling.CALL_S)
        return f"removed {name}, freed {printing.size(reply.bytes_freed)}"

    dialling.ask_each(door, dialling.images, names, removing)


@image.command()
@dialling.options
@printing.option
def prune(door: dialling.Door, output: str) -> None:
    """Remove what no image with a name and no container needs."""
    from skerry.wire.proto.containers_pb2 import CollectRequest

    reply = dialling.ask(
        door, dialling.images, lambda stub: stub.Collect(CollectRequest(), timeout=dialling.CALL_S)
    )
    if output == "json":
        printing.as_json({"bytes_freed": reply.bytes_freed})
    else:
        click.echo(f"freed {printing.size(reply.bytes_freed)}")


def resolve(reference: str) -> str:
    """`reference` for the node, which does not know in which folder we are."""
    scheme, colon, path = reference.partition(":")
    if not colon or scheme not in _PATHS or not path:
        return reference
    return f"{scheme}:{os.path.abspath(path)}"
