"""Names of columns as people write them, after `columns.normalise`: lower case, words joined by underscores.

Only whole names match, so "tokens_per_second" is never taken for `tokens`. The clearest name stands first.
"""


def _split(names: dict[str, str]) -> dict[str, tuple[str, ...]]:
    return {role: tuple(text.split()) for role, text in names.items()}


PRIMARY = _split({
    "params": (
        "params n_params num_params nparams numparams parameters n_parameters num_parameters number_of_parameters "
        "no_of_parameters parameter_count param_count params_count params_total total_params total_parameters "
        "total_param_count n_total n_params_total num_total_params model_params model_parameters model_size "
        "modelsize model_n_params model_num_params trainable_params trainable_parameters param size n"
    ),
    "tokens": (
        "tokens n_tokens num_tokens ntokens training_tokens train_tokens trained_tokens tokens_trained "
        "tokens_seen total_tokens n_train_tokens num_train_tokens n_training_tokens num_training_tokens "
        "number_of_tokens token_count tokens_total data_tokens train_total_tokens throughput_total_tokens "
        "num_tokens_seen tokens_processed consumed_tokens d"
    ),
    "flops": (
        "flops flop training_flops training_flop train_flops train_flop total_flops total_flop n_flops num_flops "
        "training_compute train_compute total_compute compute compute_flops compute_flop flops_total flop_total "
        "compute_budget flops_budget flop_budget budget_flops budget isoflop_budget throughput_total_flops "
        "total_training_flops c c_6nd 6nd"
    ),
})  # fmt: skip

# Roles that never stop a reading: the first name found is taken.
SECONDARY = _split({
    "run_id": "run_id runid id run_name run name experiment_name trial_id trial",
    "status": "status state run_status outcome",
    "learning_rate": "learning_rate lr peak_lr peak_learning_rate max_lr max_learning_rate",
    "seed": "seed random_seed init_seed",
    "tokenizer": "tokenizer tokeniser tokenizer_name vocab",
    "metric": "metric loss_metric loss_unit metric_name loss_units",
    "corpus": "corpus dataset training_set train_set train_dataset training_data train_data",
    "eval_set": "eval_set evaluation_set eval_dataset eval_data val_set validation_set val_dataset",
    "version": "version code_version git_sha git_commit commit commit_hash git_hash",
    "unique_tokens": "unique_tokens n_unique_tokens unique_d num_unique_tokens u",
    "batch_tokens": "batch_tokens tokens_per_batch tokens_per_step batch_size_tokens batch_size_in_tokens",
    "steps": "steps n_steps num_steps train_steps training_steps current_step current_steps",
    "total_steps": "total_steps max_steps schedule_steps planned_steps num_train_steps",
    "schedule_end_tokens": (
        "schedule_end_tokens schedule_end schedule_tokens planned_tokens lr_decay_tokens"
    ),
    "fraction": "frac portion_steps_elapsed fraction fraction_done progress fraction_of_schedule",
    "warmup_tokens": "warmup_tokens n_warmup_tokens warm_up_tokens",
    "warmup_steps": "warmup_steps num_warmup_steps warmup_iters warm_up_steps",
    "warmup_share": "warmup_share warmup_ratio warmup_fraction warmup_percent warmup",
    "vocab_size": "vocab_size vocabulary_size n_vocab vocab_len",
    "bytes_per_token": "bytes_per_token avg_bytes_per_token bytes_token",
    "loss_se": "loss_se loss_stderr loss_sem loss_std_err loss_standard_error",
    "bits_per_byte": "bits_per_byte bpb",
    "history_step": "_step",
    "outlier": "outlier is_outlier epoch_outlier outliers",
    "reason": "reason outlier_reason failure_reason",
})  # fmt: skip
NUMERIC = (
    "learning_rate", "unique_tokens", "batch_tokens", "steps", "total_steps", "schedule_end_tokens", "fraction",
    "warmup_tokens", "warmup_steps", "warmup_share", "vocab_size", "bytes_per_token", "loss_se",
    "params_non_embedding", "params_active",
)  # fmt: skip
# Lesser roles whose columns take our name, because other commands look for it; the rest keep their own.
RENAMED = ("run_id", "status", "unique_tokens", "params_non_embedding", "params_active", "loss_se")
ROLES = (*PRIMARY, "loss", "params_non_embedding", "params_active", *SECONDARY)
# Our own names: beside rivals they win, and the rivals are listed.
DECLARED = {"params": ("params", "n_params"), "tokens": ("tokens", "n_tokens"), "flops": ("flops",), "loss": ("loss",)}

UNITS = {  # first or last word of a header: power of ten
    "k": 3, "thousand": 3, "thousands": 3, "m": 6, "mn": 6, "mil": 6, "million": 6, "millions": 6,
    "b": 9, "bn": 9, "bil": 9, "billion": 9, "billions": 9, "t": 12, "tn": 12, "trillion": 12, "trillions": 12,
}  # fmt: skip

LOSS_NAMES = tuple(
    (
        "loss val_loss validation_loss valid_loss eval_loss test_loss heldout_loss held_out_loss final_loss "
        "final_val_loss final_eval_loss macro_loss l"
    ).split()
)
LOSS_WORDS = {"loss", "losses", "nll", "xent", "crossentropy", "ce"}
# Words that make a name with "loss" in it something else: an interval, a weight, a prediction.
NOT_A_LOSS = set(
    (
        "lo hi low high lo95 hi95 lower upper ci se sd std sem stderr var variance error err delta diff gap weight "
        "coef coefficient fn function type name scale scaling spike spikes aux auxiliary z min max ema smoothed count "
        "n step steps rank pred predicted prediction fit fitted resid residual tolerance target balance balancing "
        "units unit metric quantile time ratio slope noise"
    ).split()
)
