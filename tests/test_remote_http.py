"""HTTP servers, good and hostile, and the hub: clear errors, bounded time and memory, no token on another host."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import pickle
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from bounds import MB, allocated_nbytes
from command_line import run
from gallery import same
from http_servers import Site, serve
from peers import needs
from tensorglot import report

pytestmark = pytest.mark.remote

TENSORS = {"w": np.arange(200_000, dtype=np.float32).reshape(400, 500), "b": np.arange(7)}
DATA = tg.dumps(TENSORS, format="safetensors")
QUICK = {"timeout": "2s", "read_timeout": "1s", "max_retries": 0}
TOKEN = "hf_secret-of-tests"


@pytest.fixture(autouse=True)
def _needs_obstore() -> None:
    needs("obstore")


@pytest.fixture
def site() -> Iterator[Site]:
    with serve() as site:
        site.files["/model.safetensors"] = DATA
        yield site


class TestGood:
    def test_read_and_sliced(self, site: Site) -> None:
        url = f"{site.url}/model.safetensors"
        assert same(tg.load(url), TENSORS)
        with tg.open(url) as archive:
            assert (archive["w"][5:9, ::3] == TENSORS["w"][5:9, ::3]).all()
            assert pickle.loads(pickle.dumps(archive)).keys() == TENSORS.keys()
        assert tg.verify(url, deep=True).ok
        assert tg.diff(url, TENSORS).same

    def test_threads_that_scan_and_slice_the_same_archive(self, site: Site) -> None:
        """Short reads, columns and whole tensors at the same time: they share what is read ahead."""
        tensors = {f"w{i}": np.arange(i, i + 300_000, dtype=np.int32).reshape(600, 500) for i in range(24)}
        site.files["/many.safetensors"] = tg.dumps(tensors, format="safetensors")
        with tg.open(f"{site.url}/many.safetensors") as archive, ThreadPoolExecutor(64) as pool:

            def scan(name: str) -> bool:
                tensor = archive[name]
                parts = [tensor[row : row + 20] for row in range(0, 600, 20)]
                return bool((np.concatenate(parts) == tensors[name]).all())

            def columns(name: str) -> bool:
                return bool((archive[name][:, 3::50] == tensors[name][:, 3::50]).all())

            def whole(name: str) -> bool:
                return bool((archive[name].numpy() == tensors[name]).all())

            jobs = [pool.submit(work, name) for name in tensors for work in (scan, columns, whole)]
            assert all(job.result(timeout=120) for job in jobs)

    def test_a_query_belongs_to_the_url_and_is_never_shown(self, site: Site) -> None:
        url = f"{site.url}/model.safetensors?signature=SIGNATURE"
        with tg.open(url) as archive:
            assert (archive["w"].numpy() == TENSORS["w"]).all()
            with pytest.raises(tg.InputError, match="pickled"):
                pickle.dumps(archive)
            with pytest.raises(tg.InputError, match="pickled"):
                pickle.dumps(archive["w"])
            assert "SIGNATURE" not in repr(archive.source)
        page = io.BytesIO()
        tg.report.write(url, page)
        assert b"SIGNATURE" not in page.getvalue()
        assert {request.path for request in site.requests} == {"/model.safetensors?signature=SIGNATURE"}
        for way in ("fails", "forbidden", "ignores_range"):
            site.ways["/model.safetensors"] = way
            with pytest.raises((tg.TensorglotError, OSError)) as caught:
                tg.open(url, storage_options=QUICK)
            error: BaseException | None = caught.value
            while error is not None:
                assert "SIGNATURE" not in f"{error}{error!r}{vars(error)}"
                error = error.__context__

    def test_a_report_does_not_show_the_query(self, site: Site, tmp_path: Path) -> None:
        report.write(f"{site.url}/model.safetensors?signature=SIGNATURE", tmp_path / "page.html")
        assert "SIGNATURE" not in (tmp_path / "page.html").read_text()

    def test_a_user_and_password_are_never_shown(self, site: Site) -> None:
        url = f"{site.url}/nothing".replace("://", "://user:PASSWORD@")
        with pytest.raises(FileNotFoundError) as caught:
            tg.open(url)
        assert "PASSWORD" not in f"{caught.value}{caught.value!r}{caught.value.filename}"

    def test_shards_without_a_listing(self, site: Site) -> None:
        names = {"one.safetensors": {"w": TENSORS["w"]}, "two.safetensors": {"b": TENSORS["b"]}}
        weight_map = {name: file for file, tensors in names.items() for name in tensors}
        site.files |= {f"/m/{file}": tg.dumps(tensors, format="safetensors") for file, tensors in names.items()}
        site.files["/m/model.safetensors.index.json"] = json.dumps({"weight_map": weight_map}).encode()
        for place in ("/m/", "/m/model.safetensors.index.json"):
            assert same(tg.load(site.url + place), TENSORS)
        site.files["/single/model.safetensors"] = DATA
        assert same(tg.load(f"{site.url}/single/"), TENSORS)
        with pytest.raises(tg.InputError, match="no index of shards"):
            tg.open(f"{site.url}/empty/")

    def test_an_index_cannot_lead_to_another_server(self, site: Site) -> None:
        for shard in ("http://localhost/x.safetensors", "../x.safetensors", "/x.safetensors", "x?y/z"):
            document = {"weight_map": {"w": shard}}
            site.files["/m/model.safetensors.index.json"] = json.dumps(document).encode()
            with pytest.raises(tg.FormatError, match=r"rule shards\.name"):
                tg.open(f"{site.url}/m/model.safetensors.index.json")
        assert all(request.path.startswith("/m/model.safetensors.index.json") for request in site.requests)

    def test_an_empty_file(self, site: Site) -> None:
        site.files["/model.safetensors"] = b""
        with pytest.raises((tg.FormatError, tg.RemoteError), match=r"rule remote\.answer"):
            tg.open(f"{site.url}/model.safetensors")

    def test_it_cannot_be_written_or_mapped(self, site: Site) -> None:
        with pytest.raises(tg.UnsupportedError, match="can be read, not written"):
            tg.save(f"{site.url}/new.bt", TENSORS)
        with pytest.raises(tg.InputError, match="mapped"):
            tg.open(f"{site.url}/model.safetensors", backend="mmap")

    def test_a_closed_archive(self, site: Site) -> None:
        with tg.open(f"{site.url}/model.safetensors") as archive:
            tensor = archive["w"]
        with pytest.raises(tg.InputError, match="closed"):
            tensor.numpy()


REFUSED: dict[str, tuple[type[Exception], str]] = {
    "ignores_range": (tg.UnsupportedError, "remote.range"),
    "error_page": (tg.UnsupportedError, "remote.range"),
    "short": (tg.RemoteError, "remote.short"),
    "breaks_off": (tg.RemoteError, "remote"),
    "long": (tg.RemoteError, "remote.long"),
    "endless": (tg.RemoteError, "remote.long"),
    "endless_chunks": (tg.RemoteError, "remote.answer"),
    "stalls": (tg.RemoteError, "remote.timeout"),
    "drips": (tg.RemoteError, "remote.timeout"),
    "drips_headers": (tg.RemoteError, "remote.timeout"),
    "never_answers": (tg.RemoteError, "remote.timeout"),
    "another_range": (tg.RemoteError, "remote.answer"),
    "unknown_size": (tg.RemoteError, "remote.answer"),
    "fails": (tg.RemoteError, "remote.http.503"),
    "garbage": (tg.RemoteError, "remote"),
    "hangs_up": (tg.RemoteError, "remote"),
}


class TestHostile:
    @pytest.mark.parametrize("way", REFUSED)
    def test_when_it_is_opened(self, way: str, site: Site) -> None:
        site.ways["/model.safetensors"] = way
        self._refused(way, lambda: tg.open(f"{site.url}/model.safetensors", storage_options=QUICK))

    @pytest.mark.parametrize("way", REFUSED)
    def test_when_a_tensor_is_read(self, way: str, site: Site) -> None:
        with tg.open(f"{site.url}/model.safetensors", storage_options=QUICK) as archive:
            site.ways["/model.safetensors"] = way
            self._refused(way, archive["w"].numpy)

    def _refused(self, way: str, call: Any) -> None:
        kind, rule = REFUSED[way]
        begun = time.monotonic()

        def attempt() -> None:
            with pytest.raises(kind) as caught:
                call()
            assert str(getattr(caught.value, "rule", "")).startswith(rule), caught.value
            assert isinstance(caught.value, (OSError, tg.UnsupportedError))

        assert allocated_nbytes(attempt) < 20 * MB
        assert time.monotonic() - begun < 15, "bounded by the time limits of the options"

    @pytest.mark.parametrize(("retries", "succeeds"), [(0, False), (2, True)])
    def test_what_fails_once_is_tried_again(self, retries: int, succeeds: bool, site: Site) -> None:
        site.ways["/model.safetensors"] = "fails_at_first"
        options = {**QUICK, "max_retries": retries}
        if succeeds:
            assert same(tg.load(f"{site.url}/model.safetensors", storage_options=options), TENSORS)
        else:
            with pytest.raises(tg.RemoteError):
                tg.load(f"{site.url}/model.safetensors", storage_options=options)
            assert len(site.requests) == 1

    @pytest.mark.parametrize("way", ["forbidden", "unauthorized"])
    def test_refused_access(self, site: Site, way: str) -> None:
        site.ways["/model.safetensors"] = way
        with pytest.raises(PermissionError, match="credentials"):
            tg.open(f"{site.url}/model.safetensors")

    def test_a_size_that_is_a_lie(self, site: Site) -> None:
        """The header is there, the tensors are where they should be; what is beyond fails when it is read."""
        site.ways["/model.safetensors"] = "huge_size"
        with pytest.raises(tg.FormatError, match=r"rule safetensors\.data\.trailing"):
            tg.open(f"{site.url}/model.safetensors", storage_options=QUICK)

    @pytest.mark.parametrize("etag", ['"one"', 'W/"one"', None])
    def test_an_object_replaced_between_two_reads(self, etag: str | None, site: Site) -> None:
        """Found by If-Match, by the ETag of the answer, or without one by the size."""
        site.etag = etag
        with tg.open(f"{site.url}/model.safetensors") as archive:
            assert (archive["w"].numpy() == TENSORS["w"]).all()
            site.etag = etag and etag.replace("one", "two")
            site.files["/model.safetensors"] = DATA + bytes(8)
            with pytest.raises(tg.InputError) as caught:
                archive["w"].numpy()
            assert caught.value.rule == "source.changed"

    def test_redirects_without_end(self, site: Site) -> None:
        site.redirects["/loop"] = "/loop"
        with pytest.raises(tg.RemoteError) as caught:
            tg.open(f"{site.url}/loop", storage_options=QUICK)
        assert caught.value.rule == "remote.redirect"

    def test_a_token_does_not_follow_a_redirect_to_another_host(self, site: Site) -> None:
        with serve("localhost") as other:
            other.files["/bytes"] = DATA
            site.redirects["/moved"] = f"{other.url}/bytes"
            options = {"default_headers": {"Authorization": f"Bearer {TOKEN}"}}
            assert same(tg.load(f"{site.url}/moved", storage_options=options), TENSORS)
            assert {request.token for request in site.requests} == {f"Bearer {TOKEN}"}
            assert {request.token for request in other.requests} == {None}

    def test_a_server_that_is_not_there(self) -> None:
        with serve() as gone:
            url = gone.url
        with pytest.raises(tg.RemoteError) as caught:
            tg.open(f"{url}/model.bt", storage_options=QUICK)
        assert caught.value.rule == "remote.connect"
        assert isinstance(caught.value, OSError)
        assert pickle.loads(pickle.dumps(caught.value)).rule == "remote.connect"

    def test_the_command_line_reports_it_as_an_io_error(self, site: Site) -> None:
        site.ways["/model.safetensors"] = "short"
        assert "bytes (byte" in run("ls", f"{site.url}/model.safetensors", code=5).output


@pytest.mark.parametrize(
    ("url", "kind", "rule"),
    [
        ("ftp://host/x.bt", tg.UnsupportedError, "url.scheme"),
        ("http://", tg.InputError, "url.syntax"),
        ("http://host:99999999/x", tg.InputError, "url.syntax"),
        ("http://[::1/x", tg.InputError, "url.syntax"),
        ("s3://", tg.InputError, "url.syntax"),
        ("s3://bucket/a//x.bt", tg.InputError, "url.syntax"),
        ("s3://bucket/../x.bt", tg.InputError, "url.syntax"),
        ("gs://bucket/./x.bt", tg.InputError, "url.syntax"),
        ("hf://alone", tg.InputError, "url.hub"),
        ("file://other-host/x.bt", tg.InputError, "url.file"),
        ("x://y://z", tg.UnsupportedError, "url.scheme"),
        ("a b://c", tg.UnsupportedError, "url.scheme"),
    ],
)
def test_urls_that_are_none(url: str, kind: type[tg.TensorglotError], rule: str) -> None:
    for call in (tg.open, tg.load, tg.verify):
        with pytest.raises(kind) as caught:
            call(url)  # type: ignore[operator]
        assert caught.value.rule == rule


@pytest.mark.parametrize(
    "options",
    [5, [], {"timeout": "soon"}, {"max_retries": "many"}, {"endpoint": object()}, {1: 2}, {"unknown": "x"}],
    ids=["number", "list", "time", "count", "object", "key", "unknown"],
)
def test_options_that_are_none(options: Any, site: Site) -> None:
    with pytest.raises(tg.InputError) as caught:
        tg.open(f"{site.url}/model.safetensors", storage_options=options)
    assert caught.value.rule == "url.options"


@pytest.mark.parametrize("scheme", ["http", "s3", "hf"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timeout", -1), ("connect_timeout", "-5s"), ("read_timeout", timedelta(seconds=-1)), ("retry_timeout", "nan"),
        ("max_retries", -1), ("max_retries", 1 << 32), ("max_retries", float("inf")), ("default_headers", "x"),
        ("default_headers", {"x": 1, 2: "y"}), ("root_certificate", True), ("user_agent", b"x"), ("proxy_url", {}),
    ],
)  # fmt: skip
def test_an_option_of_the_wrong_kind_is_refused(scheme: str, name: str, value: Any) -> None:
    with pytest.raises(tg.InputError, match=r"storage.option") as caught:
        tg.open(f"{scheme}://a/b/x.bt", storage_options={name: value})
    assert caught.value.rule == "url.options"


@pytest.mark.parametrize("option", ["default_headers=x", "timeout=-1", "bucket=other"])
def test_an_option_of_the_command_line_of_the_wrong_kind_is_no_bug(option: str) -> None:
    assert "error: " in run("ls", "s3://a/b.bt", "--storage-option", option, code=2).stderr


def child(url: str, answers: Any) -> None:
    try:
        tg.open(url)
    except tg.InputError as error:
        answers.put(error.rule)
    else:
        answers.put("opened")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_is_refused_and_does_not_hang(site: Site) -> None:
    url = f"{site.url}/model.safetensors"
    tg.open(url)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=child, args=(url, answers))
    process.start()
    assert answers.get(timeout=60) == "source.fork"
    process.join()


class TestHub:
    """A server that answers as the hub does: a redirect to the host that has the bytes."""

    @pytest.fixture
    def cdn(self) -> Iterator[Site]:
        with serve("localhost") as cdn:
            cdn.files["/blob"] = DATA
            yield cdn

    @pytest.fixture
    def hub(self, cdn: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Site]:
        with serve() as hub:
            hub.redirects["/org/repo/resolve/v1/model.safetensors"] = f"{cdn.url}/blob?Signature=SIGNATURE"
            monkeypatch.setenv("HF_ENDPOINT", hub.url)
            monkeypatch.setenv("HF_HOME", str(tmp_path))
            monkeypatch.delenv("HF_TOKEN", raising=False)
            monkeypatch.delenv("HF_TOKEN_PATH", raising=False)
            yield hub

    def test_the_token_goes_to_the_hub_only(self, hub: Site, cdn: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        with tg.open("hf://org/repo@v1/model.safetensors") as archive:
            assert same({name: tensor.numpy() for name, tensor in archive.items()}, TENSORS)
            assert "SIGNATURE" not in repr(archive.source)
            data = pickle.dumps(archive)
        assert TOKEN.encode() not in data
        assert b"SIGNATURE" not in data
        assert [request.token for request in hub.requests] == [f"Bearer {TOKEN}"], "asked once"
        assert {request.token for request in cdn.requests} == {None}
        assert len(cdn.requests) <= 1 + len(TENSORS)

    @pytest.mark.parametrize("where", ["HF_HOME", "HF_TOKEN_PATH", "storage_options"])
    def test_where_a_token_may_be(self, where: str, hub: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        options = {"token": TOKEN} if where == "storage_options" else None
        if where == "HF_HOME":
            (tmp_path / "token").write_text(f"{TOKEN}\n")
        elif where == "HF_TOKEN_PATH":
            (tmp_path / "elsewhere").write_text(TOKEN)
            monkeypatch.setenv(where, str(tmp_path / "elsewhere"))
        tg.open("hf://org/repo@v1/model.safetensors", storage_options=options)
        assert hub.requests[0].token == f"Bearer {TOKEN}"

    def test_a_signature_that_expires_is_renewed(self, hub: Site, cdn: Site) -> None:
        with tg.open("hf://org/repo@v1/model.safetensors") as archive:
            cdn.ways["/blob"] = "forbidden"
            cdn.files["/again"] = DATA
            hub.redirects["/org/repo/resolve/v1/model.safetensors"] = f"{cdn.url}/again?Signature=OTHER"
            assert (archive["w"].numpy() == TENSORS["w"]).all()

    def test_two_threads_renew_a_signature_once(self, hub: Site, cdn: Site) -> None:
        """Both are refused before one of them has asked the hub again."""
        with tg.open("hf://org/repo@v1/model.safetensors") as archive, ThreadPoolExecutor(2) as pool:
            cdn.ways["/blob"] = "forbidden_together"
            cdn.files["/again"] = DATA
            hub.redirects["/org/repo/resolve/v1/model.safetensors"] = f"{cdn.url}/again?Signature=OTHER"
            hub.clear()
            found = list(pool.map(lambda row: archive["w"][row], [200, 399]))
            assert (np.array(found) == TENSORS["w"][[200, 399]]).all()
            assert len(hub.requests) == 1

    def test_the_hub_gets_the_user_agent_of_the_caller(self, hub: Site) -> None:
        options = {"default_headers": {"User-Agent": "mine/1"}}
        tg.open("hf://org/repo@v1/model.safetensors", storage_options=options)
        assert [request.headers["user-agent"] for request in hub.requests] == ["mine/1"]

    def test_a_hub_that_accepts_no_connection(self, monkeypatch: pytest.MonkeyPatch) -> None:
        options = {"timeout": "0.2s", "connect_timeout": "1s", "max_retries": 0}
        with socket.create_server(("127.0.0.1", 0), backlog=0) as server, ExitStack() as stack:
            for _ in range(3):  # fill the queue of connections: further ones are not even refused
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(server.getsockname())
            monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
            with pytest.raises(tg.RemoteError) as caught:
                tg.open("hf://org/repo/model.safetensors", storage_options=options)
        assert caught.value.rule == "remote.timeout"

    def test_small_files_come_from_the_hub_itself(self, hub: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        hub.files["/org/repo/resolve/main/model.safetensors"] = DATA
        assert same(tg.load("hf://org/repo/model.safetensors"), TENSORS)
        assert {request.token for request in hub.requests} == {f"Bearer {TOKEN}"}

    def test_a_renamed_repository(self, hub: Site, cdn: Site) -> None:
        hub.redirects["/old/repo/resolve/main/m.safetensors"] = "/org/repo/resolve/v1/model.safetensors"
        assert same(tg.load("hf://old/repo/m.safetensors"), TENSORS)

    def test_datasets_revisions_and_whole_repositories(self, hub: Site) -> None:
        hub.files["/datasets/org/data/resolve/refs%2Fpr%2F1/a%20b.safetensors"] = DATA
        assert same(tg.load("hf://datasets/org/data@refs%2Fpr%2F1/a b.safetensors"), TENSORS)
        hub.files["/org/whole/resolve/main/model.safetensors"] = DATA
        assert same(tg.load("hf://org/whole"), TENSORS)

    def test_errors_of_the_hub(self, hub: Site, cdn: Site) -> None:
        with pytest.raises(FileNotFoundError, match="no such object"):
            tg.open("hf://org/repo/nothing.safetensors")
        hub.files["/org/repo/resolve/main/m.safetensors"] = DATA
        for way, kind in (("forbidden", PermissionError), ("fails", tg.RemoteError), ("garbage", tg.RemoteError)):
            hub.ways["/org/repo/resolve/main/m.safetensors"] = way
            with pytest.raises(kind):
                tg.open("hf://org/repo/m.safetensors", storage_options=QUICK)
        for way, (kind, rule) in REFUSED.items():
            if way in ("short", "long", "ignores_range", "endless"):
                cdn.ways["/blob"] = way
                with pytest.raises(kind) as caught:
                    tg.open("hf://org/repo@v1/model.safetensors", storage_options=QUICK)
                assert caught.value.rule.startswith(rule)  # type: ignore[attr-defined]
                assert "SIGNATURE" not in str(caught.value)
        hub.redirects["/org/repo/resolve/main/f.safetensors"] = "file:///etc/passwd"
        with pytest.raises(tg.RemoteError, match="not HTTP"):
            tg.open("hf://org/repo/f.safetensors")

    @pytest.mark.parametrize("way", ["never_answers", "drips_headers", "stalls"])
    def test_a_hub_that_stalls_is_left_within_the_limits_of_the_options(self, way: str, hub: Site) -> None:
        hub.files["/org/repo/resolve/main/m.safetensors"] = DATA
        hub.ways["/org/repo/resolve/main/m.safetensors"] = way
        begun = time.monotonic()
        with pytest.raises(tg.RemoteError) as caught:
            tg.open("hf://org/repo/m.safetensors", storage_options=QUICK)
        assert caught.value.rule == "remote.timeout"
        assert time.monotonic() - begun < 10

    def test_a_hub_that_fails_once_is_asked_again(self, hub: Site) -> None:
        hub.files["/org/repo/resolve/main/m.safetensors"] = DATA
        hub.ways["/org/repo/resolve/main/m.safetensors"] = "fails_at_first"
        assert same(tg.load("hf://org/repo/m.safetensors"), TENSORS)
        assert len(hub.requests) > 1


def test_a_distributed_checkpoint_in_a_forked_process(site: Site) -> None:
    """The file of the tensor is opened by the child, which may not."""
    boxes = [[0, "w", [0], [3]]]
    index = {"tensorglot": "dcp", "version": 1, "files": ["0.zt"], "values": {}, "paths": {}}
    index["tensors"] = {"w": {"dtype": "int64", "itemsize": 8, "shape": [3], "boxes": boxes}}
    site.files["/c/dcp.json"] = json.dumps(index, separators=(",", ":")).encode()
    site.files["/c/0.zt"] = tg.dumps({"w": np.arange(3)}, format="ztensor")
    with tg.open(f"{site.url}/c/dcp.json") as archive:
        child = os.fork()
        if child == 0:
            try:
                archive["w"].numpy()
            except tg.InputError as error:
                os._exit(0 if error.rule == "source.fork" else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert archive["w"].numpy().tolist() == [0, 1, 2]
