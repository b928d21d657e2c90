"""scale allocate: its JSON, its text, its files, its exit status, and how little it loads."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from scaling.cli import cli
from scaling.errors import ScalingError
from scaling.fit_file import encode_draws
from scaling.laws import PUBLISHED, law_to_dict

KEYS = {"budget", "law", "params", "tokens", "flops", "tokens_per_param", "loss", "intervals", "near_optimal"}
KEYS |= {"extrapolation_factor", "shape", "cost", "warnings"}


def run(*arguments):
    return CliRunner().invoke(cli, ["allocate", *map(str, arguments)], catch_exceptions=False)


def as_json(*arguments) -> dict:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def shell(*arguments):
    code = "import sys; from scaling.cli import main; sys.argv = ['scale', *sys.argv[1:]]; main()"
    command = [sys.executable, "-c", code, "allocate", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def fit(tmp_path):
    rng = np.random.default_rng(0)
    law = PUBLISHED["besiroglu2024"].law
    names = ("E", "A", "B", "alpha", "beta")
    draws = np.array(list(law.constants().values())) * (1 + 0.01 * rng.normal(size=(200, 5)))
    path = tmp_path / "fit.json"
    path.write_text(json.dumps({"law": law_to_dict(law), "status": "converged", "draws": encode_draws(names, draws)}))
    return path


def test_the_json_that_scripts_rely_on(fit):
    for data in (as_json("--budget", "1e24"), as_json("--budget", "1e24", "--law", fit)):
        assert set(data) >= KEYS
        assert data["budget"]["flops"] == 1e24
        assert data["law"]["form"] == "chinchilla" and data["law"]["alpha"] == 0.3478
        assert set(data["near_optimal"]) >= {"params", "loss_within"}
        assert isinstance(data["warnings"], list)
    assert set(data["intervals"]) >= {"params", "tokens", "tokens_per_param", "loss"}
    assert as_json("--budget", "1e24", "--law", "hoffmann2022")["intervals"] is None


def test_numbers_keep_full_precision():
    data = as_json("--budget", "5.76e23")
    assert data["params"] == PUBLISHED["besiroglu2024"].law.N_opt(5.76e23)


def test_the_reference_answers():
    assert as_json("--budget", "1e21", "--law", "hoffmann2022-rounded")["params"] == pytest.approx(1.824e9, rel=5e-4)
    text = run("--budget", "5.76e23").stdout
    assert "72.25B" in text and "1.329T" in text and "besiroglu2024" in text


def test_the_law_is_always_named_with_its_constants_and_source():
    text = run("--budget", "1e21", "--law", "hoffmann2022").stdout
    assert "hoffmann2022" in text and "alpha 0.339171" in text and "arXiv:2203.15556" in text


def test_laws_and_devices_are_listed():
    laws, gpus = run("--list-laws").stdout, run("--list-gpus").stdout
    assert all(name in laws and entry.source in laws for name, entry in PUBLISHED.items())
    assert "besiroglu2024 (default)" in laws
    assert "bf16 989" in gpus and "2026-02" in gpus


def test_dollars_as_people_write_them():
    arguments = ["--dollars", "10M", "--gpu", "h100", "--price", "2.50", "--mfu", "0.40"]
    data = as_json(*arguments)
    assert data["budget"]["flops"] == pytest.approx(1e7 / 2.5 * 3600 * 989e12 * 0.4)
    assert data["cost"]["dollars"] == pytest.approx(1e7) and data["cost"]["assumed"] == []
    assert "$10,000,000 = 4,000,000 GPU-hours at $2.50" in run(*arguments).stdout


def test_gpus_for_days():
    data = as_json("--gpus", "1000", "--days", "30", "--gpu", "a100")
    assert data["budget"]["gpu_hours"] == 720_000 and data["cost"]["days"] == pytest.approx(30)
    assert as_json("--budget", "1e22", "--gpus", "64")["cost"]["days"] > 0


def test_mfu_of_a_past_run():
    arguments = ["--params", "70B", "--tokens", "2T", "--gpu", "a100", "--gpu-hours-used", "1720320"]
    assert as_json(*arguments)["cost"]["implied_mfu"] == pytest.approx(0.435, abs=5e-4)
    assert "MFU 0.435" in run(*arguments).stdout


def test_every_section_of_the_text(fit):
    text = run(
        *("--budget", "1e23", "--law", fit, "--law", "all", "--inference-tokens", "100B", "--unique-tokens", "200B"),
        *("--compare", "70B", "--compare", "10B,1T", "--gpus", "512"),
    ).stdout
    for words in (
        "95% interval",
        "nearly as good",
        "Twice the compute buys",
        "Lagrange multiplier",
        "lifetime",
        "epochs",
        "compute factor",
        "Robust over the draws",
        "Robust across them",
        "hoffmann2022-rounded",
        "Shape   d = ",
        "Memory",
        "days on 512 GPUs",
        "kWh",
        "200B distinct tokens",
    ):
        assert words in text, words


def test_warnings_go_to_standard_error(fit):
    result = run("--budget", "1e24", "--law", "hoffmann2022", "--json")
    assert "Warning: No intervals" in result.stderr
    assert json.loads(result.stdout)["warnings"]


def test_files_are_written_and_hold_the_same(tmp_path):
    out, grid = tmp_path / "answer.json", tmp_path / "grid.toml"
    data = as_json("--budget", "1e14", "--vocab", 256, "--context", 128, "--out", out, "--grid", grid)
    assert json.loads(out.read_text()) == data
    assert f"tokens = [{data['shape']['tokens']}]" in grid.read_text()


@pytest.mark.parametrize("kind", ["size", "isoflop", "frontier"])
def test_pictures(tmp_path, fit, kind):
    path = tmp_path / "picture.png"
    arguments = ["--budget", "5.76e23", "--law", fit, "--compare", "175B", "--plot", path, "--plot-kind", kind]
    assert run(*arguments).exit_code == 0
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 20_000


@pytest.mark.parametrize("extra", [["--inference-tokens", "1T"], ["--flops", "exact"], ["--max-tokens", "10B"]])
def test_pictures_under_constraints(tmp_path, extra):
    path = tmp_path / "picture.svg"
    assert run("--budget", "1e21", *extra, "--plot", path).exit_code == 0
    assert "<svg" in path.read_text()


BAD = [
    (["--budget", "0"], "budget: 0 must be above zero"),
    (["--budget", "-1e21"], "above zero"),
    (["--budget", "inf"], 'cannot read "inf"'),
    (["--budget", "nan"], 'cannot read "nan"'),
    (["--budget", "lots"], 'cannot read "lots"'),
    (["--budget", "1e21", "--law", "chinchilla"], "Known laws: besiroglu2024"),
    (["--budget", "1e21", "--law", "none.json"], "no such file"),
    (["--budget", "1e21", "--law", "/"], "is a folder"),
    (["--dollars", "1M", "--gpu", "h300"], "Known: h100"),
    (["--budget", "1e21", "--dollars", "1M"], "are two budgets"),
    (["--budget", "1e21", "--aspect", "100"], "LOW:HIGH"),
    (["--budget", "1e21", "--context", "0"], "context = 0"),
    (["--budget", "1e21", "--grid", "grid.toml"], "vocabulary 32,000"),
    (["--budget", "1e21", "--plot", "picture.doc"], "Use one of .png"),
    (["--budget", "1e21", "--out", "/"], "is a folder"),
    (["--target-loss", "1.5"], "irreducible loss"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input_has_one_message(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ScalingError, match=message):
        run(*arguments)
    assert not list(tmp_path.iterdir())


def test_bad_input_exits_with_1_and_misuse_with_2():
    bad = shell("--budget", "0")
    assert (bad.returncode, bad.stdout) == (1, "")
    assert bad.stderr.startswith("Error: budget") and bad.stderr.count("\n") == 1
    for misuse in ([], ["--frobnicate"], ["--budget"], ["--budget", "1e21", "--flops", "9nd"]):
        assert shell(*misuse).returncode == 2


def loaded(*arguments) -> list[str]:
    code = (
        "import sys; from click.testing import CliRunner; from scaling.cli import cli\n"
        "result = CliRunner().invoke(cli, sys.argv[1:], catch_exceptions=False)\n"
        "assert result.exit_code == 0, result.output\n"
        "print([m for m in ('torch', 'scipy', 'pandas', 'matplotlib', 'numpy') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1].replace("'", '"'))


def test_published_laws_load_not_even_numpy(fit):
    for options in ([], ["--unique-tokens", "1B"], ["--law", "all"], ["--max-params", "1B", "--context", "99999"]):
        assert loaded("allocate", "--budget", "1e21", *options) == []
    assert loaded("allocate", "--budget", "1e21", "--law", fit) == ["numpy"]
    assert loaded("--help") == [] and loaded("audit") == []


@pytest.mark.slow
def test_cpu_of_a_call_and_of_ten_thousand_draws(tmp_path):
    """Under 0.25 s of CPU from the shell; 10,000 draws add under 0.5 s. The least of five, as the machine is shared."""

    def cpu(*arguments) -> float:
        times = []
        for _ in range(5):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            assert shell("--budget", "5.76e23", *arguments).returncode == 0
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return min(times)

    law = PUBLISHED["besiroglu2024"].law
    rows = np.array(list(law.constants().values())) * (1 + 0.01 * np.random.default_rng(0).normal(size=(10_000, 5)))
    path = tmp_path / "fit.json"
    data = {"law": law_to_dict(law), "status": "converged", "draws": encode_draws(tuple(law.constants()), rows)}
    path.write_text(json.dumps(data))
    plain, drawn = cpu(), cpu("--law", path)
    print(f"plain {plain:.3f} s, with 10,000 draws {drawn:.3f} s")
    assert plain < 0.25 and drawn - plain < 0.5


# --- the documentation ------------------------------------------------------------------------------------------------

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / "allocation.md", DOCS / "audit.md"]
LINES = [line for page in PAGES for line in page.read_text().splitlines() if line.startswith("$ scale ")]
COMMANDS = sorted({line.removeprefix("$ scale ") for line in LINES})


@pytest.mark.parametrize("line", COMMANDS)
def test_the_commands_of_the_docs_run(tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, line.split(), catch_exceptions=False)
    assert result.exit_code == 0, result.output


def test_the_ten_million_dollars_of_the_docs():
    law = PUBLISHED["besiroglu2024"].law
    C = 1e7 / 2.50 * 3600 * 989e12 * 0.40
    N, D = law.N_opt(C), law.D_opt(C)
    G = (law.alpha * law.A / (law.beta * law.B)) ** (1 / (law.alpha + law.beta))
    text = (DOCS / "allocation.md").read_text()
    for value in (
        f"{C:.5e}".replace("e+", "e"),
        f"{law.alpha * law.A:.3f} / {law.beta * law.B:.3f} = {law.alpha * law.A / (law.beta * law.B):.6f}",
        f"| {G:.6f} |",
        f"{law.beta:.4f} / {law.alpha + law.beta:.4f} | {law.N_exponent:.6f}",
        f"| {C / 6:.4e} |".replace("e+", "e"),
        f"| {(C / 6) ** law.N_exponent:.5e} |".replace("e+", "e"),
        f"= {N / 1e9:.1f}B |",
        f"= {D / 1e12:.2f}T |",
        f"| D / N | {D / N:.2f} |",
        f"{law.A / N**law.alpha:.5f} + {law.B / D**law.beta:.5f}",
        f"{law.loss(N, D):.5f} nats per token",
        f"{law.alpha * law.A / N**law.alpha:.5f} and beta B / D^beta",
        f"lambda = {law.alpha * law.A / N**law.alpha / C:.3e} nats",
    ):
        assert value in text, value
    answer = as_json("--dollars", "10M", "--gpu", "h100", "--price", "2.50", "--mfu", "0.40", "--law", "all")
    assert answer["params"] == N and f"{answer['extrapolation_factor']:.0f} times below this" in text
    low, high = answer["intervals"]["params"]
    assert f"{low / 1e9:.0f}B to {high / 1e9:.0f}B\nparameters" in text
    low, high = answer["near_optimal"]["params"]
    assert f"anything from {low / 1e9:.0f}B to {high / 1e9:.0f}B is within 0.1 %" in text
    assert f"falls by {answer['marginal']['loss_per_doubling']:.5f}" in text
    robust = answer["robust_across_laws"]
    worst = max(robust["wasted_compute_factors"].values()) - 1
    split = f"{robust['params'] / 1e9:.0f}B on {robust['tokens'] / 1e12:.1f}T tokens"
    assert f"{split}\nwastes at most {100 * worst:.1f} % of the compute" in text


def test_an_empty_law_is_said_to_be_empty():
    result = CliRunner().invoke(cli, ["allocate", "--budget", "1e20", "--law", ""])
    assert result.exit_code != 0 and "the name is empty" in str(result.exception)
