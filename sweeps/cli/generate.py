"""`scale generate`: text from a saved model, streamed to the terminal as it is drawn."""

import math
import sys
from collections.abc import Iterator

import click

from scaling.cli.output import print_json, warn
from sweeps.attention_timing import one_thread
from sweeps.decoding import Decoding
from sweeps.generation import generate_text
from sweeps.model_file import load_model


class _Temperature(click.ParamType):
    """A number from 0 up; "inf" is the uniform limit."""

    name = "T"

    def convert(self, value, param, ctx):
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number.", param, ctx)
        if math.isnan(number) or number < 0:
            self.fail(f"{value} must be 0 (greedy) or above.", param, ctx)
        return number


@click.command("generate")
@click.argument("checkpoint", metavar="CHECKPOINT")
@click.option("--prompt", default="\n", metavar="TEXT", help="What to go on from (default: a new line).")
@click.option("--tokens", "n_tokens", type=click.IntRange(min=1), default=300, show_default=True, help="How many.")
@click.option("--temperature", type=_Temperature(), default=1.0, show_default=True, help="0 is greedy.")
@click.option("--top-k", type=click.IntRange(min=1), help="Draw among the k likeliest.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), help="Draw among the likeliest that reach p.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--no-cache", is_flag=True, help="Read the whole window again for every token.")
@click.option("--json", "as_json", is_flag=True, help="JSON for scripts.")
def command(checkpoint, prompt, n_tokens, temperature, top_k, top_p, seed, no_cache, as_json):
    """Go on from a prompt with the model in CHECKPOINT, a file that scale demo saved.

    \b
    scale generate demo/model.pt --prompt "The " --temperature 0.7
    scale generate demo/model.pt --temperature 0
    """
    saved = load_model(checkpoint)
    if not saved.masked:
        warn("this model was trained without the causal mask: it has never had to guess the next token.")
    decoding = Decoding(temperature=temperature, top_k=top_k, top_p=top_p)
    options = {"decoding": decoding, "seed": seed, "cache": not no_cache, "mask": saved.masked}
    with one_thread():
        pieces = generate_text(saved.model, prompt, n_tokens, **options)
        if as_json:
            settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
            print_json({"prompt": prompt, "text": "".join(pieces), "tokens": n_tokens, **settings})
        else:
            _stream(prompt, pieces)


def _stream(prompt: str, pieces: Iterator[str]) -> None:
    click.echo(_harmless(prompt), nl=False)
    for piece in pieces:
        click.echo(_harmless(piece), nl=False)
        sys.stdout.flush()
    click.echo()


def _harmless(text: str) -> str:
    """Text without the control characters that a terminal would obey; line ends and tabs stay."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
