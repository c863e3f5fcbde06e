"""Credentials and region from the files of AWS's tools, which obstore does not read.

The files are `~/.aws/credentials` and `~/.aws/config`, or those named by
AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE; the profile is the one named by
AWS_PROFILE, or `default`. Options and the environment have precedence. Profiles that log in
or assume a role have no keys in these files and are not supported. A file is read again
when it has changed.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from tensorglot.errors import InputError, escape

__all__ = ["from_profile"]

_FILES = {"AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials", "AWS_CONFIG_FILE": "~/.aws/config"}
_KEYS = ("access_key_id", "secret_access_key", "session_token")
_OTHERS = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE")
"""Variables that have precedence over the keys of a file."""
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")


def from_profile(given: Mapping[str, Any]) -> dict[str, str]:
    """The options of S3 that a profile has, and neither the caller's options nor the environment."""
    names = {name.lower().removeprefix("aws_") for name in given}
    own_keys = bool(names & {*_KEYS, "skip_signature"}) or any(map(os.environ.get, _OTHERS))
    own_region = bool(names & {"region", "default_region"}) or any(map(os.environ.get, _REGIONS))
    if own_keys and own_region:
        return {}
    profile = _read_profile()
    found = {} if own_keys else {name: profile[f"aws_{name}"] for name in _KEYS if f"aws_{name}" in profile}
    if not own_region and "region" in profile:
        found["region"] = profile["region"]
    return found


def _read_profile() -> dict[str, str]:
    wanted = os.environ.get("AWS_PROFILE") or "default"
    files = [Path(os.environ.get(name) or default).expanduser() for name, default in _FILES.items()]
    read = [sections for file in files for sections in [_read(file)] if sections is not None]
    profiles = [sections[name] for sections in read for name in (wanted, f"profile {wanted}") if name in sections]
    if not profiles and wanted != "default":
        raise InputError(
            f"AWS_PROFILE names the profile '{escape(wanted)}', which is not in {' or '.join(map(str, files))}",
            rule="url.profile",
        )
    return {key: value for profile in reversed(profiles) for key, value in profile.items()}


def _read(file: Path) -> dict[str, dict[str, str]] | None:
    try:
        status = file.stat()
        return _parse(file, status.st_mtime_ns, status.st_size)
    except OSError:
        return None


@lru_cache(8)
def _parse(file: Path, changed_ns: int, size: int) -> dict[str, dict[str, str]]:
    parser = configparser.ConfigParser(interpolation=None, strict=False, default_section="")
    try:
        parser.read_string(file.read_text("utf-8", "replace"))
    except configparser.Error:
        pass
    else:
        return {name: dict(parser[name]) for name in parser.sections()}
    raise InputError("not a valid file of AWS profiles", rule="url.profile", path=str(file))
