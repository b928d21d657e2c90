"""Approach 2: at each compute budget a parabola of the loss in log N, its minimum N*, and a power law through the minima.

A parabola is only the start of the true curve: when alpha and beta differ, a wide or off-centre grid shifts its minimum,
the intercept more than the exponent. So width and centring are reported, and the parametric fit belongs beside it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scaling.errors import FitError
from scaling.fitting.data import RunData
from scaling.fitting.identifiability import groups
from scaling.fitting.regression import PowerLaw, power_law

TOLERANCE = 0.1  # runs whose C lies within 10 % are of one budget
MIN_SIZES = 4
MIN_BUDGETS = 3  # accepted ones: two determine a line exactly, however bad they are
WIDE = 2.0  # decades of N from end to end
FLAT = 0.75  # of the median curvature
OFF_CENTRE = 0.25  # of the width, between the minimum and the middle of the grid


@dataclass(frozen=True)
class Budget:
    """One isoFLOP curve. N*, D* and their standard errors (of the natural log) exist where the parabola opens upward."""

    flops: float
    rows: tuple[int, ...]
    n_sizes: int
    N_opt: float | None = None
    D_opt: float | None = None
    loss: float | None = None
    N_error: float | None = None  # standard error of log N*; None when the parabola is exactly determined
    D_error: float | None = None
    rejected: str | None = None
    coefficients: tuple[float, float, float] | None = None  # of the loss in log10 N, highest power first
    width: float = 0.0  # decades of N
    notes: tuple[str, ...] = ()
    outliers: tuple[int, ...] = ()

    @property
    def accepted(self) -> bool:
        return self.rejected is None


@dataclass(frozen=True)
class Isoflop:
    """Approach 2: budgets, and the power laws of N* and D* through the accepted ones (None with fewer than 3)."""

    budgets: tuple[Budget, ...]
    N_law: PowerLaw | None
    D_law: PowerLaw | None
    warnings: tuple[str, ...]
    draws: np.ndarray | None = None  # (resamples, 2): exponent and log coefficient of N*
    tolerance: float = TOLERANCE

    @property
    def accepted(self) -> tuple[Budget, ...]:
        return tuple(b for b in self.budgets if b.accepted)

    @property
    def total(self) -> float | None:
        """Sum of the exponents of N and D: 1 where N, D and C are of one convention."""
        return None if self.N_law is None or self.D_law is None else self.N_law.exponent + self.D_law.exponent


def fit_isoflop(
    data: RunData,
    budgets: Sequence[float] | None = None,
    *,
    tolerance: float = TOLERANCE,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Isoflop:
    """Approach 2 on runs grouped by their FLOPs: into the given budgets, or into groups within `tolerance` of each other.

    Runs of weight zero are left out: `rows` count the others. Raises FitError when no group holds runs of 3 sizes.
    """
    if not (data.weights > 0).all():
        data = data.take(data.weights > 0)
    members = group_budgets(data.flops, budgets, tolerance)
    found = tuple(_budget(data, flops, rows) for flops, rows in members)
    if not any(b.n_sizes >= 3 for b in found):
        raise FitError(f"isoFLOP: no budget has runs of 3 or more sizes within {tolerance:.0%} of its FLOPs; this is no "
                       "isoFLOP grid. Use the parametric fit.")  # fmt: skip
    found = _flag_flat(data, found)
    accepted = [b for b in found if b.accepted]
    N_law = D_law = draws = None
    if len(accepted) >= MIN_BUDGETS:
        C = [b.flops for b in accepted]
        N_law = power_law(C, [b.N_opt for b in accepted], level=level)
        D_law = power_law(C, [b.D_opt for b in accepted], level=level)
        draws = _resample(data, accepted, resamples, np.random.default_rng(seed))
    return Isoflop(found, N_law, D_law, tuple(_warnings(found, N_law, D_law)), draws, tolerance)


def _flag_flat(data: RunData, found: tuple[Budget, ...]) -> tuple[Budget, ...]:
    """Budgets whose curve is much flatter than the others', with a note that names their runs."""
    curved = [b.coefficients[0] for b in found if b.accepted and b.coefficients is not None]
    if len(curved) < 3:
        return found
    usual, out = float(np.median(curved)), []
    for b in found:
        if b.accepted and b.coefficients is not None and b.coefficients[0] < FLAT * usual:
            names = ", ".join(data.labels[r] for r in b.rows)
            note = f"weak curvature: {b.coefficients[0] / usual:.2f} of the usual ({names})"
            b = replace(b, notes=(*b.notes, note))
        out.append(b)
    return tuple(out)


