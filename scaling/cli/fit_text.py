"""A study as people read it: the law, how sure it is, what was checked, and the verdict last."""

from scaling.cli.output import format_table
from scaling.fitting.holdout import rms_log_residual
from scaling.fitting.intervals import Intervals
from scaling.fitting.quantities import has_split
from scaling.fitting.study import Study
from scaling.quantities import format_quantity

COUNTS = ("params", "tokens", "N_c", "D_c", "C_break")
MOST = 10  # notes printed for one approach
NAMES = {"params": "N*", "tokens": "D*", "tokens_per_param": "D*/N*", "loss": "loss"}


def study_text(study: Study, *, details: bool = False) -> str:
    """The whole report."""
    parts = [_headline(study), _constants(study), _at_budget(study), _approaches(study), _comparison(study),
             _holdout(study), _influence(study, details)]  # fmt: skip
    if details:
        parts += [_specifications(study), _trends(study)]
    parts.append("Verdict: " + study.verdict.line)
    return "\n\n".join(part for part in parts if part)


def _headline(study: Study) -> str:
    fit = study.fit
    if fit.law is None:
        return f"{fit.form}: {fit.status}. {fit.message}"
    how = fit.loss_function + (f", delta {fit.delta:g}" if fit.delta else "")
    weights = study.inputs.get("options", {}).get("weights")
    how = f"weighted by {weights}, {how}" if weights else how
    runs = f"{fit.n_runs} runs, {how}, objective {fit.objective:.10g}, rms log residual {rms_log_residual(fit):.2%}"
    return f"{fit.law.equation}   {fit.status}: {fit.message}\n{runs}"


def _constants(study: Study) -> str:
    fit, found = study.fit, study.intervals
    if fit.law is None:
        return ""
    values = dict(fit.law.constants())
    for name in ("N_exponent", "D_exponent") if has_split(fit) else ():
        value = getattr(fit.law, name, None)
        if value is not None:
            values[name] = value
    table = format_table(
        _header(found), [(name, _number(name, v), *_uncertainty(found, name)) for name, v in values.items()]
    )
    return "\n".join([table, *_correlation_line(found)])


def _header(found: Intervals | None) -> tuple[str, ...]:
    if found is None:
        return ("", "estimate", "interval")
    return ("", "estimate", f"{found.level:.0%} interval", "std. error", "by Hessian")


def _uncertainty(found: Intervals | None, name: str) -> tuple[str | None, ...]:
    if found is None:
        return (None,)
    if name not in found.interval:
        return (None, None, None)
    low, high = found.interval[name]
    error, hessian = found.standard_error[name], found.hessian.get(name)
    return (f"{_number(name, low)} to {_number(name, high)}", _number(name, error, 3),
            None if hessian is None else _number(name, hessian, 3))  # fmt: skip


def _correlation_line(found: Intervals | None) -> list[str]:
    if found is None:
        return ["No intervals: --bootstrap 0."]
    lines = []
    if found.correlation:
        pairs = ", ".join(f"{name.replace('log_', 'log ').replace(',', ' with ')} {value:.3f}"
                          for name, value in found.correlation.items())  # fmt: skip
        lines.append(f"A and B mean nothing without their exponents (correlation of {pairs}).")
    left = f", {found.not_converged} not converged and left out" if found.not_converged else ""
    zero = f", E = 0 in {found.at_bound}" if found.at_bound else ""
    lines.append(f"{found.resamples} resamples by {found.kind} ({found.method}){left}{zero}.")
    return lines


def _number(name: str, value: float, digits: int = 4) -> str:
    return format_quantity(value, digits=digits) if name in COUNTS else f"{value:.{digits}g}"


def _at_budget(study: Study) -> str:
    found = study.intervals
    if found is None or "params" not in found.estimate:
        return ""
    largest = study.inputs["flops_range"][1]
    names = [name for name in NAMES if name in found.estimate]
    rows = [(NAMES[name], _number(name, found.estimate[name]), *_uncertainty(found, name)) for name in names]
    factor = format_quantity(study.budget / largest, digits=3)
    return f"At {study.budget:.4g} FLOP ({factor}x the largest run):\n" + format_table(_header(found), rows)


