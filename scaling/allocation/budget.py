"""A budget in whatever the user has, turned into FLOP, and an answer turned back into hours, days, dollars, energy."""

from dataclasses import dataclass
from typing import Any

from scaling import hardware
from scaling.errors import AllocationError, InputError
from scaling.quantities import parse_positive


@dataclass(frozen=True)
class Machine:
    """What the FLOPs run on: a peak (FLOP/s), an MFU, a price (dollars per GPU-hour), and how many.

    `assumed` names what was not given but taken from a default; `notes` give dates and sources.
    """

    peak_flops: float
    mfu: float
    price_per_gpu_hour: float | None = None
    gpus: float | None = None
    gpu: str | None = None
    label: str | None = None
    dtype: str | None = None
    watts: float | None = None
    memory_bytes: float | None = None
    assumed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def cost(self, flops: float) -> dict[str, Any]:
        """What `flops` take on this machine, units in every key; None where price, power or count is unknown."""
        hours = hardware.gpu_hours_from_flops(flops, self.peak_flops, self.mfu)
        price, watts, gpus = self.price_per_gpu_hour, self.watts, self.gpus
        return {
            "gpu": self.label,
            "dtype": self.dtype,
            "peak_flops_per_second": self.peak_flops,
            "mfu": self.mfu,
            "gpu_hours": hours,
            "gpus": gpus,
            "days": hours / gpus / 24 if gpus else None,
            "price_per_gpu_hour": price,
            "dollars": hours * price if price is not None else None,
            "watts_per_gpu": watts,
            "energy_kwh": hardware.energy_kwh(hours, watts) if watts is not None else None,
            "assumed": list(self.assumed),
            "notes": list(self.notes),
        }

    @property
    def flops_per_gpu_hour(self) -> float:
        return hardware.flops_from_gpu_hours(1.0, self.peak_flops, self.mfu)


def make_machine(
    *,
    gpu: str | None = None,
    dtype: str | None = None,
    mfu: float | None = None,
    price: float | str | None = None,
    peak: float | str | None = None,
    gpus: float | str | None = None,
) -> Machine:
    """A machine from what was given; the rest from dated defaults, named in `assumed`.

    Raises InputError for an unknown device or dtype, and for an MFU outside (0, 1].
    """
    assumed = []
    if gpu is None and peak is None:
        gpu = hardware.DEFAULT_GPU
        assumed.append("gpu")
    found = hardware.device(gpu) if gpu is not None else None
    if dtype is None:
        dtype = hardware.DEFAULT_DTYPE
        if found is not None and dtype not in found.peak_flops and peak is None:
            dtype = next(iter(found.peak_flops))
    if mfu is None:
        mfu = hardware.DEFAULT_MFU
        assumed.append("mfu")
    notes = []
    peak_value = parse_positive(peak, name="peak") if peak is not None else found.peak(dtype)  # type: ignore[union-attr]
    if peak is not None and peak_value < 1e9:
        raise InputError(f"peak {peak} is in FLOP/s: write 989e12 for 989 TFLOP/s.")
    if found is not None:
        notes.append(f"{found.label}: {found.source}")
    price_value = parse_positive(price, name="price") if price is not None else None
    if price is None and found is not None and found.price_per_hour is not None:
        price_value = found.price_per_hour
        assumed.append("price")
        notes.append(f"price of {found.price_date}: {found.price_source}")
    return Machine(
        peak_flops=peak_value,
        mfu=hardware.check_mfu(mfu),
        price_per_gpu_hour=price_value,
        gpus=parse_positive(gpus, name="gpus") if gpus is not None else None,
        gpu=found.name if found else None,
        label=found.label if found else None,
        dtype=dtype,
        watts=found.watts if found else None,
        memory_bytes=found.memory_bytes if found else None,
        assumed=tuple(assumed),
        notes=tuple(notes),
    )


@dataclass(frozen=True)
class Budget:
    """Compute to spend, in FLOP, and how it was given."""

    flops: float
    given: str = "flops"  # flops | dollars | gpu_hours | gpu_days
    dollars: float | None = None
    gpu_hours: float | None = None
    gpus: float | None = None
    days: float | None = None

    def to_dict(self) -> dict:
        """FLOP, and what it was computed from."""
        data = {"flops": self.flops, "given": self.given}
        optional = {"dollars": self.dollars, "gpu_hours": self.gpu_hours, "gpus": self.gpus, "days": self.days}
        return data | {key: value for key, value in optional.items() if value is not None}


def make_budget(
    flops: float | str | Budget | None = None,
    *,
    dollars: float | str | None = None,
    gpu_hours: float | str | None = None,
    gpus: float | str | None = None,
    days: float | str | None = None,
    machine: Machine | None = None,
) -> Budget | None:
    """FLOP from exactly one of: FLOP, dollars, GPU-hours, or a number of GPUs for days; None when none is given.

    Raises AllocationError when two are given, or when the price that dollars need is unknown.
    """
    ways = {"--budget": flops, "--dollars": dollars, "--gpu-hours": gpu_hours, "--days": days}
    given = [name for name, value in ways.items() if value is not None]
    if len(given) > 1:
        raise AllocationError(f"{' and '.join(given)} are two budgets. Give one.")
    if isinstance(flops, Budget):
        return flops
    if flops is not None:
        return Budget(parse_positive(flops, name="budget"))
    if not given:
        return None
    machine = machine or make_machine(gpus=gpus)
    if dollars is not None:
        return _from_dollars(parse_positive(dollars, name="dollars"), machine)
    if gpu_hours is not None:
        hours = parse_positive(gpu_hours, name="GPU-hours")
        return Budget(hours * machine.flops_per_gpu_hour, "gpu_hours", gpu_hours=hours)
    if machine.gpus is None:
        raise AllocationError("--days needs --gpus: how many devices for that long.")
    length = parse_positive(days, name="days")  # type: ignore[arg-type]
    hours = machine.gpus * length * 24
    return Budget(hours * machine.flops_per_gpu_hour, "gpu_days", gpu_hours=hours, gpus=machine.gpus, days=length)


def _from_dollars(dollars: float, machine: Machine) -> Budget:
    if machine.price_per_gpu_hour is None:
        raise AllocationError("dollars need a price per GPU-hour, and none is on record for this device: give --price.")
    hours = dollars / machine.price_per_gpu_hour
    return Budget(hours * machine.flops_per_gpu_hour, "dollars", dollars=dollars, gpu_hours=hours)
