"""The public names: sorted, all there, and loaded only when they are used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import tensorglot
from terminals import environment


def test_names() -> None:
    assert tensorglot.__all__ == sorted(tensorglot.__all__, key=lambda name: (not name[0].isupper(), name))
    for name in tensorglot.__all__:
        assert getattr(tensorglot, name) is not None
        assert name in dir(tensorglot)
    assert not hasattr(tensorglot, "nonsense")


def test_what_type_checkers_are_told_is_what_there_is() -> None:
    tree = ast.parse(Path(tensorglot.__file__).read_text())
    told = {
        alias.asname: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tensorglot")
        for alias in node.names
    }
    homes = {name: f"tensorglot.{home}.{name}" for name, home in tensorglot._HOME_OF.items()}
    assert told == homes | {name: f"tensorglot.{name}" for name in tensorglot._MODULES}


def test_opening_a_file_loads_no_other_verb(tmp_path: Path) -> None:
    path = tmp_path / "model.bt"
    tensorglot.save(path, {})
    program = f"""if True:
        import sys, tensorglot
        tensorglot.open({str(path)!r})
        assert not {{"crc32c", "tensorglot.operations.convert", "tensorglot.operations.diff"}} & set(sys.modules)
    """
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, env=environment())


def test_importing_loads_no_numpy_and_formats_stays_the_function() -> None:
    program = """if True:
        import sys, tensorglot
        assert "numpy" not in sys.modules
        import tensorglot.formats.table
        assert "numpy" in sys.modules
        assert tensorglot.formats() is tensorglot.formats.__globals__["TABLE"]
        from tensorglot import *
        assert formats is tensorglot.formats and open is tensorglot.open
    """
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, env=environment())
