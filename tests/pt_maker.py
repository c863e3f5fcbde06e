"""Makes files with torch, and a manifest of what torch.load finds in them. Runs in torch's own environment.

    python tests/pt_maker.py FOLDER

The folder tests/corpus/pt was made so, with torch 2.13.0.
"""

import collections
import hashlib
import json
import pathlib
import sys
import warnings

import torch

folder = pathlib.Path(sys.argv[1])
torch.manual_seed(3)


def of_each_dtype(*names):
    tensors = {}
    for name in names:
        kind = getattr(torch, name)
        raw = torch.randint(0, 2 if name == "bool" else 256, (6 * kind.itemsize,), dtype=torch.uint8)
        tensors[name] = raw.view(kind).reshape(2, 3)
        tensors[f"{name} turned"] = tensors[name].t()
    return tensors


def objects():
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    yield "tensor", torch.ones(3)
    yield "scalar", torch.tensor(2.5)
    yield "empty", {"a": torch.empty(0, 3), "b": torch.empty(2, 0)}
    yield "nothing", {}
    yield "list", [torch.ones(2), (torch.zeros(1), 7), []]
    yield "tied", {"a": base, "b": base, "c": base.clone()}
    yield (
        "strided",
        {
            "whole": base,
            "transposed": base.t(),
            "steps": base[1:4:2, ::3],
            "column": base[:, 2],
            "late": base[2:],
            "broadcast": torch.arange(3.0).expand(4, 3),
            "turned": torch.arange(60).reshape(3, 4, 5).permute(2, 0, 1),
            "windows": torch.arange(10).unfold(0, 4, 1),
            "last": base.flatten()[23:],
            "channels": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        },
    )
    yield "dtypes", of_each_dtype(
        "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64",
        "complex128",
    )  # fmt: skip
    yield "newer_dtypes", of_each_dtype(
        "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
        "float8_e8m0fnu",
    )  # fmt: skip
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    model[2].weight = torch.nn.Parameter(model[0].weight.t())
    model[0].bias.note = "an attribute"
    yield "module", model.state_dict()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    attributed = torch.ones(2)
    attributed.note = "an attribute"
    yield (
        "checkpoint",
        collections.OrderedDict(
            model=model.state_dict(),
            optimizer=optimizer.state_dict(),
            parameter=torch.nn.Parameter(torch.ones(2), requires_grad=False),
            attributed_parameter=model[0].bias,
            attributed=attributed,
            epoch=3,
            loss=float("inf"),
            large=2**100,
            negative=-5,
            name="é",
            raw=b"\x00\xff",
            nothing=None,
            yes=True,
            shape=torch.Size([1, 2]),
            device=torch.device("cuda", 1),
            dtype=torch.bfloat16,
            random=torch.get_rng_state()[:16],
        ),
    )


def leaves(value, path=()):
    """The tensors, by the keys that lead to them."""
    if isinstance(value, torch.Tensor):
        yield ".".join(map(str, path)) or "data", value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from leaves(item, (*path, i))


def entry(tensor):
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), hashlib.sha256(raw).hexdigest()]


warnings.simplefilter("ignore")
manifest = {}
for name, value in objects():
    forms = {f"{name}.pt": {}}
    if name != "newer_dtypes":  # torch 2.13.0 writes them in the legacy form, and cannot read them back
        forms |= {f"{name}.legacy.pt": {"_use_new_zipfile_serialization": False}}
    if name in ("checkpoint", "strided"):
        forms |= {f"{name}.protocol{p}.pt": {"pickle_protocol": p} for p in (3, 4, 5)}
        forms |= {f"{name}.legacy4.pt": {"pickle_protocol": 4, "_use_new_zipfile_serialization": False}}
    for file, options in forms.items():
        torch.save(value, folder / file, **options)
        loaded = torch.load(folder / file, weights_only=False)
        manifest[file] = {key: entry(tensor) for key, tensor in leaves(loaded)}
(folder / "manifest.json").write_text(json.dumps(manifest, indent=1))


def parts():
    """Sparse and quantized tensors, of forms that have a layout in zTensor and of others."""
    base = torch.arange(-6, 6, dtype=torch.float32).reshape(3, 4)
    sparse = base * (base > 2)
    scales, zeros = torch.tensor([0.5, 0.1, 0.25]), torch.tensor([0, 3, -2])
    yield "plain", base
    yield "coo", sparse.to_sparse()
    yield "csr", sparse.to_sparse_csr()
    yield "parameter", torch.nn.Parameter(sparse.to_sparse())
    yield "quantized", torch.quantize_per_tensor(base, 0.5, 7, torch.quint8)
    yield "quantized finely", torch.quantize_per_tensor(base, 0.1, -3, torch.qint8)
    yield "by channel", torch.quantize_per_channel(base, scales, zeros, 0, torch.qint8)
    yield "by column", torch.quantize_per_channel(base.t().contiguous(), scales, zeros, 1, torch.qint8)
    yield "csc", sparse.to_sparse_csc()
    yield "hybrid", sparse.to_sparse(1)
    yield "qint32", torch.quantize_per_tensor(base, 0.5, 0, torch.qint32)
    yield "turned", torch.quantize_per_tensor(base, 0.5, 7, torch.quint8).t()


(folder / "parts").mkdir(exist_ok=True)
found = dict(parts())
for file, zipped in {"parts.pt": True, "parts.legacy.pt": False}.items():
    torch.save(found, folder / "parts" / file, _use_new_zipfile_serialization=zipped)
dense = {name: t.dequantize() if t.is_quantized else t.detach().to_dense() for name, t in found.items()}
(folder / "parts" / "dense.json").write_text(json.dumps({name: t.tolist() for name, t in dense.items()}))
