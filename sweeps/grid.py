"""grid.toml: which sizes, token counts and seeds to train, read strictly. Torch-free.

    corpus = "python"
    params = { from = "30K", to = "500K", steps = 5 }     # or a list, or sizes = [{ d_model = 64, n_layers = 2 }]
    tokens = ["1M", "2M", "4M"]                           # or budgets = ["1e12", "4e12"]: 6 N D = C for every size
    seeds = [0]

Every key is in `KEYS`; docs/sweeps.md describes them. A key that is not known is refused, with its line.
"""

import math
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scaling.accounting import POSITIONS, Shape, count_parameters
from scaling.errors import InputError, SweepError
from scaling.quantities import format_quantity
from sweeps.recipe import ATTENTIONS, COOLDOWN_SHAPES, DTYPES, RECIPE_KEYS, SCHEDULES, Recipe, heads_for
from sweeps.shapes import ASPECT_RATIO, HEAD_WIDTH, NEAR_ENOUGH, nearest_shape
from sweeps.toml_reader import TomlReader
from sweeps.tracking import TrackSettings

MAX_RUNS = 100_000
MAX_BYTES = 1_000_000  # of a grid.toml; a longer one is not a grid


@dataclass(frozen=True)
class SlurmSettings:
    """[slurm]: what each task of the array job asks for."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: str | None = None  # as sbatch takes it: minutes, h:mm:ss, d-hh:mm:ss
    memory: str | None = None
    cpus: int = 1
    gpus: int = 0
    processes: int | None = None  # of one run, by torchrun; None: one for each GPU, one without
    max_parallel: int | None = None
    signal_seconds: int = 90  # before the time limit: checkpoint and requeue
    extra: tuple[str, ...] = ()  # further options, each beginning with --


@dataclass(frozen=True)
class RaySettings:
    """[ray]: the cluster, and what each task asks for."""

    address: str | None = None  # None: a new local one
    cpus: float = 1
    gpus: float = 0


@dataclass(frozen=True)
class Grid:
    """A grid.toml as written: what is None is decided by the recipe or by timing (docs/sweeps.md)."""

    corpus: str
    shapes: tuple[Shape, ...]
    tokens: tuple[float, ...] = ()
    budgets: tuple[float, ...] = ()
    seeds: tuple[int, ...] = (0,)
    data_seed: int | None = None
    context: int = 128
    schedule: str | None = None
    cooldown_fraction: float | None = None
    cooldown_shape: str | None = None
    batch_tokens: int | None = None
    learning_rate: float | None = None
    base_width: int | None = None
    warmup_steps: int | None = None
    weight_decay: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    clip: float | None = None
    dtype: str | None = None
    attention: str | None = None
    device: str | None = None
    workers: int | None = None
    retries: int = 2
    checkpoint_seconds: float = 120.0
    runs_per_device: int | None = None
    slurm: SlurmSettings = field(default_factory=SlurmSettings)
    ray: RaySettings = field(default_factory=RaySettings)
    track: TrackSettings = field(default_factory=TrackSettings)
    notes: tuple[str, ...] = ()  # what was merged, for people
    where: str = "grid.toml"

    def recipe(self) -> Recipe:
        """The recipe with what this grid names in place of its defaults."""
        return Recipe(**{key: value for key in RECIPE_KEYS if (value := getattr(self, key)) is not None})


def read_grid(path: str | Path) -> Grid:
    """Read a grid.toml. Raises SweepError, naming file, line and key, for anything that is not one."""
    path = Path(path)
    try:
        if path.is_dir():
            raise SweepError(f"{path} is a folder; give the grid.toml itself.")
        content = path.read_bytes()
    except OSError as error:
        raise SweepError(f"{path}: cannot be read ({error.strerror or error}).") from error
    if len(content) > MAX_BYTES:
        raise SweepError(f"{path}: {len(content):,} bytes are too many for a grid (at most {MAX_BYTES:,}).")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SweepError(f"{path}: is not UTF-8 text (byte {error.start}).") from error
    return parse_grid(text, where=str(path))


def parse_grid(text: str, *, where: str = "grid.toml") -> Grid:
    """A grid from the text of a grid.toml."""
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SweepError(f"{where}: is not valid TOML: {error or 'nested too deeply'}.") from error
    except ValueError as error:  # a number too long to convert
        raise SweepError(f"{where}: is not valid TOML: {error}.") from error
    try:
        return _Reader(text, where).grid(data)
    except InputError as error:
        raise SweepError(f"{where}: {error}") from error


class _Reader(TomlReader):
    """Reads one grid.toml."""

    def grid(self, data: dict) -> Grid:
        self.check_keys(data, [*KEYS, *SIZE_KEYS, *TABLES])
        values = {key: KEYS[key](self, key, value) for key, value in data.items() if key in KEYS}
        values |= {key: table(self, key, data[key]) for key, table in TABLES.items() if key in data}
        if "corpus" not in values:
            raise SweepError(f'{self.where}: no corpus. Write corpus = "python" or corpus = "text:PATH".')
        if ("tokens" in values) == ("budgets" in values):
            raise SweepError(f"{self.where}: give either tokens (a grid) or budgets (isoFLOP).")
        values = {key: value for key, value in values.items() if value is not None}
        shapes, notes = self.shapes(data, values)
        count = len(shapes) * len(values.get("tokens") or values["budgets"]) * len(values.get("seeds", (0,)))
        if count > MAX_RUNS:
            raise SweepError(f"{self.where}: {count:,} runs are more than one sweep takes ({MAX_RUNS:,}).")
        return Grid(shapes=shapes, notes=notes, where=self.where, **values)

    def shapes(self, data: dict, values: dict) -> tuple[tuple[Shape, ...], tuple[str, ...]]:
        if ("params" in data) == ("sizes" in data):
            raise SweepError(f"{self.where}: give either params (target counts) or sizes (explicit shapes).")
        base = {"vocab_size": 256, "context": values.get("context", 128), "positions": self.positions(data)}
        head_width = self.whole("head_width", data["head_width"]) if "head_width" in data else HEAD_WIDTH
        if "sizes" in data:
            if "aspect_ratio" in data:
                raise self.error("aspect_ratio", "goes with params, not with sizes")
            shapes = [
                self.size(i, item, base, head_width) for i, item in enumerate(self.items("sizes", data["sizes"]), 1)
            ]
            wanted = [""] * len(shapes)
        else:
            aspect = self.aspect(data["aspect_ratio"]) if "aspect_ratio" in data else ASPECT_RATIO
            targets = self.quantities("params", data["params"])
            try:
                shapes = [nearest_shape(n, aspect_ratio=aspect, head_width=head_width, **base) for n in targets]
            except SweepError as error:
                raise SweepError(f"{self.where}{self.line('params')}: {error}") from error
            wanted = [f"params {n:g}" for n in targets]
            far = [_far_off(n, shape) for n, shape in zip(targets, shapes, strict=True)]
            distinct, notes = self.distinct(shapes, wanted)
            return distinct, (*filter(None, far), *notes)
        return self.distinct(shapes, wanted)

    def distinct(self, shapes: list[Shape], wanted: list[str]) -> tuple[tuple[Shape, ...], tuple[str, ...]]:
        kept: dict[Shape, str] = {}
        notes = []
        for shape, name in zip(shapes, wanted, strict=True):
            if shape in kept:
                same = f"{name} and {kept[shape]} have the same" if name else "two sizes are the same"
                notes.append(f"{same} shape (d_model {shape.d_model}, {shape.n_layers} layers); it is trained once.")
            else:
                kept[shape] = name
        return tuple(kept), tuple(notes)

    def size(self, number: int, item: Any, base: dict, head_width: int) -> Shape:
        name = f"sizes[{number}]"
        if not isinstance(item, dict):
            raise self.error("sizes", f"item {number} is {item!r}, not a table {{ d_model = 64, n_layers = 2 }}")
        known = ("d_model", "n_layers", "n_heads", "d_ff")
        for key in item:
            if key not in known:
                raise self.error("sizes", f'item {number} has an unknown key "{key}". Known keys: {", ".join(known)}')
        missing = [key for key in known[:2] if key not in item]
        if missing:
            raise self.error("sizes", f"item {number} has no {missing[0]}")
        numbers = {key: self.whole(f"{name}.{key}", value) for key, value in item.items()}
        d = numbers["d_model"]
        numbers.setdefault("n_heads", heads_for(d, head_width=head_width))
        numbers.setdefault("d_ff", 4 * d)
        return Shape(**numbers, **base)

    def positions(self, data: dict) -> str:
        return self.one_of("positions", data.get("positions", "learned"), POSITIONS)

    def aspect(self, value: Any) -> tuple[float, float]:
        numbers = [self.number("aspect_ratio", item) for item in self.items("aspect_ratio", value)]
        if len(numbers) != 2 or not 0 < numbers[0] < numbers[1]:
            raise self.error("aspect_ratio", f"{value!r} must be [smallest, largest] of d_model / n_layers")
        return numbers[0], numbers[1]


def _far_off(wanted: float, shape: Shape) -> str:
    """A note where the nearest shape is further from the wanted N than shapes usually are."""
    found = count_parameters(shape).total
    if abs(math.log(found / wanted)) <= NEAR_ENOUGH:
        return ""
    return (
        f"the shape nearest to {format_quantity(wanted)} parameters has {found:,} (d_model {shape.d_model}, "
        f"{shape.n_layers} layers)."
    )


def _or_auto(read: Callable) -> Callable:
    """The key may also be "auto": the same as leaving it out."""
    return lambda reader, key, value: None if value == "auto" else read(reader, key, value)


def _number(lo: float, hi: float) -> Callable:
    return lambda reader, key, value: reader.number(key, value, lo, hi)


def _whole(lo: int) -> Callable:
    return lambda reader, key, value: reader.whole(key, value, lo)


def _choice(*known: str) -> Callable:
    return lambda reader, key, value: reader.one_of(key, value, known)


def _quantities(reader: _Reader, key: str, value: Any) -> tuple[float, ...]:
    return reader.quantities(key, value)


def _seeds(reader: _Reader, key: str, value: Any) -> tuple[int, ...]:
    """A list of seeds, or how many: 3 is [0, 1, 2]."""
    if not isinstance(value, list):
        return tuple(range(min(reader.whole(key, value), MAX_RUNS + 1)))
    return tuple(sorted({reader.whole(key, item, 0) for item in reader.items(key, value)}))


def _corpus(reader: _Reader, key: str, value: Any) -> str:
    return reader.words(key, value)


KEYS: dict[str, Callable] = {
    "corpus": _corpus,
    "tokens": _quantities,
    "budgets": _quantities,
    "seeds": _seeds,
    "data_seed": _or_auto(_whole(0)),
    "context": _whole(1),
    "schedule": _or_auto(_choice(*SCHEDULES)),
    "cooldown_fraction": _or_auto(_number(0.0, 0.9)),
    "cooldown_shape": _or_auto(_choice(*COOLDOWN_SHAPES)),
    "batch_tokens": _or_auto(_whole(1)),
    "learning_rate": _or_auto(_number(1e-9, 100.0)),
    "base_width": _or_auto(_whole(1)),
    "warmup_steps": _or_auto(_whole(0)),
    "weight_decay": _or_auto(_number(0.0, 10.0)),
    "beta1": _or_auto(_number(0.0, 0.9999)),
    "beta2": _or_auto(_number(0.0, 0.999999)),
    "clip": _or_auto(_number(1e-6, 1e6)),
    "dtype": _or_auto(_choice(*DTYPES)),
    "attention": _or_auto(_choice(*ATTENTIONS)),
    "device": _or_auto(_choice("cpu", "cuda")),
    "workers": _or_auto(_whole(1)),
    "retries": _whole(0),
    "checkpoint_seconds": _number(0.01, 1e7),
    "runs_per_device": _or_auto(_whole(1)),
}
SIZE_KEYS = ("params", "sizes", "positions", "aspect_ratio", "head_width")


def _slurm(reader: _Reader, table: str, data: Any) -> SlurmSettings:
    return SlurmSettings(**_table(reader, table, data, SLURM_KEYS))


def _ray(reader: _Reader, table: str, data: Any) -> RaySettings:
    return RaySettings(**_table(reader, table, data, RAY_KEYS))


def _track(reader: _Reader, table: str, data: Any) -> TrackSettings:
    return TrackSettings(**_table(reader, table, data, TRACK_KEYS))


def _table(reader: _Reader, table: str, data: Any, keys: dict[str, Callable]) -> dict:
    if not isinstance(data, dict):
        raise reader.error(table, f"must be a table, [{table}]")
    reader.check_keys(data, list(keys), table)
    return {key: keys[key](reader, key, value) for key, value in data.items()}


def _matching(pattern: str, example: str) -> Callable:
    """Text of one form only, so that nothing in it means anything to a shell or to sbatch."""
    compiled = re.compile(pattern)

    def read(reader: _Reader, key: str, value: Any) -> str:
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        if not isinstance(text, str) or not compiled.fullmatch(text):
            raise reader.error(key, f"{value!r} is not of the form {example}")
        return text

    return read


def _options(reader: _Reader, key: str, value: Any) -> tuple[str, ...]:
    option = _matching(r"--[a-z][a-z-]*(=[A-Za-z0-9_.,:@%/+*&|()\[\]-]*)?", "--option=value, without spaces or quotes")
    return tuple(option(reader, key, item) for item in reader.items(key, value))


def _below(example: str, servers: tuple[str, ...] = ()) -> Callable:
    """A server, or a place below the working directory: a grid from someone else writes nowhere else."""
    form = _matching(r"[^\s\x00-\x1f](.{0,1000}\S)?", example)

    def read(reader: _Reader, key: str, value: Any) -> str:
        text = form(reader, key, value)
        path = text.partition("#")[0].removeprefix("sqlite:///").removeprefix("file:").replace("\\", "/")
        outside = path.startswith(("/", "~")) or ":" in path or ".." in path.split("/") or not path.isprintable()
        if "@" in path:
            raise reader.error(
                key, "an address with a name or password in it is refused; use the tracker's own variables"
            )
        if outside and not text.startswith(servers or "\n"):
            raise reader.error(key, f"{value!r} is not below the working directory. Write it as in {example}")
        return text

    return read


_NAME = _matching(r"[A-Za-z0-9_.,@+-]{1,100}", "a name such as gpu-long")
SLURM_KEYS: dict[str, Callable] = {
    "partition": _NAME,
    "account": _NAME,
    "qos": _NAME,
    "time": _matching(r"(\d{1,4}-)?\d{1,5}(:\d{1,2}){0,2}", "minutes, h:mm:ss or d-hh:mm:ss"),
    "memory": _matching(r"\d{1,9}[KMGT]?", "4G"),
    "cpus": _whole(1),
    "gpus": _whole(0),
    "processes": _or_auto(_whole(1)),
    "max_parallel": _whole(1),
    "signal_seconds": _whole(1),
    "extra": _options,
}
RAY_KEYS: dict[str, Callable] = {
    "address": _matching(r"[A-Za-z0-9_.:/@-]{1,200}", "auto or ray://host:10001"),
    "cpus": _number(0.0, 1e4),
    "gpus": _number(0.0, 1e4),
}
TRACK_KEYS: dict[str, Callable] = {
    "wandb": _matching(r"[A-Za-z0-9_.-]{1,128}(/[A-Za-z0-9_.-]{1,128})?", "my-team/my-project"),
    "mlflow": _below("sqlite:///mlflow.db#my-experiment", servers=("http://", "https://", "databricks")),
    "tensorboard": _below("runs/"),
}
TABLES: dict[str, Callable] = {"slurm": _slurm, "ray": _ray, "track": _track}
