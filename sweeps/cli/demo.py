"""`scale demo`: train the lecture's transformer while one watches, then look into it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click
import torch

from scaling.accounting import block_parameters
from scaling.cli.output import format_table, print_json
from scaling.cli.text_chart import line_chart
from scaling.errors import InputError
from scaling.files import to_json, write_text
from scaling.plots.demo import heads_figure, loss_figure, mask_figure, name_byte, temperature_figure
from scaling.plots.style import save_figure
from scaling.quantities import format_quantity, parse_positive
from sweeps.attention_timing import one_thread
from sweeps.decoding import Decoding
from sweeps.demo import LECTURE, MANUAL, DemoConfig, DemoRun, temperature_sweep, train_demo, view_head
from sweeps.generation import generate_text
from sweeps.model import attention_weights
from sweeps.model_file import save_model

TEMPERATURES = (0.1, 0.5, 1.0, 2.0, 10.0)
_LOOK = 16  # bytes of the prompt that the pictures of attention show


@click.command("demo")
@click.option("--out", default="demo", show_default=True, metavar="DIR", help="Where model and pictures go.")
@click.option("--tokens", default="2.5M", show_default=True, metavar="D", help="Training tokens (bytes).")
@click.option("--positions", type=click.Choice(("learned", "sinusoidal", "rotary", "none")), default="learned",
              show_default=True)  # fmt: skip
@click.option("--corpus", default=MANUAL, show_default=True, metavar="TEXT",
              help='"manual" (Python\'s language reference), "python" (its library) or "text:PATH".')  # fmt: skip
@click.option("--prompt", default="The return value of the f", show_default=True, metavar="TEXT")
@click.option("--cheat", is_flag=True, help="Train it once more without the causal mask, to see what that does.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="JSON for scripts.")
def command(out, tokens, positions, corpus, prompt, cheat, seed, as_json):
    """Train the lecture's transformer (2 blocks, d = 64, 4 heads) in about a minute, on one core, and look inside.

    \b
    scale demo
    scale demo --cheat --out demo-cheat
    scale generate demo/model.pt --prompt "The "
    """
    if not prompt:
        raise InputError("--prompt is empty: give at least one character to go on from.")
    folder, D = _folder(out), round(parse_positive(tokens, name="--tokens"))
    shape = replace(LECTURE, positions=positions)
    config = DemoConfig(shape=shape, corpus=corpus, tokens=D, seed=seed)
    runs = {"causal mask": config}
    if cheat:
        runs["without the mask"] = DemoConfig(shape=shape, corpus=corpus, tokens=D, seed=seed, mask=False)
    with one_thread():
        done = {name: _train(name, run, quiet=as_json) for name, run in runs.items()}
        results = {name: {**run.summary(), "sample": _sample(run, prompt, seed)} for name, run in done.items()}
        files = _write(folder, done, prompt, seed)
        sweep = temperature_sweep(done["causal mask"].model, prompt.encode(), TEMPERATURES, n_tokens=64, seed=seed)
        files.append(_save(folder / "temperature.png", temperature_figure(sweep, prompt)))
    samples = [{key: row[key] for key in ("temperature", "entropy", "text")} for row in sweep]
    files.append(folder / "demo.json")
    data = {"runs": results, "prompt": prompt, "temperatures": samples, "files": [str(f) for f in files]}
    write_text(folder / "demo.json", to_json(data) + "\n")
    if as_json:
        print_json(data)
    else:
        click.echo(_text(data, config))


def _train(name: str, config: DemoConfig, *, quiet: bool) -> DemoRun:
    if not quiet:
        block = block_parameters(config.shape)
        click.echo(f"Training, {name}: {config.shape.n_layers} blocks of {block:,} parameters, {_tokens(config)}")
    with _watcher(quiet) as report:
        return train_demo(config, report=report)


@contextmanager
def _watcher(quiet: bool) -> Iterator[Callable[[DemoRun], None]]:
    """A live chart on a terminal, a line now and then elsewhere, nothing when quiet."""
    if quiet:
        yield lambda run: None
    elif sys.stdout.isatty():
        from rich.live import Live
        from rich.text import Text

        with Live(refresh_per_second=8) as live:
            yield lambda run: live.update(Text(_chart(run)))
    else:
        yield _print_sometimes


def _chart(run: DemoRun) -> str:
    losses = [loss for _, loss in run.curve]
    seen = run.curve[-1][0]
    share, left = seen / run.config.tokens, run.seconds * max(0.0, run.config.tokens / seen - 1)
    drawn = max(2, round(60 * min(1.0, share)))
    line = f"{share:4.0%}  {format_quantity(seen)} bytes  loss {losses[-1]:.3f} nats  {left:.0f} s to go"
    return f"{line_chart(losses, width=drawn, high=5.55, low=0.0)}\n       {line}"


def _print_sometimes(run: DemoRun) -> None:
    tenths = [10 * seen // run.config.tokens for seen, _ in run.curve[-2:]]
    if len(tenths) == 1 or tenths[0] != tenths[-1]:
        seen, loss = run.curve[-1]
        click.echo(f"  {format_quantity(seen):>8} bytes  loss {loss:.3f} nats  {run.seconds:5.1f} s")


def _write(folder: Path, done: dict[str, DemoRun], prompt: str, seed: int) -> list[Path]:
    """The models and the pictures of the masked one."""
    files = []
    for run in done.values():
        path = folder / ("model.pt" if run.config.mask else "model-without-mask.pt")
        save_model(path, run.model, about=run.summary())
        files.append(path)
    held_out = {name: run.held_out_loss for name, run in done.items()}
    files.append(_save(folder / "loss.png", loss_figure({n: r.curve for n, r in done.items()}, held_out=held_out)))
    model, seen = done["causal mask"].model, list(prompt.encode())[:_LOOK]
    labels, view = [name_byte(token) for token in seen], view_head(model, seen)
    files.append(_save(folder / "mask.png", mask_figure(view.scores, view.mask, view.weights, labels)))
    weights = [layer[0].numpy() for layer in attention_weights(model, torch.tensor([seen]))]
    files.append(_save(folder / "heads.png", heads_figure(weights, labels)))
    return files


def _sample(run: DemoRun, prompt: str, seed: int) -> str:
    decoding = Decoding(temperature=0.7)
    return "".join(generate_text(run.model, prompt, 160, decoding=decoding, seed=seed, mask=run.config.mask))


def _text(data: dict, config: DemoConfig) -> str:
    header = ["Loss, nats per byte", "training", "held out", "byte after a window", "seconds"]
    losses = ("training_loss", "held_out_loss", "next_byte_loss")
    rows = [
        [name, *(f"{run[key]:.3f}" for key in losses), f"{run['seconds']:.0f}"] for name, run in data["runs"].items()
    ]
    parts = [format_table(header, rows)]
    counted = next(iter(data["runs"].values()))
    parts.append(f"Parameters: {counted['block_params']:,} per block, {counted['params']:,} in all.")
    for name, run in data["runs"].items():
        parts.append(f"{name}, T = 0.7: {_shown(data['prompt'] + run['sample'])}")
    cooler = [[f"{r['temperature']:g}", f"{r['entropy']:.2f}", _shown(r["text"])[:66]] for r in data["temperatures"]]
    parts.append(format_table(["T", "entropy", "goes on with"], cooler, left=3))
    parts.append("Written: " + ", ".join(data["files"]))
    return "\n\n".join(parts)


def _shown(text: str) -> str:
    """On one line, with nothing that a terminal would obey."""
    return "".join(c if c.isprintable() else {"\n": "⏎"}.get(c, "·") for c in text)


def _save(path: Path, figure) -> Path:
    save_figure(figure, path)
    return path


def _folder(out: str) -> Path:
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {out} is a file; give a folder.")
    return folder


def _tokens(config: DemoConfig) -> str:
    return f"{format_quantity(config.tokens)} bytes of {config.corpus}"
