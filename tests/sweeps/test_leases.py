"""Leases: one holder, and none that is dead."""

import json
import os
import subprocess
import sys
import threading
import time

from sweeps import leases

HOLD = (
    "import sys, time; from pathlib import Path; from sweeps import leases\n"
    "lease = leases.acquire(Path(sys.argv[1]))\n"
    "print('held' if lease else 'refused', flush=True)\n"
    "time.sleep(60)"
)


def hold_elsewhere(folder):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline().strip() == "held"
    return process


def test_one_holder_at_a_time_and_a_released_lease_is_free(tmp_path):
    first = leases.acquire(tmp_path)
    assert first is not None
    assert leases.acquire(tmp_path) is None
    assert leases.owner(tmp_path)["pid"] == os.getpid()
    first.release()
    assert leases.owner(tmp_path) is None
    second = leases.acquire(tmp_path)
    assert second is not None
    second.release()


def test_a_killed_owner_of_this_machine_holds_nothing(tmp_path):
    process = hold_elsewhere(tmp_path)
    assert leases.acquire(tmp_path) is None
    process.kill()
    process.wait()
    process.stdout.close()
    with leases.acquire(tmp_path) as lease:
        assert not lease.lost


def test_a_process_number_that_was_given_away_again_holds_nothing(tmp_path):
    lease = leases.acquire(tmp_path)
    path = tmp_path / "lease.1"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "started": content["started"] - 1}))
    with leases.acquire(tmp_path) as successor:
        assert successor is not None
    lease.release()


def test_an_owner_on_another_machine_is_believed_until_it_falls_silent(tmp_path):
    content = {"host": "elsewhere", "machine": "elsewhere/1/2", "pid": 1, "started": 1, "since": "now"}
    path = tmp_path / "lease.7"
    path.write_text(json.dumps(content))
    assert leases.acquire(tmp_path) is None
    assert leases.owner(tmp_path)["host"] == "elsewhere"
    silent = time.time() - leases.PATIENCE_SECONDS - 1
    os.utime(path, (silent, silent))
    with leases.acquire(tmp_path) as lease:
        assert lease is not None
    assert (tmp_path / "lease.8").exists()


def test_an_unreadable_lease_holds_only_while_it_is_fresh(tmp_path):
    path = tmp_path / "lease.1"
    path.write_bytes(b"\x00garbage")
    assert leases.acquire(tmp_path) is None
    os.utime(path, (1, 1))
    with leases.acquire(tmp_path) as lease:
        assert lease is not None


def test_a_lease_is_renewed_and_an_owner_that_was_replaced_notices(tmp_path):
    lease = leases.acquire(tmp_path, renew_seconds=0.02)
    os.utime(tmp_path / "lease.1", (1, 1))
    wait_until(lambda: (tmp_path / "lease.1").stat().st_mtime > 1)
    (tmp_path / "lease.2").write_text("{}")
    wait_until(lambda: lease.lost)
    lease.release()
    assert json.loads((tmp_path / "lease.2").read_text()) == {}


def test_of_many_that_ask_at_once_one_gets_it(tmp_path):
    for _ in range(10):
        barrier = threading.Barrier(8)
        got = []

        def ask(barrier=barrier, got=got):
            barrier.wait()
            got.append(leases.acquire(tmp_path))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        holders = [lease for lease in got if lease is not None]
        assert len(holders) == 1
        holders[0].release()
    assert len(list(tmp_path.glob("lease.*"))) <= leases.KEPT_GENERATIONS + 1


def wait_until(condition, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
