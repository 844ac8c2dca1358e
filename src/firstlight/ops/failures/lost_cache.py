"""Compiles the same programs in every round, because its cache is emptied.

--sweep DIR   empty this cache folder after every round
--workers N   run N processes at once; with --apart DIR, each has its own cache there
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--sweep")
parser.add_argument("--workers", type=int, default=1)
parser.add_argument("--apart")
parser.add_argument("--rounds", type=int, default=1_000_000)
options = parser.parse_args()


def work() -> None:
    import jax
    import numpy as np

    def predict(x, depth):
        for _ in range(depth):
            x = jax.numpy.tanh(x @ x)
        return x.sum()

    for _ in range(options.rounds):
        compiled = jax.jit(predict, static_argnums=1)
        for depth in range(1, 13):
            float(compiled(np.eye(8, dtype="float32"), depth))
            time.sleep(0.05)
        jax.clear_caches()  # as when another tenant needs the memory
        if options.sweep:
            shutil.rmtree(options.sweep, ignore_errors=True)
            os.makedirs(options.sweep, 0o700, exist_ok=True)


def start_workers() -> None:
    command = [sys.executable, __file__, "--rounds", str(options.rounds)]
    workers = []
    for number in range(options.workers):
        environment, own = dict(os.environ), []
        if options.apart:
            folder = os.path.join(options.apart, str(number))
            os.makedirs(folder, 0o700, exist_ok=True)
            environment["FIRSTLIGHT_CACHE_DIR"] = folder
            own = ["--sweep", folder]
        workers.append(subprocess.Popen([*command, *own], env=environment))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # runs `finally`: no worker survives
    try:
        for worker in workers:
            worker.wait()
    finally:
        for worker in workers:
            worker.terminate()


if options.workers == 1:
    work()
else:
    start_workers()
