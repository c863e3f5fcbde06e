"""The public names: sorted, all there, and loaded only when they are used."""

from __future__ import annotations

import subprocess
import sys

import tensorglot
from terminals import environment


def test_names() -> None:
    assert tensorglot.__all__ == sorted(tensorglot.__all__, key=lambda name: (not name[0].isupper(), name))
    for name in tensorglot.__all__:
        assert getattr(tensorglot, name) is not None
        assert name in dir(tensorglot)
    assert not hasattr(tensorglot, "nonsense")


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
