"""An archive at a server whose tensors each have a header before their data, far apart, as in a ZIP archive.

Reading all headers would take a request for each. So opening reads only an `Outline`:
what the format knows without these headers. Looking up a tensor reads its header, and the
first use of the whole index reads the headers of all, concurrently. No header is read twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, cast

from tensorglot.cached import cached_property
from tensorglot.errors import TensorNotFound
from tensorglot.limits import Limits
from tensorglot.model.archive import Archive, Verifier
from tensorglot.model.index import Index
from tensorglot.model.payload import Source
from tensorglot.model.tensor import Tensor
from tensorglot.threads import Lock

__all__ = ["DeferredArchive", "Outline"]

_FEW = 8
"""Tensors that are looked up one by one before the headers of all others are read at once."""


class Outline(Protocol):
    """What a format knows of a file before it reads the headers of its tensors."""

    @property
    def format(self) -> str: ...

    @property
    def metadata(self) -> Mapping[str, Any] | None: ...

    @property
    def names(self) -> Sequence[str]: ...

    def index(self, chosen: Sequence[int] | None = None) -> Index:
        """Reads the headers of the chosen tensors, or of all. Never called by two threads at once."""
        ...


class DeferredArchive(Archive):
    """An archive that reads its index when it is needed."""

    def __init__(
        self,
        outline: Outline,
        source: Source,
        limits: Limits,
        verifier: Verifier | None,
        reopen: Callable[[], Archive] | None,
        errors: AbstractContextManager[None],
    ) -> None:
        """`errors` is a context that is entered whenever headers are read, to add the path to errors."""
        super().__init__(
            Index.concat([], format=outline.format), source, limits=limits, verifier=verifier, reopen=reopen
        )
        del self.__dict__["index"]  # `index` is a property here
        self._outline = outline
        self._errors = errors
        self._positions = {name: position for position, name in enumerate(outline.names)}
        self._reading = Lock()
        self._looked_up = 0

    @cached_property
    def index(self) -> Index:  # type: ignore[override]
        with self._reading, self._errors:
            if "index" not in self.__dict__:
                self.__dict__["index"] = self._outline.index()
            return cast("Index", self.__dict__["index"])

    @property
    def format(self) -> str:
        return self._outline.format

    @property
    def metadata(self) -> Mapping[str, Any] | None:
        return self._outline.metadata

    def __getitem__(self, name: str) -> Tensor:
        self._looked_up += 1
        if self._looked_up > _FEW or not isinstance(name, str):
            return super().__getitem__(name)
        return self.select([name])[name]

    def select(self, names: Collection[str]) -> Archive:
        for name in names:
            if name not in self._positions:
                raise TensorNotFound.among(name, self._outline.names)
        with self._reading, self._errors:
            if "index" in self.__dict__:
                return self
            return self.with_index(self._outline.index([self._positions[name] for name in dict.fromkeys(names)]))

    def _other_sources(self) -> tuple[Source, ...]:
        return ()

    def __contains__(self, name: object) -> bool:
        return name in self._positions

    def __iter__(self) -> Iterator[str]:
        return iter(self._outline.names)

    def __len__(self) -> int:
        return len(self._outline.names)
