"""Dollars, GPU-hours and watts <-> FLOP: the accelerator catalogue, and the arithmetic with units in every name.

    FLOP = GPU-hours x 3600 x peak x MFU        dollars = GPU-hours x price        kWh = GPU-hours x watts / 1000

Peaks are dense (no sparsity) and per dtype. Prices are dated snapshots, to be overridden. Power is the board's rated
power: an upper bound for the accelerators alone, without host, cooling and network.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from scaling.errors import InputError

CATALOGUE = Path(__file__).parent / "data" / "hardware.json"
DEFAULT_GPU = "h100"
DEFAULT_DTYPE = "bf16"
DEFAULT_MFU = 0.40  # 0.35-0.45 is common for dense models; Llama 2's published hours give 0.38-0.44
SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class Device:
    """One accelerator: dense peaks in FLOP/s by dtype, memory in bytes, rated power in watts, a dated price."""

    name: str
    label: str
    peak_flops: dict[str, float]
    memory_bytes: float
    watts: float | None
    source: str
    price_per_hour: float | None = None
    price_date: str | None = None
    price_source: str | None = None

    def peak(self, dtype: str = DEFAULT_DTYPE) -> float:
        """Dense peak, FLOP/s. Raises InputError that lists the dtypes known for this device."""
        if dtype not in self.peak_flops:
            raise InputError(
                f"{self.label}: no {dtype} peak on record. Known: {', '.join(self.peak_flops)}; "
                "or give --peak in FLOP/s."
            )
        return self.peak_flops[dtype]


@cache
def catalogue() -> dict[str, Device]:
    """Every device by name."""
    entries = json.loads(CATALOGUE.read_text(encoding="utf-8"))["devices"]
    return {
        name: Device(
            name=name,
            label=entry["label"],
            peak_flops={dtype: tera * 1e12 for dtype, tera in entry["dense_peak_tflops"].items()},
            memory_bytes=entry["memory_gb"] * 1e9,
            watts=entry.get("watts"),
            source=entry["source"],
            price_per_hour=entry.get("price_per_hour"),
            price_date=entry.get("price_date"),
            price_source=entry.get("price_source"),
        )
        for name, entry in entries.items()
    }


@cache
def _aliases() -> dict[str, str]:
    return json.loads(CATALOGUE.read_text(encoding="utf-8"))["aliases"]


def device(name: str) -> Device:
    """The device of that name or alias. Raises InputError that lists the known ones; nothing is guessed."""
    key = name.strip().lower().replace(" ", "-").replace("_", "-").removeprefix("nvidia-")
    key = _aliases().get(key, key)
    if key not in catalogue():
        raise InputError(
            f'unknown device "{name}". Known: {", ".join(catalogue())}. '
            "For another, give --peak in FLOP/s and --price in dollars per hour."
        )
    return catalogue()[key]


def check_mfu(mfu: float) -> float:
    """Model FLOPs utilisation: a share of the dense peak, above 0 and at most 1."""
    if not 0 < mfu <= 1:
        raise InputError(
            f"MFU {mfu:g} is not a share in (0, 1]. Above 1 usually means a sparse peak, or FLOPs counted twice."
        )
    return mfu


def flops_from_gpu_hours(gpu_hours: float, peak_flops: float, mfu: float) -> float:
    """FLOP = GPU-hours x 3600 x peak (FLOP/s) x MFU."""
    return gpu_hours * SECONDS_PER_HOUR * peak_flops * check_mfu(mfu)


def gpu_hours_from_flops(flops: float, peak_flops: float, mfu: float) -> float:
    """GPU-hours = FLOP / (3600 x peak x MFU)."""
    return flops / (SECONDS_PER_HOUR * peak_flops * check_mfu(mfu))


def implied_mfu(flops: float, gpu_hours: float, peak_flops: float) -> float:
    """MFU of a past run: FLOP / (GPU-hours x 3600 x peak). Above 1 says that an input is wrong; see `check_mfu`."""
    return flops / (gpu_hours * SECONDS_PER_HOUR * peak_flops)


def energy_kwh(gpu_hours: float, watts: float) -> float:
    """Energy in kilowatt-hours at that power: 12 h on one 400 W device is 4.8 kWh."""
    return gpu_hours * watts / 1000.0
