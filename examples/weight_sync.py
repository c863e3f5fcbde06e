"""Sends what a step of training changed to a server that has the weights in memory: `python weight_sync.py`.

The delta is a small file: a server applies it to its arrays in place, and refuses it if
they are not the ones that it was made for.
"""

import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np

from tensorglot import store


def sync(folder):
    """One round; returns the trainer's and the server's weights, and the size of the delta."""
    random = np.random.default_rng(0)
    old = {f"layers.{i}.weight": random.normal(0, 0.02, (512, 512)).astype(ml_dtypes.bfloat16) for i in range(4)}
    server = {name: array.copy() for name, array in old.items()}

    new = {name: array.copy() for name, array in old.items()}
    for array in new.values():  # a step of an optimizer changes a few of the bfloat16 values
        chosen = random.random(array.shape) < 0.02
        array[chosen] = (array[chosen].astype(np.float32) * 1.01).astype(array.dtype)

    delta = Path(folder) / "step-1.delta"
    store.delta(old, new, delta)
    store.apply(delta, server)
    return new, server, delta.stat().st_size


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        trained, served, nbytes = sync(folder)
    whole = sum(array.nbytes for array in trained.values())
    print(f"{nbytes:,} bytes sent for {whole:,} bytes of weights ({nbytes / whole:.1%})")
    print("the same:", all((trained[name] == served[name]).all() for name in trained))
