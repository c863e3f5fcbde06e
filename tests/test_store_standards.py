"""What a store writes, read by others: CIDs by multiformats, nodes by dag-cbor and libipld, bundles by ipld-car.

None of them is ours, and none knows tensors. `docs/store.md` and `docs/identity.md` are
enough to get from a bundle to the values.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from peers import needs
from stores import step, tensors
from tensorglot.store import Store
from tensorglot.wire.cid import CID


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.create(tmp_path / "store")
    first = {**tensors(1), **{f"layer.{i}": np.full(2, i) for i in range(300)}}
    store.commit("main", first, message="first", metadata={"step": "1", "more": [1, 2.5, None, True, b"x"]})
    store.commit("main", {**step(first, 1)}, message="second")
    return store


def their_cid(codec: int, block: bytes) -> Any:
    """The CID that multiformats gives to a block."""
    return needs("multiformats").CID("base32", 1, codec, ("blake3", blake3(block).digest()))


def test_blocks_have_the_cids_that_others_give_them(store: Store) -> None:
    codecs = {0x55: 0, 0x71: 0}
    commit = CID.parse(store.show("main").cid)
    stack, seen = [commit], set()
    while stack:
        cid = stack.pop()
        if cid in seen:
            continue
        seen.add(cid)
        block = store.blocks[cid]
        codecs[cid.codec] += 1
        theirs = their_cid(cid.codec, block)
        assert (str(theirs), bytes(theirs)) == (str(cid), bytes(cid))
        assert needs("multiformats").CID.decode(str(cid)) == theirs
        if cid.codec == 0x71:
            stack += [CID.from_bytes(bytes(link)) for link in links_of(needs("dag_cbor").decode(block))]
    assert codecs[0x55] > 300
    assert codecs[0x71] > 300


def links_of(value: Any) -> list[Any]:
    if isinstance(value, needs("multiformats").CID):
        return [value]
    if isinstance(value, dict):
        return [link for item in value.values() for link in links_of(item)]
    return [link for item in value for link in links_of(item)] if isinstance(value, list) else []


def test_every_node_is_canonical_dag_cbor(store: Store) -> None:
    """Two decoders agree, and encoding again gives the same bytes."""
    dag_cbor, libipld = needs("dag_cbor"), needs("libipld")
    nodes = 0
    for cid in list(store.blocks):
        block = store.blocks[cid]
        if block[:1] not in (b"\xa2", b"\xa4", b"\xa6", b"\xa7"):
            continue
        try:
            node = dag_cbor.decode(block)
        except Exception:  # noqa: BLE001 - data that begins like a map
            continue
        nodes += 1
        assert dag_cbor.encode(node) == block
        assert libipld.encode_dag_cbor(libipld.decode_dag_cbor(block)) == block
    assert nodes > 300


def test_a_bundle_is_a_car_file_from_which_a_stranger_gets_the_values(store: Store, tmp_path: Path) -> None:
    ipld_car, dag_cbor = needs("ipld_car"), needs("dag_cbor")
    store.bundle(tmp_path / "main.car", "main")
    roots, blocks = ipld_car.decode((tmp_path / "main.car").read_bytes())
    found = {bytes(cid): bytes(block) for cid, block in blocks}
    for cid, block in found.items():
        assert cid == bytes(their_cid(cid[1], block)), "each block matches its CID"
    (root,) = roots

    def node(link: Any) -> Any:
        return dag_cbor.decode(found[bytes(link)])

    bundle = node(root)
    assert (bundle["kind"], bundle["ref"], bundle["have"], bundle["tag"]) == ("bundle", "main", [], False)
    commit = node(bundle["commit"])
    assert (commit["kind"], commit["message"], commit["metadata"]) == ("commit", "second", None)
    (parent,) = commit["parents"]
    assert node(parent)["metadata"] == {"step": "1", "more": [1, 2.5, None, True, b"x"]}

    def entries(link: Any) -> dict[str, Any]:
        names = node(link)
        if "names" in names:
            return dict(zip(names["names"], names["links"], strict=True))
        return {name: array for child in names["links"] for name, array in entries(child).items()}

    for ref, commit_node in (("main", commit), (store.log("main")[1].cid, node(parent))):
        arrays = entries(commit_node["tensors"])
        archive = store.checkout(ref)
        assert list(arrays) == list(archive)
        for name in ("big", "small", "tiny", "layer.299"):
            array = node(arrays[name])
            data = array["data"]
            chunks = node(data)["chunks"] if data.codec.name == "dag-cbor" else [data]
            whole = b"".join(found[bytes(chunk)] for chunk in chunks)
            assert len(whole) == array["size"]
            assert whole == archive[name].numpy().tobytes()
            assert array["type"] == str(archive[name].type)


def test_a_bundle_with_deltas_is_a_car_file_too(store: Store, tmp_path: Path) -> None:
    ipld_car, dag_cbor = needs("ipld_car"), needs("dag_cbor")
    store.bundle(tmp_path / "part.car", "main", have=store.log("main")[1].cid)
    roots, blocks = ipld_car.decode((tmp_path / "part.car").read_bytes())
    assert all(bytes(cid) == bytes(their_cid(bytes(cid)[1], bytes(block))) for cid, block in blocks)
    nodes = [dag_cbor.decode(bytes(block)) for cid, block in blocks if bytes(cid)[1] == 0x71]
    deltas = [node for node in nodes if node.get("kind") == "delta"]
    assert len(deltas) == 2, "of the two chunks of the large tensor"
    assert all(node.keys() == {"base", "block", "body", "dynd", "encoding", "kind", "nbytes"} for node in deltas)
    (root,) = [node for node in nodes if node.get("kind") == "bundle"]
    assert [bytes(cid) for cid in root["have"]] == [bytes(CID.parse(store.log("main")[1].cid))]
    assert len(roots) == 1


def test_bundles_written_by_others_are_read(store: Store, tmp_path: Path) -> None:
    """The blocks in another order, written by another library."""
    ipld_car = needs("ipld_car")
    store.bundle(tmp_path / "main.car", "main")
    roots, blocks = ipld_car.decode((tmp_path / "main.car").read_bytes())
    other = Store.create(tmp_path / "other")
    other.unbundle(bytes(ipld_car.encode(roots, list(reversed(blocks)))))
    assert other.log("main") == store.log("main")
    assert other.check(data=True).ok
