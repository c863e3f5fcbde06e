"""Runs a reader over a conformance corpus: `python run.py CORPUS.jsonl COMMAND [ARGUMENT…]`.

The command gets each case as a file or a folder: `{}` among its arguments is replaced by
its path, `{type}` by the DyND type; without `{}` the path is added at the end. It must exit
with 0 for a valid case and with another code for an invalid one. A signal, or no end
within 10 seconds, is wrong for either. Needs Python and nothing else.
"""

import base64
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zlib

SUFFIXES = {"bintensors": "bt", "ztensor": "zt", "delta": "tgdelta", "hdf5": "h5"}


def outcome(command: list[str]) -> str:
    try:
        code = subprocess.run(command, capture_output=True, timeout=10, check=False).returncode
    except subprocess.TimeoutExpired:
        return "no end"
    return f"signal {-code}" if code < 0 else "refused" if code else "accepted"


def main(corpus: pathlib.Path, command: list[str]) -> int:
    if not any("{}" in word for word in command):
        command = [*command, "{}"]
    passed = failed = 0
    with tempfile.TemporaryDirectory() as folder:
        kind = corpus.stem.partition("-")[0]
        path = pathlib.Path(folder, f"case.{SUFFIXES.get(kind, kind)}")
        for line in corpus.read_text("utf-8").splitlines():
            case = json.loads(line)
            shutil.rmtree(path, ignore_errors=True)
            for name, data in case["files"].items() if "files" in case else [("", case["data"])]:
                (path / name).parent.mkdir(parents=True, exist_ok=True)
                (path / name).write_bytes(zlib.decompress(base64.b64decode(data)))
            words = [word.replace("{type}", case.get("type", "")).replace("{}", str(path)) for word in command]
            expected, found = "accepted" if case["valid"] else "refused", outcome(words)
            passed += found == expected
            failed += found != expected
            if found != expected:
                print(f"{case['name']}: {found}, expected {expected} {case.get('rule', '')}")
    print(f"{passed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]), sys.argv[2:]))
