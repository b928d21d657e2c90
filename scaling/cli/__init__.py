"""The command line: each command lives in its own module, imported only when it is called."""

import importlib
import sys

import click

from scaling.errors import ScalingError

COMMANDS = {  # name: (module, one line for --help)
    "sweep": ("sweeps.cli.sweep", "Train many small transformers over a grid of N and D."),
    "status": ("sweeps.cli.status", "Where a sweep stands: running, done, failed, time left."),
    "fit": ("scaling.cli.fit", "Fit the loss law L(N, D) to a table of runs."),
    "allocate": ("scaling.cli.allocate", "Split a compute budget between parameters and tokens."),
    "audit": ("scaling.cli.audit", "Set known models against a law: were N and D in proportion?"),
    "convert": ("scaling.cli.convert", "Any table of runs, or a tracker's, as our runs.csv."),
    "law": ("scaling.cli.law", "What a law says: its constants, plateaus and bottlenecks."),
    "count": ("scaling.cli.count", "Parameters, FLOPs and memory of a shape, by convention."),
    "cost": ("scaling.cli.cost", "From which n attention costs more than the rest of a layer."),
    "demo": ("sweeps.cli.demo", "Train the lecture's small transformer in a minute and look inside."),
    "generate": ("sweeps.cli.generate", "Go on from a prompt with a trained model."),
}


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is asked for, so that --help starts at once."""

    def list_commands(self, ctx):
        return list(COMMANDS)

    def get_command(self, ctx, cmd_name):
        if cmd_name not in COMMANDS:
            return None
        try:
            module = importlib.import_module(COMMANDS[cmd_name][0])
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] in ("scaling", "sweeps"):
                raise
            hint = _install_hint(error.name)
            raise ScalingError(f"scale {cmd_name} needs {error.name}, which is not installed: {hint}") from error
        return module.command

    def format_commands(self, ctx, formatter):
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


def _install_hint(module: str) -> str:
    extras = {"torch": "train", "pyarrow": "parquet"}
    top = module.partition(".")[0]
    return f"pip install 'isoflop[{extras.get(top, top)}]'"


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="isoflop", prog_name="scale")
def cli():
    """How large a model to train, on how many tokens, for a given budget.

    The path: scale sweep grid.toml -> runs.csv -> scale fit -> fit.json -> scale allocate.
    """


def main() -> None:
    """Entry point of `scale`. Exit status: 0 done; 1 the input or the fit is at fault; 2 misuse of the command line."""
    try:
        cli(prog_name="scale")
    except ScalingError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(1)
