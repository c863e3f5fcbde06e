"""A training run whose every checkpoint is kept: `python training_loop.py FOLDER`.

The store keeps a tensor that did not change once, and of the others what changed: the tenth
checkpoint costs a fraction of the first. Run it twice: the second run resumes where the
first one stopped.
"""

import sys
from pathlib import Path

import numpy as np

from tensorglot.store import Store

STEPS, EVERY = 60, 10


def initial():
    random = np.random.default_rng(0)
    return {
        "embedding.weight": random.normal(0, 1, (4096, 16)),  # frozen
        "layer1.weight": random.normal(0, 0.5, (64, 16)),
        "layer2.weight": random.normal(0, 0.1, (1, 64)),
    }


def step(weights, random, rate=0.01):
    """One step of gradient descent towards y = sin(x · 1)."""
    inputs = weights["embedding.weight"][random.integers(0, 4096, 128)]
    wanted = np.sin(inputs.sum(axis=1, keepdims=True))
    hidden = np.tanh(inputs @ weights["layer1.weight"].T)
    error = hidden @ weights["layer2.weight"].T - wanted
    inner = (error @ weights["layer2.weight"]) * (1 - hidden**2)
    weights["layer2.weight"] -= rate * error.T @ hidden / len(inputs)
    weights["layer1.weight"] -= rate * inner.T @ inputs / len(inputs)
    return float((error**2).mean())


def train(folder):
    """The losses of this run."""
    path = Path(folder) / "run.store"
    with Store(path) if path.exists() else Store.create(path) as store:
        weights, done = initial(), 0
        if "main" in store.refs():
            last = store.log("main")[0]
            weights = {name: tensor.numpy() for name, tensor in store.checkout("main").items()}
            done = int(last.metadata["step"])
            print(f"resumed at step {done}, commit {last.cid[:16]}")
        losses = []
        for i in range(done, done + STEPS):
            losses.append(step(weights, np.random.default_rng(i)))
            if (i + 1) % EVERY == 0:
                commit = store.commit("main", weights, message=f"loss {losses[-1]:.4f}", metadata={"step": str(i + 1)})
                print(f"step {i + 1:4}  loss {losses[-1]:.4f}  {commit.cid[:16]}")
        newest, oldest = store.log("main")[0], store.log("main")[-1]
        print(store.diff(oldest.cid, newest.cid))
        print(store.stats())
        return losses


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python training_loop.py FOLDER")
    train(sys.argv[1])
