"""What `scale allocate` prints for people: the answer first, then what it rests on."""

from scaling.cli.output import format_table
from scaling.hardware import catalogue
from scaling.laws import BY_NAME_ONLY, DEFAULT_LAW, PUBLISHED
from scaling.quantities import format_flops, format_quantity


def law_table() -> str:
    """The published laws, one a line."""
    rows = [
        (name + (" (default)" if name == DEFAULT_LAW else ""), entry.description, entry.source)
        for name, entry in {**PUBLISHED, **BY_NAME_ONLY}.items()
    ]
    return format_table(("law", "what it is", "source"), rows, left=3)


def gpu_table() -> str:
    """The device catalogue: dense peaks, memory, power, dated price."""
    rows = [
        (
            name,
            device.label,
            " ".join(f"{dtype} {peak / 1e12:g}" for dtype, peak in device.peak_flops.items()),
            f"{device.memory_bytes / 1e9:g} GB",
            f"{device.watts:g} W" if device.watts else None,
            f"${device.price_per_hour:.2f} ({device.price_date})" if device.price_per_hour else None,
            device.source,
        )
        for name, device in catalogue().items()
    ]
    headers = ("name", "device", "dense peak, TFLOP/s", "memory", "power", "price per hour", "source of the peak")
    return format_table(headers, rows, left=3)


def text(answer) -> str:
    """All sections that apply, blank lines between."""
    sections = (
        _head(answer),
        _main_table(answer),
        _near(answer),
        _marginal(answer),
        _inference(answer),
        _data(answer),
        _comparisons(answer),
        _robust(answer),
        _laws(answer),
        _shape(answer),
        _cost(answer),
    )
    return "\n\n".join(section for section in sections if section)


def _head(answer) -> str:
    law = answer.law
    constants = ", ".join(f"{name} {value:.6g}" for name, value in law.law.constants().items())
    lines = [f"Budget  {_budget(answer)}", f"Law     {law.name}: {law.law.equation}", f"        {constants}"]
    lines.append(f"        {law.source}" + (f"; {law.status}" if law.status else ""))
    if answer.constraints:
        lines.append(f"With    {'; '.join(answer.constraints)}")
    lines.append(f"Count   {answer.convention}; {'closed form' if answer.closed_form else 'solved numerically'}")
    return "\n".join(lines)


def _budget(answer) -> str:
    budget = answer.budget
    if budget is None:
        return f"not given; the answer takes {format_flops(answer.flops)} FLOP"
    flops, cost = format_flops(budget.flops), answer.cost
    how = f"{cost['gpu'] or 'device'} of {cost['peak_flops_per_second'] / 1e12:g} TFLOP/s at {cost['mfu']:.0%} MFU"
    if budget.given == "dollars":
        hours = f"{_hours(budget.gpu_hours)} GPU-hours at ${cost['price_per_gpu_hour']:.2f}"
        return f"${budget.dollars:,.0f} = {hours} = {flops} FLOP ({how})"
    if budget.given == "gpu_hours":
        return f"{_hours(budget.gpu_hours)} GPU-hours = {flops} FLOP ({how})"
    if budget.given == "gpu_days":
        return f"{budget.gpus:,.0f} GPUs for {budget.days:g} days = {flops} FLOP ({how})"
    return f"{flops} FLOP"


def _main_table(answer) -> str:
    found = answer.intervals
    rows = [
        ("parameters N*", format_quantity(answer.params), _span(found, "params")),
        ("tokens D*", format_quantity(answer.tokens), _span(found, "tokens")),
        ("tokens per parameter", f"{answer.tokens_per_param:.4g}", _span(found, "tokens_per_param")),
        ("loss, nats per token", f"{answer.loss:.6g}", _loss_span(found)),
        ("training FLOP", format_flops(answer.flops), _span(found, "flops") if answer.budget is None else None),
        ("extrapolation factor", _factor(answer.extrapolation_factor), None),
    ]
    if not found:
        return format_table(("", "best"), [row[:2] for row in rows])
    return format_table(("", "best", f"{found['level']:.0%} interval"), rows) + f"\ninterval: {found['method']}"


def _factor(value) -> str:
    if value is None:
        return "unknown"
    return "1 (inside)" if value == 1 else f"{value:.3g}"


