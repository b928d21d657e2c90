"""grid.toml: what is read, what is refused, and with which words."""

import math
import random

import pytest

from scaling.accounting import count_parameters
from scaling.errors import ScalingError, SweepError
from sweeps.grid import KEYS, parse_grid, read_grid
from sweeps.plan import Numerics, plan, task_flops
from sweeps.recipe import RECIPE_KEYS
from sweeps.shapes import ASPECT_RATIO, nearest_shape

BASE = 'corpus = "python"\n'
SIZES = "sizes = [{ d_model = 64, n_layers = 2, n_heads = 4 }]\n"


def planned(text):
    grid = parse_grid(text)
    return plan(
        grid, corpus=grid.corpus, corpus_hash="0", device="cpu", numerics=lambda shape: Numerics("float32", "fused")
    )


def refused(text):
    with pytest.raises(SweepError) as error:
        planned(text)
    return str(error.value)


def test_quantities_are_read_as_people_write_them():
    grid = parse_grid(BASE + SIZES + 'tokens = ["1M", 2000000, 4e6]\nbatch_tokens = "1K"\nseeds = [3, 1]')
    assert grid.tokens == (1e6, 2e6, 4e6)
    assert grid.batch_tokens == 1000
    assert grid.seeds == (1, 3)


def test_a_range_is_even_in_the_logarithm_and_meets_its_ends():
    tokens = parse_grid(BASE + SIZES + 'tokens = { from = "1M", to = "16M", steps = 5 }').tokens
    assert tokens[0] == 1e6 and tokens[-1] == 16e6
    assert tokens == pytest.approx([1e6, 2e6, 4e6, 8e6, 16e6], rel=1e-12)


def test_budgets_give_every_size_the_tokens_that_meet_six_n_d():
    result = planned(BASE + 'params = ["40K", "140K"]\nbudgets = [1e12, 4e12]')
    assert len(result.configs) == 4
    for config in result.configs:
        cost = 6 * config.params * config.realised_tokens
        assert min(abs(cost / c - 1) for c in (1e12, 4e12)) < 1e-3


def test_runs_of_a_column_share_a_trunk_and_the_costliest_comes_first():
    result = planned(BASE + 'params = ["40K", "140K"]\ntokens = ["1M", "2M", "4M"]\nseeds = 2')
    assert len(result.configs) == 12 and len(result.tasks) == 4
    costs = [task_flops(task.configs) for task in result.tasks]
    assert costs == sorted(costs, reverse=True)
    assert result.flops < 0.7 * result.flops_apart


def test_token_counts_of_the_same_number_of_steps_are_one_run():
    result = planned(BASE + SIZES + "tokens = [1000000, 1000010]")
    assert len(result.configs) == 1
    assert any("trained once" in note for note in result.notes)


def test_sizes_that_meet_in_one_shape_are_merged_and_said_so():
    result = planned(BASE + 'params = ["45K", "45.1K"]\ntokens = ["1M"]')
    assert len(result.configs) == 1
    assert "same shape" in result.notes[0]


def test_a_shape_far_from_the_wanted_size_is_said_so():
    assert planned(BASE + 'params = ["20K"]\ntokens = ["1M"]').notes == (
        "the shape nearest to 20K parameters has 16,544 (d_model 16, 2 layers).",
    )
    assert planned(BASE + 'params = ["17K", "140K"]\ntokens = ["1M"]').notes == ()


def test_runs_that_cannot_share_a_trunk_are_said_why():
    result = planned(BASE + SIZES + 'tokens = ["50K", "1M", "2M", "30M"]')
    assert len(result.tasks) == 3
    assert result.notes == (
        "a warm-up is at most a tenth of its run: runs with 19 and 40 steps of it have trunks of their own.",
        "the batch grows with D: runs with 256 and 1,024 tokens a batch have trunks of their own.",
    )
    for together in ('tokens = ["1M", "2M"]\nseeds = 2', 'tokens = ["50K", "1M"]\nschedule = "cosine"'):
        assert planned(BASE + SIZES + together).notes == ()


