"""The commands under one name, and what becomes of their errors."""

from __future__ import annotations

from typing import Annotated, Any

import typer
import typer.core

import groundspeed
from groundspeed.errors import GroundspeedError
from groundspeed.integrations.cli.answer import ask, generate
from groundspeed.integrations.cli.bench import bench
from groundspeed.integrations.cli.console import print_error
from groundspeed.integrations.cli.datastore import datastore
from groundspeed.integrations.cli.demo import demo
from groundspeed.integrations.cli.doctor import doctor
from groundspeed.integrations.cli.explain import explain
from groundspeed.integrations.cli.index import index
from groundspeed.integrations.cli.serve import serve
from groundspeed.integrations.cli.train import train

__all__ = ["app", "main"]

_INTERRUPTED = 130  # 128 + SIGINT, what shells expect


class _Commands(typer.core.TyperGroup):
    """Turns the errors that groundspeed raises on purpose into one line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except GroundspeedError as error:
            print_error(str(error))
            raise typer.Exit(1) from error
        except KeyboardInterrupt as interrupt:
            print_error("interrupted")
            raise typer.Exit(_INTERRUPTED) from interrupt


app = typer.Typer(
    cls=_Commands,
    help=groundspeed.__doc__,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(index)
app.command()(ask)
app.command()(generate)
app.command()(explain)
app.command()(serve)
app.command()(doctor)
app.command()(demo)
app.add_typer(bench, name="bench")
app.add_typer(datastore, name="datastore")
app.add_typer(train, name="train")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(groundspeed.__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line."""
    app()
