"""Public tables and their reference fits; they lie beside the repository and are never part of it."""

import json
from pathlib import Path

import pandas as pd
import pytest

SHARED = Path(__file__).parents[4] / "shared" / "data"


@pytest.fixture(scope="session")
def shared() -> Path:
    if not (SHARED / "golden.json").exists():
        pytest.skip(f"public tables are not at {SHARED}")
    return SHARED


@pytest.fixture(scope="session")
def golden(shared) -> dict:
    return json.loads((shared / "golden.json").read_text())


@pytest.fixture(scope="session")
def table(shared, golden):
    """A function from the name of a golden set to its runs table."""

    def load(name: str) -> pd.DataFrame:
        entry = golden["sets"][name]
        runs = pd.read_csv(shared / f"{entry['table']}.csv")
        runs = _select(name, runs.rename(columns={"n_params": "params", "n_tokens": "tokens"}))
        assert len(runs) == entry["n"]
        return runs.astype({"params": float, "tokens": float, "loss": float}).reset_index(drop=True)

    return load


def _select(name: str, runs: pd.DataFrame) -> pd.DataFrame:
    if name == "epoch_chinchilla_240":
        return runs[runs.epoch_outlier == 0]
    if name.startswith("misfitting_final_bestlr"):
        best = runs.sort_values("loss").groupby(["params", "tokens"], as_index=False).first()
        return best.assign(params=best.n_params_nonemb) if name.endswith("nonemb") else best
    if name.startswith("gadre"):
        return runs[runs.dataset == name.removeprefix("gadre_")]
    if name == "datablations_1epoch":
        return runs[(runs.tokens == runs.unique_tokens) & (runs.dedup == 0)]
    if name.startswith("llama3"):
        return runs[runs.condition == ("raw_loss" if "raw" in name else "exp_loss")]
    return runs