def test_what_a_grid_names_reaches_every_run():
    result = planned(
        BASE + SIZES + 'tokens = ["1M"]\nlearning_rate = 1e-3\nbatch_tokens = 1024\nschedule = "cosine"\n'
        'weight_decay = 0.1\nwarmup_steps = 7\nclip = 2\ncontext = 64\npositions = "none"\ndata_seed = 5\nbeta2 = 0.99'
    )
    config = result.configs[0]
    assert (config.learning_rate, config.batch_tokens, config.schedule, config.context) == (1e-3, 1024, "cosine", 64)
    assert (config.weight_decay, config.warmup_steps, config.clip, config.positions) == (0.1, 7, 2.0, "none")
    assert (config.data_seed, config.seed, config.beta2) == (5, 0, 0.99)


def test_everything_that_the_recipe_lets_a_grid_override_is_a_key():
    assert set(RECIPE_KEYS) <= set(KEYS)


@pytest.mark.parametrize("wanted", [2e4, 4.5e4, 1.4e5, 1e6, 3e6, 1.24e8, 1e9, 7e10])
def test_the_nearest_shape_is_near_and_within_its_aspect_ratio(wanted):
    shape = nearest_shape(wanted, vocab_size=256, context=128, positions="learned")
    assert abs(math.log(count_parameters(shape).total / wanted)) < 0.25
    assert ASPECT_RATIO[0] <= shape.d_model / shape.n_layers <= ASPECT_RATIO[1]
    assert shape.d_model % shape.n_heads == 0


def test_above_a_million_parameters_the_nearest_shape_is_within_a_tenth():
    for exponent in range(60, 110):
        wanted = 10 ** (exponent / 10)
        shape = nearest_shape(wanted, vocab_size=256, context=128, positions="learned")
        assert abs(count_parameters(shape).total / wanted - 1) < 0.11


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BASE + "\nlearning_rte = 3\n", ['unknown key "learning_rte"', "line 3", "learning_rate", "Known keys"]),
        (BASE + SIZES + "tokens = [1e6]\n[slurm]\npartion = 'x'\n", ['"partion" in [slurm]', "line 5", "partition"]),
        (BASE + "sizes = [{ d_model = 64, layers = 2 }]\ntokens = [1e6]", ["layers", "line 2", "n_layers"]),
        (BASE + SIZES, ["either tokens", "budgets"]),
        (BASE + "tokens = [1e6]", ["either params", "sizes"]),
        (SIZES + "tokens = [1e6]", ["no corpus"]),
        (BASE + SIZES + 'tokens = ["1X"]', ["line 3", "tokens", "1X"]),
        (BASE + SIZES + "tokens = [-5]", ["tokens", "above zero"]),
        (BASE + SIZES + "tokens = [nan]", ["tokens", "finite"]),
        (BASE + SIZES + "tokens = []", ["tokens", "at least one"]),
        (BASE + SIZES + "tokens = { from = 1e6, to = 1e7 }", ["tokens", "steps"]),
        (BASE + SIZES + "tokens = { from = 1e7, to = 1e6, steps = 3 }", ["not a range"]),
        (BASE + SIZES + "tokens = [1e6]\ncontext = 0", ["line 4", "context", "at least 1"]),
        (BASE + SIZES + "tokens = [1e6]\nseeds = true", ["seeds", "whole number"]),
        (BASE + SIZES + "tokens = [1e6]\nschedule = 'linear'", ["schedule", "wsd, cosine"]),
        (BASE + "params = [100]\ntokens = [1e6]", ["line 2", "nearest shape", "16,544"]),
        (BASE + "params = [1e6]\naspect_ratio = [4, 2]\ntokens = [1e6]", ["aspect_ratio"]),
        (BASE + SIZES + "tokens = [100]", ["100 tokens", "below one batch", "256"]),
        (BASE + SIZES + "budgets = [1e6]", ["below one batch", "d_model 64"]),
        (BASE + SIZES + "tokens = [1e6]\nbatch_tokens = 1000", ["batch_tokens = 1,000", "context 128"]),
        (BASE + SIZES + "tokens = [1, 2", ["not valid TOML", "Unclosed"]),
        (BASE + "sizes = [{ d_model = 65, n_layers = 2, n_heads = 4 }]\ntokens = [1e6]", ["not divisible"]),
        (BASE + SIZES + "tokens = {from = 1, to = 1e9, steps = 1e7}", ["range"]),
        (BASE + SIZES + "tokens = [1e6]\nseeds = 1000000", ["runs are more than"]),
        ('corpus = "a\\u0007b"\n' + SIZES + "tokens = [1e6]", ["corpus", "one line of text"]),
    ],
)
def test_what_is_wrong_is_named(text, words):
    message = refused(text)
    assert message.startswith("grid.toml")
    for word in words:
        assert word in message, message
    assert "\n" not in message