def group_budgets(flops, budgets: Sequence[float] | None, tolerance: float) -> list[tuple[float, np.ndarray]]:
    """(budget, rows) in order of FLOPs. Detected budgets span at most `tolerance` and carry their geometric mean."""
    flops = np.asarray(flops, float)
    if budgets is not None:
        out = [(float(b), np.flatnonzero(np.abs(np.log(flops / b)) <= tolerance)) for b in sorted(budgets)]
        return [(b, rows) for b, rows in out if len(rows)]
    number = _gap_groups(np.log(flops), tolerance)
    out = []
    for k in range(number.max() + 1):
        rows = np.flatnonzero(number == k)
        values, counts = np.unique(flops[rows], return_counts=True)
        nominal = counts.max() > len(rows) / 2  # one value stands in most rows: a nominal budget
        out.append((float(values[counts.argmax()] if nominal else np.exp(np.log(flops[rows]).mean())), rows))
    return out


def _gap_groups(log_flops: np.ndarray, tolerance: float) -> np.ndarray:
    """Groups split at gaps of half the tolerance; one that spans more than the tolerance is split again, from below."""
    order = np.argsort(log_flops, kind="stable")
    gaps = np.diff(log_flops[order]) > tolerance / 2
    number = np.empty(len(log_flops), int)
    number[order] = np.concatenate([[0], np.cumsum(gaps)])
    out, used = np.empty_like(number), 0
    for k in range(number.max() + 1):
        rows = np.flatnonzero(number == k)
        inner = groups(np.exp(log_flops[rows] - log_flops[rows].min()), tolerance)
        out[rows] = used + inner
        used += int(inner.max()) + 1
    return out


def _budget(data: RunData, flops: float, rows: np.ndarray) -> Budget:
    N, D, loss, weights = data.N[rows], data.D[rows], data.loss[rows], data.weights[rows]
    sizes = int(groups(N).max()) + 1
    base = Budget(flops, tuple(int(r) for r in rows), sizes, width=float(np.ptp(np.log10(N))))
    if sizes < 3:
        return replace(base, rejected=f"{sizes} distinct size{'s' if sizes > 1 else ''}, {MIN_SIZES} are needed")
    x, y = np.log10(N), np.log10(D)
    c, error = parabola(x, loss, weights)
    outliers = _outliers(x, loss, weights)
    base = replace(base, coefficients=(float(c[0]), float(c[1]), float(c[2])), outliers=tuple(int(rows[i]) for i in outliers),
                    notes=tuple(_row_notes(data, rows, outliers)))  # fmt: skip
    if c[0] <= 0:
        return replace(base, rejected="the parabola opens downward: no minimum")
    vertex = -c[1] / (2 * c[0])
    if not x.min() < vertex < x.max():
        side = "smaller" if vertex <= x.min() else "larger"
        return replace(base, rejected=f"the minimum lies at or beyond the edge of the grid (add {side} models)")
    d, d_error = parabola(y, loss, weights)
    D_vertex = -d[1] / (2 * d[0]) if d[0] > 0 else math.log10(flops / 6) - vertex
    found = replace(
        base, N_opt=float(10**vertex), D_opt=float(10**D_vertex), loss=float(np.polyval(c, vertex)),
        N_error=error, D_error=d_error, notes=base.notes + tuple(_shape_notes(x, vertex, c, error)),
    )  # fmt: skip
    if sizes < MIN_SIZES:
        return replace(found, rejected=f"{sizes} distinct sizes, {MIN_SIZES} are needed: N* = {found.N_opt:.3g} is exactly "
                        "determined, without an error estimate", N_error=None, D_error=None)  # fmt: skip
    return found


def parabola(x: np.ndarray, loss: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, float | None]:
    """Coefficients (highest power first) of the least-squares parabola, and the standard error of log (natural) of
    10^vertex, None with 3 points."""
    centre, spread = x.mean(), max(np.ptp(x), 1e-12)
    z = (x - centre) / spread
    M = np.stack([z * z, z, np.ones_like(z)], axis=1)
    root = np.sqrt(weights)[:, None]
    a, b, c = np.linalg.lstsq(M * root, loss * root[:, 0], rcond=None)[0]
    error = None
    used = int((weights > 0).sum())
    if used > 3 and a != 0:
        residual = (loss - M @ [a, b, c]) * root[:, 0]
        covariance = np.linalg.pinv((M * root).T @ (M * root)) * float(residual @ residual) / (used - 3)
        slope = np.array([b / (2 * a * a), -1 / (2 * a), 0.0])
        error = math.sqrt(max(float(slope @ covariance @ slope), 0.0)) * spread * math.log(10)
    a, b = a / spread**2, b / spread
    return np.array([a, b - 2 * a * centre, a * centre**2 - b * centre + c]), error


def _outliers(x, loss, weights) -> list[int]:
    """Runs whose loss lies far above the parabola of the others: faults raise a loss, they do not lower it."""
    out = []
    n = len(x)
    for i in range(n) if n >= 4 else ():
        keep = np.arange(n) != i
        if len(np.unique(x[keep])) < 3:
            continue
        c, _ = parabola(x[keep], loss[keep], weights[keep])
        excess = float(loss[i] - np.polyval(c, x[i]))
        rest = loss[keep] - np.polyval(c, x[keep])
        noise = math.sqrt(float(rest @ rest) / (n - 4)) if n > 4 else 0.0
        inside = x[keep].min() < -c[1] / (2 * c[0]) < x[keep].max() if c[0] > 0 else False
        if excess > max(6 * noise, 0.01 * loss[i]) and c[0] > 0 and (inside or n > 4):
            out.append(i)
    return out