def _span(found, key, digits=3) -> str | None:
    return f"{_amount(found[key][0], digits)} to {_amount(found[key][1], digits)}" if found else None


def _loss_span(found) -> str | None:
    if not found or found["loss"][1] - found["loss"][0] < 1e-9:  # the loss is the target
        return None
    return "{:.4f} to {:.4f}".format(*found["loss"])


def _amount(value, digits=3) -> str:
    return format_quantity(value, digits=digits)


def _near(answer) -> str | None:
    if not answer.near_optimal:
        return None
    words = {"loss": "loss within {} of the best, same compute", "compute": "the same loss for {} more compute"}
    rows = [
        (words[near.kind].format(f"{near.within:.1%}"), *map(_amount, near.params), *map(_amount, near.tokens))
        for near in answer.near_optimal
    ]
    return format_table(("nearly as good", "N from", "to", "D from", "to"), rows)


def _marginal(answer) -> str | None:
    found = answer.marginal
    if found is None:
        return None
    return (
        f"Twice the compute buys {found.loss_per_doubling:.4g} nats per token (loss {found.loss_at_double:.6g}); "
        f"at the margin {found.multiplier:.4g} nats per FLOP, the Lagrange multiplier."
    )


def _inference(answer) -> str | None:
    found = answer.inference
    if found is None:
        return None
    alone = found["training_only"]
    other = f"{_amount(alone['params'], 4)} on {_amount(alone['tokens'], 4)}"
    constants = ", ".join(f"{k} {v:.6g}" for k, v in found["constants"].items() if k != "form")
    return (
        f"Serving {_amount(found['inference_tokens'])} tokens: lifetime {format_flops(found['lifetime_flops'])} FLOP "
        f"({found['convention']}), of which {_amount(found['inference_flops'])} serve.\n"
        f"The same loss from the training-only optimum, {other}, takes {_amount(alone['lifetime_flops'], 4)}: "
        f"{format_flops(found['saved_flops'], digits=3)} FLOP or {found['saved_share']:.1%}{_saved_span(answer)} saved,\n"
        f"with {constants}."
    )


def _saved_span(answer) -> str:
    span = (answer.intervals or {}).get("saved_share")
    return f" ({span[0]:.1%} to {span[1]:.1%})" if span else ""


def _data(answer) -> str | None:
    found = answer.data
    if found is None:
        return None
    return (
        f"{_amount(found['unique_tokens'], 4)} distinct tokens: {found['epochs']:.2f} epochs. Were all tokens fresh, "
        f"the loss would be {found['loss_if_all_fresh']:.6g}.\nR_D* = {found['R_D_star']:.4g}, "
        f"R_N* = {found['R_N_star']:.4g}. {found['note']}"
    )


def _comparisons(answer) -> str | None:
    if not answer.comparisons:
        return None
    rows = [
        (
            f"{_amount(c['params'], 4)} on {_amount(c['tokens'], 4)}",
            f"{c['tokens_per_param']:.3g}",
            _amount(c["flops"], 4),
            f"{c['loss']:.5f}",
            f"{c['loss_gap']:.5f}",
            f"{c['wasted_compute_factor']:.3f}",
            _waste_span(c),
        )
        for c in answer.comparisons
    ]
    headers = ("choice", "D/N", "FLOP", "loss", "loss above best", "compute factor", "interval")
    return format_table(headers, rows) + "\ncompute factor: its FLOP over the least FLOP that reach the same loss."


def _waste_span(comparison) -> str | None:
    found = comparison.get("intervals")
    return "{:.3f} to {:.3f}".format(*found["wasted_compute_factor"]) if found else None


def _robust(answer) -> str | None:
    found = answer.robust
    if found is None:
        return None
    return (
        f"Robust over the draws: N = {_amount(found['params'], 4)} on {_amount(found['tokens'], 4)} wastes "
        f"{found['mean_waste']:.1%} of the compute on average and {found['high_waste']:.1%} at the "
        f"{found['high_percentile']:.4g}th percentile; the best single guess {found['mean_waste_of_best']:.1%} and "
        f"{found['high_waste_of_best']:.1%}."
    )


