"""Dollars, hours and energy, and the device catalogue."""

import pytest

from scaling.allocation import make_budget, make_machine
from scaling.errors import AllocationError, InputError
from scaling.hardware import catalogue, device, energy_kwh, flops_from_gpu_hours, gpu_hours_from_flops, implied_mfu

LLAMA2 = [(7e9, 184_320, 0.406), (13e9, 368_640, 0.377), (70e9, 1_720_320, 0.435)]


def test_a_million_dollars_of_h100():
    machine = make_machine(gpu="h100", price=3, mfu=0.40)
    assert make_budget(dollars="1M", machine=machine).flops == pytest.approx(4.747e23, rel=1e-4)


@pytest.mark.parametrize(("params", "hours", "mfu"), LLAMA2)
def test_mfu_that_llama_2_hours_imply(params, hours, mfu):
    assert implied_mfu(6 * params * 2e12, hours, device("a100").peak()) == pytest.approx(mfu, abs=5e-4)


def test_hours_forward():
    assert gpu_hours_from_flops(6 * 70e9 * 2e12, device("a100").peak(), 0.40) == pytest.approx(1.87e6, rel=2e-3)


def test_utilisation_of_a_sparse_model_counts_active_parameters_and_three_passes():
    flops = 6 * 37e9 * 14.8e12
    assert flops == pytest.approx(3.29e24, rel=2e-3)
    assert implied_mfu(flops, 2.79e6, 1.513e15) == pytest.approx(0.216, abs=5e-4)


@pytest.mark.parametrize("watts", [250, 450])
def test_half_a_day_on_one_device_is_a_few_kilowatt_hours(watts):
    assert energy_kwh(12, watts) == pytest.approx(watts * 0.012)
    assert 2 < energy_kwh(12, watts) < 10


def test_there_and_back():
    hours = gpu_hours_from_flops(3.3e21, 989e12, 0.37)
    assert flops_from_gpu_hours(hours, 989e12, 0.37) == pytest.approx(3.3e21, rel=1e-14)


def test_every_device_is_complete():
    assert {"h100", "h200", "b200", "a100", "l40s", "l4", "a40", "v100", "rtx4090", "mi300x"} <= set(catalogue())
    for name, entry in catalogue().items():
        assert entry.source and entry.memory_bytes > 1e9, name
        assert all(1e12 < peak < 1e16 for peak in entry.peak_flops.values()), name
        assert (entry.price_per_hour is None) == (entry.price_date is None) == (entry.price_source is None), name


def test_dense_peaks_of_bf16():
    published = {"a100": 312, "h100": 989, "h100-pcie": 756, "h200": 989, "b200": 2250, "l40s": 362, "mi300x": 1307}
    assert {name: device(name).peak() / 1e12 for name in published} == published


@pytest.mark.parametrize("name", ["H100", "h100_sxm", "NVIDIA H100 SXM5", "h100-80gb"])
def test_aliases(name):
    assert device(name).name == "h100"


def test_an_unknown_device_lists_the_known():
    with pytest.raises(InputError, match="unknown device \"h300\".*h100.*--peak"):
        device("h300")


def test_a_dtype_without_a_peak_is_refused():
    with pytest.raises(InputError, match="no fp8 peak on record. Known: bf16"):
        make_machine(gpu="a100", dtype="fp8")


def test_a_device_without_bf16_uses_the_dtype_it_has():
    assert make_machine(gpu="v100").dtype == "fp16"


@pytest.mark.parametrize("mfu", [0, -0.1, 1.2, 40])
def test_mfu_is_a_share(mfu):
    with pytest.raises(InputError, match="MFU"):
        make_machine(mfu=mfu)


def test_what_was_assumed_is_named():
    assert make_machine().assumed == ("gpu", "mfu", "price")
    assert make_machine(gpu="a100", mfu=0.5, price=2).assumed == ()
    assert any("2026-02" in note for note in make_machine(gpu="h100").notes)


def test_a_peak_of_ones_own():
    machine = make_machine(peak=1e15, mfu=0.5)
    assert machine.cost(1.8e18)["gpu_hours"] == pytest.approx(1.0)
    assert machine.cost(1.8e18)["dollars"] is None
    with pytest.raises(InputError, match="FLOP/s"):
        make_machine(peak=989)


def test_gpus_for_days_and_back():
    machine = make_machine(gpu="h100", gpus=1024, mfu=0.4, price=2)
    budget = make_budget(days=30, machine=machine)
    cost = machine.cost(budget.flops)
    assert cost["days"] == pytest.approx(30) and cost["gpu_hours"] == pytest.approx(1024 * 30 * 24)
    assert cost["dollars"] == pytest.approx(2 * 1024 * 720)
    assert cost["energy_kwh"] == pytest.approx(1024 * 720 * 0.7)


@pytest.mark.parametrize(
    ("ways", "message"),
    [
        ({"flops": 1e21, "dollars": 5}, "--budget and --dollars are two budgets"),
        ({"gpu_hours": 5, "days": 3}, "--gpu-hours and --days are two budgets"),
        ({"days": 3}, "--days needs --gpus"),
        ({"dollars": 3, "machine": make_machine(gpu="b200")}, "give --price"),
    ],
)
def test_contradictory_budgets(ways, message):
    with pytest.raises(AllocationError, match=message):
        make_budget(**ways)


def test_no_budget_is_none():
    assert make_budget() is None
