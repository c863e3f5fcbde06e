"""What all tests share: the form of the kernels, and skips that CI turns into failures.

TENSORGLOT_KERNELS=interpreted runs the suite on the kernels as plain Python, also
where they are compiled. TENSORGLOT_REQUIRE=all makes a missing peer a failure.
--passed-to FILE writes which tests have passed, and --not-again FILE leaves those out:
in CI what passed without a library does not run again when the libraries are there.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from azurite import azure  # noqa: F401
from figures import LABEL, SEEN
from mongod import mongod_url  # noqa: F401
from seaweed import s3_server  # noqa: F401

# How quick the machine is today is no property of the code.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


# In a job in the background, or under nohup, these are ignored, and children would ignore them, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class InterpretedKernels:
    """Finds every kernel as its Python source, before the extension module can be found."""

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        package, _, stem = name.rpartition(".")
        if package != "tensorglot.kernels":
            return None
        folder = Path(*sys.modules[package].__path__)
        return importlib.util.spec_from_file_location(name, folder / f"{stem}.py")


collect_ignore_glob: list[str] = []
if os.environ.get("TENSORGLOT_KERNELS") == "interpreted":
    sys.meta_path.insert(0, InterpretedKernels())  # type: ignore[arg-type]
    about = """
        architecture benchmarks build docs imports mutants promises public site
        changing_files closing crashes faults host in_place kills linked_files migration_faults power_cuts
        store_concurrency store_kills two_of_each two_writers
        cli_* example_notebook examples executors fuzz_campaign report* resources store_machine_finds
        checks_can_fail
    """
    # By line: text, layers and the build; files, disks and processes that fail or change; programs, in which the
    # kernels are compiled all the same, and pages; checks of checks. The form of the kernels makes no difference.
    collect_ignore_glob += [f"test_{name}.py" for name in about.split()]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if SEEN:
        terminalreporter.write_line(LABEL + ", ".join(f"{count:,} {what}" for what, count in sorted(SEEN.items())))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with nothing else in it."""
    path = tmp_path / "folder"
    path.mkdir()
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty store."""
    from tensorglot.store import Store

    Store.create(tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> Any:
    from tensorglot.store import Store

    return Store(root)


@pytest.fixture
def target(folder: Path) -> Path:
    """A file to be replaced."""
    from replaced import OLD_BYTES

    path = folder / "model.bt"
    path.write_bytes(OLD_BYTES)
    return path


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--passed-to", metavar="FILE", help="write the tests that have passed")
    parser.addoption("--not-again", metavar="FILE", help="leave out the tests in FILE")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("passed_to")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(PassedTests(Path(path)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    path = config.getoption("not_again")
    if path:
        passed = set(Path(path).read_text("utf-8").split("\n"))
        again = [item for item in items if item.nodeid in passed]
        config.hook.pytest_deselected(items=again)
        items[:] = [item for item in items if item.nodeid not in passed]


class PassedTests:
    """Writes the names of the tests that have passed, at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.outcomes: dict[str, set[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.outcomes.setdefault(report.nodeid, set()).add(report.outcome)

    def pytest_sessionfinish(self) -> None:
        passed = [name for name, seen in self.outcomes.items() if seen == {"passed"}]
        self.path.write_text("\n".join(passed), "utf-8")