@pytest.mark.parametrize(
    "line",
    [
        'partition = "gpu; rm -rf /"', 'account = "$(id)"', 'time = "10\\n#SBATCH --uid=0"', 'memory = "4 G"',
        'extra = ["--wrap=a b"]', 'extra = ["-N1"]', 'extra = ["--comment=\'x\'"]', 'qos = "`id`"', "cpus = 0",
    ],
)  # fmt: skip
def test_slurm_settings_hold_nothing_that_means_anything_to_a_shell(line):
    assert "slurm" not in refused(f"{BASE}{SIZES}tokens = [1e6]\n[slurm]\n{line}\n").partition(":")[0]


@pytest.mark.parametrize(
    "line",
    [
        'tensorboard = "/etc/runs"', 'tensorboard = "a/../../b"', 'tensorboard = "~/runs"', 'tensorboard = "http://h/x"',
        'tensorboard = "C:/x"', 'mlflow = "sqlite:////tmp/x.db"', 'mlflow = "file:///tmp/x"', 'mlflow = "../mlruns"',
        'wandb = "a/b/c"', 'mlflow = "https://me:secret@host#x"', 'mlflow = "a\\u0000b"',
    ],
)  # fmt: skip
def test_trackers_lie_below_the_working_directory_or_on_a_server(line):
    refused(f"{BASE}{SIZES}tokens = [1e6]\n[track]\n{line}\n")
    kept = '[track]\nmlflow = "sqlite:///m.db#x"\ntensorboard = "runs/"\n'
    assert parse_grid(f"{BASE}{SIZES}tokens = [1e6]\n{kept}").track.tensorboard == "runs/"
    assert parse_grid(f"{BASE}{SIZES}tokens = [1e6]\n[track]\nmlflow = 'https://h:5000#x'").track.mlflow


def test_files_that_are_no_grid_are_refused(tmp_path):
    big = tmp_path / "big.toml"
    big.write_bytes(b"#" * 2_000_000)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path, tmp_path / "missing.toml", big, binary):
        with pytest.raises(SweepError, match=path.name):
            read_grid(path)


def test_damaged_and_hostile_text_is_refused_and_never_crashes():
    """Seeded fuzz: bytes flipped, lines doubled, values swapped for nasty ones. Only ScalingError may come out."""
    good = (
        'corpus = "python"\nparams = { from = "40K", to = "400K", steps = 3 }\ntokens = ["1M", "2M"]\nseeds = [0, 1]\n'
        'learning_rate = 1e-3\nschedule = "wsd"\n[slurm]\npartition = "gpu"\ntime = "1-00:00:00"\n'
        'extra = ["--exclusive"]\n'
    )
    nasty = [
        '"../../etc/passwd"', "{}", "[[]]", "inf", "-1", '""', '"\\u0000"', "9" * 400, "1e999", "[nan]", "true",
        "2026-01-01", '"<script>"', '{ from = "x" }', '["a", 1, {}]', "0x7fffffffffffffff", '"' + "[" * 500 + '"',
    ]  # fmt: skip
    random_ = random.Random(0)
    read = 0
    for _ in range(600):
        lines = good.splitlines()
        kind = random_.randrange(3)
        if kind == 0:
            i = random_.randrange(len(lines))
            key = random_.choice([*KEYS, "params", "sizes", "slurm", "ray"])
            lines[i] = f"{key} = {random_.choice(nasty)}"
        elif kind == 1:
            i = random_.randrange(len(lines))
            lines[i] = lines[i].partition("=")[0] + "= " + random_.choice(nasty)
        text = "\n".join(lines)
        if kind == 2:
            at = random_.randrange(len(text))
            text = text[:at] + chr(random_.randrange(1, 0x2FF)) + text[at + random_.randrange(3) :]
        try:
            planned(text)
            read += 1
        except ScalingError as error:
            assert len(str(error)) < 2500
    assert read > 10
