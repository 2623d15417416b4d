"""`skerry completion`: the script that makes a shell complete commands, options and names."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes commands, options and names of objects in a shell.

    Names of instances, services, functions, nodes and others come from the server that the command would use.

    \b
      skerry completion bash > /etc/bash_completion.d/skerry        bash, for all users
      echo 'eval "$(skerry completion bash)"' >> ~/.bashrc          bash, for you
      echo 'eval "$(skerry completion zsh)"' >> ~/.zshrc            zsh
      skerry completion fish > ~/.config/fish/completions/skerry.fish
    """
    from click.shell_completion import get_completion_class

    from skerry.cli import shells

    shells.register()
    found = get_completion_class(shell)
    assert found is not None
    root = click.get_current_context().find_root().command
    click.echo(found(root, {}, "skerry", shells.VARIABLE).source(), nl=False)
