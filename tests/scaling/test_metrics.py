"""Units of a loss: converted when nothing is assumed, kept and said otherwise, never mixed."""

import math

import numpy as np
import pytest

from scaling.errors import InputError
from scaling.metrics import METRICS, parse_metric, to_nats
from scaling.runs import read_runs
from tests.scaling.tables import write_csv


def test_conversions_to_nats_per_token():
    loss = np.array([1.0, 2.0])
    size = np.array([4.0, 4.5])
    assert to_nats(np.exp(loss), "perplexity", None)[0] == pytest.approx(loss)
    assert to_nats(loss, "bits_per_token", None)[0] == pytest.approx(loss * math.log(2))
    assert to_nats(loss, "bits_per_byte", size)[0] == pytest.approx(loss * math.log(2) * size)
    assert to_nats(loss, "nats_per_byte", size)[0] == pytest.approx(loss * size)


def test_bits_per_byte_stay_without_the_bytes_per_token_of_every_row():
    loss = np.array([1.0, 2.0])
    for size in (None, np.array([4.0, np.nan])):
        values, metric, said = to_nats(loss, "bits_per_byte", size)
        assert (values == loss).all() and metric == "bits_per_byte" and "need bytes_per_token for every row" in said


def test_metric_names():
    assert (
        parse_metric("bpb") == "bits_per_byte"
        and parse_metric("PPL") == "perplexity"
        and parse_metric(None) == "nats_per_token"
    )
    assert all(parse_metric(name) == name for name in METRICS)
    with pytest.raises(InputError, match='unknown metric "accuracy". Known metrics: nats_per_token'):
        parse_metric("accuracy")


@pytest.mark.parametrize(
    ("column", "factor"),
    [("val_ppl", None), ("eval/perplexity", None), ("bits_per_token", math.log(2)), ("eval/bpt", math.log(2))],
)
def test_a_metric_is_recognised_from_the_name_of_the_column(tmp_path, column, factor):
    runs = read_runs(write_csv(tmp_path, f"params,tokens,{column}\n1e6,1e8,20\n2e6,1e8,18\n"))
    expected = [math.log(20), math.log(18)] if factor is None else [20 * factor, 18 * factor]
    assert runs.table["loss"].tolist() == pytest.approx(expected) and runs.metric == "nats_per_token"
    assert any(note.startswith("loss = ") for note in runs.notes)


def test_bits_per_byte_of_a_column_are_kept_or_converted(tmp_path):
    runs = read_runs(write_csv(tmp_path, "params,tokens,val_bpb\n1e6,1e8,1.2\n2e6,1e8,1.1\n"))
    assert runs.metric == "bits_per_byte" and runs.table["loss"].tolist() == [1.2, 1.1]
    assert any("in bits per byte, not nats per token" in w for w in runs.warnings)
    runs = read_runs(write_csv(tmp_path, "params,tokens,val_bpb,bytes_per_token\n1e6,1e8,1.2,4\n2e6,1e8,1.1,4\n"))
    assert runs.metric == "nats_per_token" and runs.table["loss"][0] == pytest.approx(1.2 * math.log(2) * 4)


def test_nats_win_over_a_column_in_bits(tmp_path):
    runs = read_runs(write_csv(tmp_path, "params,tokens,loss,bits_per_byte\n1e6,1e8,3.2,1.2\n"))
    assert runs.table["loss"].tolist() == [3.2] and runs.metric == "nats_per_token"


def test_a_metric_can_be_declared(tmp_path):
    path = write_csv(tmp_path, "params,tokens,loss\n1e6,1e8,20\n2e6,1e8,18\n")
    assert read_runs(path, metric="ppl").table["loss"][0] == pytest.approx(math.log(20))
    assert read_runs(path, metric="other").metric == "other"


def test_a_metric_column_is_read_row_by_row(tmp_path):
    rows = "1e6,1e8,20,ppl\n2e6,1e8,2.9,nats\n"
    runs = read_runs(write_csv(tmp_path, "params,tokens,loss,metric\n" + rows))
    assert runs.table["loss"].tolist() == pytest.approx([math.log(20), 2.9]) and runs.metric == "nats_per_token"
    runs = read_runs(write_csv(tmp_path, "params,tokens,loss,metric\n" + rows + "3e6,1e8,0.9,bpb\n"))
    assert runs.metric == "mixed"
    with pytest.raises(InputError, match='line 4: column metric: unknown metric "acc"'):
        read_runs(write_csv(tmp_path, "params,tokens,loss,metric\n" + rows + "3e6,1e8,0.9,acc\n"))


def test_a_unigram_normalised_loss_is_refused(tmp_path):
    with pytest.raises(InputError, match=r'"Lossu" is a loss normalised by a unigram model: -1.5 at line 3'):
        read_runs(write_csv(tmp_path, "params,tokens,Lossu\n1e6,1e8,0.5\n2e6,1e8,-1.5\n"))