def _laws(answer) -> str | None:
    if not answer.laws:
        return None
    rows = [
        (
            row["name"],
            _amount(row["params"], 4),
            _amount(row["tokens"], 4),
            f"{row['tokens_per_param']:.4g}",
            f"{row['loss']:.5f}",
            _factor(row["extrapolation_factor"]).partition(" ")[0],
        )
        for row in answer.laws
    ]
    table = format_table(("law", "N*", "D*", "D/N", "loss", "extrapolation"), rows)
    table += "\nLosses of different laws are on different data and tokenizers: compare N*, D* and D/N only."
    found = answer.robust_across_laws
    if found is None:
        return table
    worst = max(found["wasted_compute_factors"].values())
    return table + (
        f"\nRobust across them: N = {_amount(found['params'], 4)} on {_amount(found['tokens'], 4)} wastes at most "
        f"{worst - 1:.1%} of the compute under any of these laws (hoffmann2022-rounded aside)."
    )


def _shape(answer) -> str | None:
    shape = answer.shape
    if shape is None:
        return None
    heads = f"{shape['n_heads']} heads of {shape['head_width']}"
    if shape["n_kv_heads"] != shape["n_heads"]:
        heads += f" ({shape['n_kv_heads']} for keys and values)"
    groups = ", ".join(f"{name.replace('_', ' ')} {_amount(n)}" for name, n in shape["params_by_group"].items() if n)
    memory = shape["memory"]
    return "\n".join(
        (
            f"Shape   d = {shape['d_model']}, {shape['n_layers']} layers, {heads}, "
            f"{'gated' if shape['gated_mlp'] else 'plain'} MLP of {shape['d_ff']}, vocabulary {shape['vocab_size']:,}, "
            f"context {shape['context']:,}, {'tied' if shape['tied'] else 'untied'} head, "
            f"{shape['positions']} positions",
            f"        N = {format_quantity(shape['params'], digits=5)} ({groups})",
            f"        d/L {shape['aspect_ratio']:.3g} of {shape['aspect_range'][0]:g} to {shape['aspect_range'][1]:g}; "
            f"widths in multiples of {shape['multiple_of']}",
            f"Run     {shape['steps']:,} steps x {_amount(shape['batch_tokens'], 5)} tokens = "
            f"{format_quantity(shape['tokens'], digits=5)} tokens; compute {shape['flops_change']:+.1e}, "
            f"loss {shape['loss_penalty']:+.1e} nats against the exact optimum",
            f"Memory  {_bytes(memory['states_bytes'])} for weights, gradients and AdamW; "
            f"{_bytes(memory['activations_per_sequence_bytes'])} activations per sequence "
            f"({_bytes(memory['activations_recomputed_bytes'])} recomputed)" + _fewest(memory),
        )
    )


def _fewest(memory) -> str:
    fewest = memory.get("fewest_devices")
    return f"; at least {fewest} device{'s' if fewest > 1 else ''}" if fewest else ""


def _bytes(value) -> str:
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.0f} B"


def _cost(answer) -> str | None:
    cost = answer.cost
    if cost is None:
        return None
    parts = [f"{_hours(cost['gpu_hours'])} GPU-hours"]
    if cost["days"] is not None:
        parts.append(f"{cost['days']:.3g} days on {cost['gpus']:,.0f} GPUs")
    if cost["dollars"] is not None:
        parts.append(f"${_amount(cost['dollars'])} at ${cost['price_per_gpu_hour']:.2f} per GPU-hour")
    if cost["energy_kwh"] is not None:
        parts.append(f"{_amount(cost['energy_kwh'])} kWh at {cost['watts_per_gpu']:g} W each")
    device = cost["gpu"] or "device"
    peak = f"{cost['peak_flops_per_second'] / 1e12:g} TFLOP/s {cost['dtype']} dense"
    line = f"Cost    {', '.join(parts)} ({device}, {peak}, {cost['mfu']:.0%} MFU)"
    if cost["assumed"]:
        line += f"\n        assumed: {', '.join(cost['assumed'])}; {'; '.join(cost['notes'])}"
    if "implied_mfu" in cost:
        line += f"\n        {_hours(cost['gpu_hours_used'])} GPU-hours were used: MFU {cost['implied_mfu']:.3f}"
    return line


def _hours(value) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