def _approaches(study: Study) -> str:
    sides = study.approaches
    if sides is None:
        return ""
    names = {"1": "1 envelope", "2": "2 isoFLOP", "3": "3 parametric"}
    reference = sides.answers["3"].N_exponent if "3" in sides.answers else None
    rows: list[tuple] = []
    for key, answer in sides.answers.items():
        if answer.N_exponent is None:
            rows.append((names[key], None, None, None, None, None))
            continue
        gap = f"{answer.N_exponent - reference:+.3f}" if reference is not None and key != "3" else None
        assert answer.params is not None
        rows.append((names[key], f"{answer.N_exponent:.4f}", _pair(answer.N_exponent_interval, "{:.3f}".format),
                     gap, format_quantity(answer.params), _pair(answer.params_interval, format_quantity)))  # fmt: skip
    head = ("approach", "N_exponent", "interval", "gap to 3", f"N* at {sides.budget:.3g}", "interval")
    lines = [format_table(head, rows)]
    lines += [f"{names[key]}: {answer.reason}" for key, answer in sides.answers.items() if answer.reason]
    for answer in sides.answers.values():
        notes = getattr(answer.detail, "warnings", ())
        lines += [f"  {text}" for text in notes[:MOST]]
        lines += [f"  and {len(notes) - MOST} more in the JSON."] if len(notes) > MOST else []
    lead = f"DISAGREEMENT: {sides.disagreement}\n" if sides.disagreement else ""
    return lead + "\n".join(lines)


def _pair(pair, write) -> str | None:
    return None if pair is None else f"{write(pair[0])} to {write(pair[1])}"


def _comparison(study: Study) -> str:
    found = study.comparison
    if found is None:
        return ""
    rows = [(r.form, str(r.fit.status), r.fit.n_parameters, None if r.aicc is None else f"{r.aicc:.1f}",
             None if r.bic is None else f"{r.bic:.1f}",
             None if r.holdout_error is None else f"{r.holdout_error:.2%}") for r in found.ranked]  # fmt: skip
    table = format_table(("form", "status", "constants", "AICc", "BIC", "hold-out error"), rows, left=2)
    notes = [f"{r.form}: {r.reason}" for r in found.ranked if r.reason]
    return "\n".join([table, *notes, f"Preferred: {found.preferred}: {found.why}" if found.preferred else found.why])


def _holdout(study: Study) -> str:
    h = study.holdout
    if h is None:
        return ""
    covered = "" if h.covered is None else f" {h.covered:.0%} of them inside their {h.level:.0%} intervals."
    return (f"Hold-out: {h.n_train} runs up to {h.threshold:.3g} FLOP predict the {h.n_test} above with {h.mean_abs:.2%} mean "
            f"error (largest {h.max_abs:.2%}, signed {h.mean_signed:+.2%}).{covered}")  # fmt: skip


def _influence(study: Study, details: bool) -> str:
    found = study.influence
    if found is None or not found.runs:
        return ""
    items = [*found.runs, *found.sizes, *found.handfuls] if details else [*found.runs[:5], *found.handfuls[:1]]
    rows = [(item.what if len(item.what) < 60 else item.what[:57] + "...", format_quantity(item.N), format_quantity(item.D),
             f"{item.loss:.4g}", _change(item.change)) for item in items]  # fmt: skip
    head = ("left out", "N", "D", "loss", f"N* at {found.budget:.3g}")
    return "Most influential:\n" + format_table(head, rows)


def _change(change: float) -> str:
    """A change of N*, which may be of many orders of magnitude where the runs say nothing of it."""
    return f"{change:+.1%}" if -0.999 < change < 10 else f"{1 + change:.2g}x"


def _specifications(study: Study) -> str:
    rows = [(s.what, s.n_runs, s.status, None if s.N_exponent is None else f"{s.N_exponent:.3f}",
             None if s.params is None else format_quantity(s.params),
             None if s.tokens_per_param is None else f"{s.tokens_per_param:.3g}")
            for s in (*study.specifications, *study.sensitivity)]  # fmt: skip
    if not rows:
        return ""
    head = ("specification", "runs", "status", "N_exponent", f"N* at {study.budget:.3g}", "D*/N*")
    return "The answer under other conventions:\n" + format_table(head, rows)


def _trends(study: Study) -> str:
    lines = [f"residuals against {t.column}: {t.slope:+.2%} per e-fold (t = {t.t:.1f})" for t in study.trends]
    lack = study.lack_of_fit
    if lack is not None:
        lines.append(f"seed noise {lack.noise:.2%} from {lack.n_replicates} replicates; lack of fit F = {lack.F:.2f}, "
                     f"p = {lack.probability:.2g}")  # fmt: skip
    return "\n".join(lines)
