"""`storage_options`: how to reach a server, as a flat mapping of obstore's own names.

Options may be secret. So they are kept in a value whose repr shows none of them, and whose
pickle contains only options that are known to be harmless: another process takes
credentials from its own environment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, TypeAlias

from tensorglot.errors import InputError

__all__ = ["OptionsLike", "StorageOptions", "as_storage_options"]

_CLIENT = frozenset(
    {
        "allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "default_headers",
        "http1_only", "http2_keep_alive_interval", "http2_keep_alive_timeout", "http2_keep_alive_while_idle",
        "http2_only", "pool_idle_timeout", "pool_max_idle_per_host", "proxy_url", "proxy_ca_certificate",
        "proxy_excludes", "root_certificate", "randomize_addresses", "read_timeout", "timeout", "user_agent",
    }
)  # fmt: skip
"""Options of the HTTP client, for every kind of server."""
_RETRY = frozenset({"max_retries", "retry_timeout"})
_HARMLESS = (_CLIENT | _RETRY | {
    "endpoint", "region", "default_region", "virtual_hosted_style_request", "skip_signature", "request_payer",
    "account_name", "use_emulator", "imdsv1_fallback", "unsigned_payload", "checksum_algorithm", "disable_tagging",
    "conditional_put", "s3_express", "base_url",
}) - {"default_headers", "proxy_url"}  # fmt: skip
"""Options that are pickled."""
_DEFAULTS: dict[str, Any] = {"connect_timeout": "10s", "read_timeout": "20s", "timeout": "300s"}
_DURATIONS = frozenset({"retry_timeout", *_DEFAULTS})
_TYPES: dict[str, tuple[type, ...]] = {"default_headers": (Mapping,), "root_certificate": (str, bytes)}
"""Types of the values of options; of the others text, bool and int."""


class StorageOptions(Mapping[str, Any]):
    """The options that a caller passed."""

    __slots__ = ("_given",)

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = dict(given)

    def __getitem__(self, key: str) -> Any:
        return self._given[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return "StorageOptions(…)" if self._given else "StorageOptions()"

    def __reduce__(self) -> tuple[Any, ...]:
        return StorageOptions, ({key: value for key, value in self._given.items() if key in _HARMLESS},)

    @property
    def key(self) -> tuple[tuple[str, str], ...]:
        """A hashable key that is equal for equal options."""
        return tuple(sorted((key, repr(value)) for key, value in self._given.items()))

    @property
    def headers(self) -> dict[str, str]:
        """Headers for every request. They may be secret, so they are sent to one origin only."""
        given = self._given.get("default_headers") or {}
        return {str(name): value.decode() if isinstance(value, bytes) else str(value) for name, value in given.items()}

    def with_headers(self, headers: Mapping[str, str]) -> StorageOptions:
        """The same options with these headers instead."""
        rest = {key: value for key, value in self._given.items() if key != "default_headers"}
        return StorageOptions({**rest, "default_headers": dict(headers)} if headers else rest)

    def authorized(self, value: str | None) -> StorageOptions:
        """The same options with an `Authorization` header, unless they have one."""
        headers = self.headers
        if value is None or any(name.lower() == "authorization" for name in headers):
            return self
        return self.with_headers({**headers, "Authorization": value})

    def without_token(self) -> tuple[StorageOptions, str | None]:
        """The same options without `token`, and the token."""
        rest = {key: value for key, value in self._given.items() if key != "token"}
        return StorageOptions(rest), self._given.get("token")

    def seconds(self, name: str) -> float:
        """A time limit of a request."""
        return _duration(name, self.client[name]).total_seconds()

    @property
    def client(self) -> dict[str, Any]:
        return _DEFAULTS | {key: value for key, value in self._given.items() if key in _CLIENT}

    @property
    def retry(self) -> dict[str, Any]:
        """The retry options. Default: at most 5 retries, none of them more than a minute after the first request."""
        chosen = {key: value for key, value in self._given.items() if key in _RETRY}
        return {"max_retries": 5, "retry_timeout": timedelta(seconds=60)} | chosen

    @property
    def config(self) -> dict[str, Any]:
        """Options of the kind of server."""
        return {key: value for key, value in self._given.items() if key not in _CLIENT | _RETRY}


OptionsLike: TypeAlias = Mapping[str, Any] | None


def as_storage_options(given: OptionsLike) -> StorageOptions:
    """Checks what a caller passes as `storage_options`."""
    if isinstance(given, StorageOptions):
        return given
    if given is None:
        return StorageOptions({})
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise InputError(
            f"storage_options must be a mapping from names to values, not {type(given).__name__}", rule="url.options"
        )
    return StorageOptions({key: _checked(key, value) for key, value in given.items()})


def _checked(key: str, value: Any) -> Any:
    """Checks one option. Numbers may be text, as on the command line; durations may be numbers of seconds."""
    if key == "max_retries":
        try:
            count = int(value)
        except (TypeError, ValueError, OverflowError):
            count = -1
        if not 0 <= count < 1 << 32:
            raise InputError("storage option max_retries must be an integer, 0 or more", rule="url.options")
        return count
    if key in _DURATIONS:
        return _duration(key, value)
    types = _TYPES.get(key, (str, bool, int))
    if not isinstance(value, types):
        names = ", ".join(kind.__name__ for kind in types)
        raise InputError(
            f"storage option {key} must be of type {names}, not {type(value).__name__}", rule="url.options"
        )
    return str(value) if type(value) is int else value


def _duration(key: str, value: Any) -> timedelta:
    """`30`, `"30"` or `"30s"`."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    try:
        found = timedelta(seconds=float(value.removesuffix("s") if isinstance(value, str) else value))
    except (TypeError, ValueError, OverflowError):
        found = timedelta(-1)
    if found < timedelta(0):
        raise InputError(f"storage option {key} must be a number of seconds", rule="url.options")
    return found
