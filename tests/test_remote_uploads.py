"""Uploads to a server whose answers are wrong, and objects that are replaced in parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from peers import needs
from seaweed import KEY, SECRET, Seaweed
from stub_s3 import answer_with, stub_s3
from tensorglot.io.multipart import MultipartUpload, multipart_upload
from tensorglot.io.objects import guarded
from tensorglot.io.upload import Upload

pytestmark = pytest.mark.remote

OPTIONS = {"access_key_id": KEY, "secret_access_key": SECRET, "region": "us-east-1", "max_retries": 0}
Way = tuple[tuple[str, str], Any]
ANSWERS: dict[str, tuple[Way, Callable[[MultipartUpload], object], str]] = {
    "no upload": ((("POST", "uploads"), answer_with(200, b"<x/>")), lambda upload: upload.begin(), "remote.answer"),
    "no ETag of a part": ((("PUT", "model"), answer_with(200)), lambda upload: upload.send(1, b"x"), "remote.answer"),
    "an error": ((("POST", "uploadId"), answer_with(400)), lambda upload: upload.complete(['"x"']), "remote.http.400"),
    "another object": (
        (("HEAD", "model"), answer_with(200, ETag='"theirs"')),
        lambda upload: upload.complete(['"x"'], expect='"ours"'),
        "source.changed",
    ),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_wrong_answers_are_errors(case: str) -> None:
    needs("obstore")
    (place, way), call, rule = ANSWERS[case]
    with stub_s3(ways={place: way}) as (endpoint, _):
        upload = multipart_upload("s3://bucket/model.bt", {**OPTIONS, "endpoint": endpoint})
        assert upload is not None
        with pytest.raises(tg.TensorglotError) as caught:
            call(upload)
        assert caught.value.rule == rule


def test_an_error_before_the_first_byte_uploads_nothing() -> None:
    needs("obstore")
    with (
        stub_s3() as (endpoint, objects),
        pytest.raises(ZeroDivisionError),
        Upload("s3://bucket/model.bt", {**OPTIONS, "endpoint": endpoint}),
    ):
        1 / 0
    assert objects == {}


def test_an_error_that_is_not_of_the_server_stays_what_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        guarded("s3://bucket/model.bt", lambda: 1 / 0)


def test_an_empty_object(s3_server: Seaweed) -> None:
    needs("obstore").put(s3_server.client(), "uploads/empty.bt", b"")
    with pytest.raises(tg.FormatError, match=r"rule bintensors\.header\.length"):
        tg.open("s3://tests/uploads/empty.bt", storage_options=s3_server.options)
    with stub_s3(ways={("GET", "model.bt"): answer_with(416)}) as (endpoint, objects):
        objects["model.bt"] = b""
        with pytest.raises(tg.FormatError, match=r"rule bintensors\.header\.length"):
            tg.open("s3://bucket/model.bt", storage_options={**OPTIONS, "endpoint": endpoint})


@pytest.mark.parametrize("fails", [False, True])
def test_a_large_object_is_replaced_without_our_own_requests(
    fails: bool, s3_server: Seaweed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only obstore knows what to do with some options: it uploads the parts then."""
    url, options = "s3://tests/uploads/large.zt", {**s3_server.options, "unsigned_payload": "true"}
    assert multipart_upload(url, options) is None
    large = np.random.default_rng(5).integers(0, 256, 40_000_001, np.uint8)
    tg.save(url, {"large": large, "old": np.ones(2)}, storage_options=options)
    if fails:
        with pytest.raises(tg.InputError) as caught:
            tg.edit(url, drop=["old"], storage_options=options, progress=_replace_at(0.95, url, options))
        assert caught.value.rule == "source.changed"
        assert list(tg.load(url, storage_options=options)) == ["theirs"]
    else:
        assert tg.edit(url, drop=["old"], storage_options=options).changed
        assert (tg.load(url, storage_options=options)["large"] == large).all()
    assert not s3_server.uploads()


def _replace_at(share: float, url: str, options: dict[str, Any]) -> Callable[[int, int], None]:
    done: list[int] = []

    def report(now: int, total: int) -> None:
        if not done and now >= share * total:
            done.append(now)
            tg.save(url, {"theirs": np.arange(3)}, storage_options=options)

    return report
