"""What has to be the same where a run is planned and where it is executed."""

import hashlib
import json
import platform
from importlib import metadata

from packaging.requirements import Requirement

from gradtricks.lab.recording import package_digests
from gradtricks.lab.storage.records import installed_version

_UNRELATED = ("book", "dev", "mlflow", "optuna")  # extras that no run's result depends on


def _digest(files: dict[str, str | None]) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:12]


def _lab_digest() -> str:
    return _digest({name: value for name, value in package_digests().items() if name.startswith("lab/")})


# A worker lives long: what it has imported may be older than what is in the files by now.
_IMPORTED = _lab_digest()


def environment() -> dict[str, str]:
    """Describe what has to be the same where a run is planned and where it is executed.

    Returns:
        Versions and digests by name.
    """
    needed = {
        "dask",
        *(r.name for r in map(Requirement, metadata.requires("gradtricks") or ()) if _matters(r)),
    }
    return {
        "python": platform.python_version(),
        "gradtricks's files": _digest(package_digests()),
        "gradtricks.lab as imported": _IMPORTED,
        **{name: installed_version(name) or "none" for name in sorted(needed)},
    }


def describe_difference(expected: dict[str, str], got: dict[str, str]) -> str:
    """Compare environments.

    Args:
        expected: The driver's.
        got: A worker's.

    Returns:
        What differs; empty where nothing does.
    """
    names = sorted(name for name in {*expected, *got} if expected.get(name) != got.get(name))
    return "; ".join(f"{name}: expected {expected.get(name)}, got {got.get(name)}" for name in names)


def _matters(requirement: Requirement) -> bool:
    marker = str(requirement.marker or "")
    return not any(f'extra == "{extra}"' in marker for extra in _UNRELATED)