def _row_notes(data: RunData, rows, outliers) -> list[str]:
    notes = [f"{data.labels[rows[i]]}: loss {data.loss[rows[i]]:.4g} lies far above the parabola of the others"
             for i in outliers]  # fmt: skip
    number = groups(data.N[rows])
    for k in np.flatnonzero(np.bincount(number) > 1):
        names = ", ".join(data.labels[r] for r in rows[number == k])
        notes.append(f"near-duplicate sizes ({data.N[rows[number == k][0]]:.4g}): {names}")
    return notes


def _shape_notes(x, vertex, c, error) -> list[str]:
    notes = []
    width, middle = float(np.ptp(x)), float(x.max() + x.min()) / 2
    if width > WIDE:
        notes.append(f"wide: the sizes span {width:.2g} decades, beyond which a parabola is biased")
    if abs(vertex - middle) > OFF_CENTRE * width:
        notes.append(f"off centre: the minimum lies {abs(vertex - middle) / width:.0%} of the width from the middle")
    if error is None or error > 0.2:
        size = "unknown" if error is None else f"{error:.0%}"
        notes.append(f"loose: the standard error of its minimum is {size}")
    return notes


def _resample(data: RunData, accepted, resamples, rng) -> np.ndarray | None:
    """Exponent and log coefficient of N* (R, 2), runs drawn with replacement within each budget."""
    if resamples < 2:
        return None
    log_N = np.full((resamples, len(accepted)), np.nan)
    for k, budget in enumerate(accepted):
        rows = np.array(budget.rows)
        x, n = np.log(data.N[rows]), len(rows)
        drawn = rng.integers(0, n, (resamples, n)) + n * np.arange(resamples)[:, None]
        weights = np.bincount(drawn.ravel(), minlength=resamples * n).reshape(resamples, n) * data.weights[rows]
        log_N[:, k] = _vertices(x, data.loss[rows], weights)
    x = np.log([b.flops for b in accepted])
    good = np.isfinite(log_N)
    count = np.maximum(good.sum(1), 1)
    mean_x = (good * x).sum(1) / count
    y = np.where(good, log_N, 0.0)
    mean_y = y.sum(1) / count
    dx = np.where(good, x - mean_x[:, None], 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        slope = (dx * y).sum(1) / (dx * dx).sum(1)
    out = np.column_stack([slope, mean_y - slope * mean_x])
    return out[np.isfinite(out).all(1) & (good.sum(1) >= 2)]


def _vertices(x, loss, weights) -> np.ndarray:
    """Vertex of each weighted parabola (R,), NaN where it opens downward or lies beyond the grid."""
    z = (x - x.mean()) / np.ptp(x)
    powers = np.stack([z**k for k in range(5)])
    S = weights @ powers.T  # (R, 5)
    t = (weights * loss) @ powers[:3].T  # (R, 3)
    gram = np.stack([S[:, 0:3], S[:, 1:4], S[:, 2:5]], axis=1) + 1e-12 * np.eye(3)
    c = np.linalg.solve(gram, t[..., None])[..., 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        vertex = -c[:, 1] / (2 * c[:, 2])
    inside = (c[:, 2] > 0) & (vertex > z.min()) & (vertex < z.max())
    return np.where(inside, x.mean() + vertex * np.ptp(x), np.nan)


def _warnings(budgets, N_law, D_law) -> list[str]:
    out = [f"budget {b.flops:.3g} FLOP rejected: {b.rejected}." for b in budgets if not b.accepted and b.n_sizes >= 3]
    single = sum(b.n_sizes < 3 for b in budgets)
    if single:
        groups_of = "group" if single == 1 else "groups"
        verb = "has" if single == 1 else "have"
        out.append(f"{single} {groups_of} of runs at one FLOP level {verb} fewer than 3 sizes: no curve.")
    out += [f"budget {b.flops:.3g} FLOP: {note}." for b in budgets if b.accepted or b.outliers for note in b.notes
            if not note.startswith("near-")]  # fmt: skip
    accepted = [b for b in budgets if b.accepted]
    if len(accepted) < MIN_BUDGETS:
        out.append(f"{len(accepted)} accepted budgets: at least {MIN_BUDGETS} are needed for an exponent with an error.")
    last = max(budgets, key=lambda b: b.flops)
    if not last.accepted:
        out.append(f"provisional: the largest budget ({last.flops:.3g} FLOP) has no accepted optimum.")
    if N_law is not None and abs(N_law.exponent + D_law.exponent - 1) > 0.02:
        out.append(f"the exponents of N* and D* sum to {N_law.exponent + D_law.exponent:.3f}, not 1: N, D and C are not "
                   "of one convention, or the curves are noisy.")  # fmt: skip
    return out
