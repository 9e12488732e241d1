"""Arrays in a file that is whole or isn't there: trained policies, and trainings to go on from."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file


class Checkpoint(NamedTuple):
    """What a file holds.

    Attributes:
        arrays: Under their names.
        about: What else is to be known: anything that JSON can say.
    """

    arrays: dict[str, NDArray[Any]]
    about: dict[str, Any]


def save_checkpoint(path: Path, arrays: Mapping[str, NDArray[Any]], about: Mapping[str, Any]) -> None:
    """Write a file in the format safetensors, in the place of what was there before, in one step.

    Args:
        path: Of the file; its folder exists.
        arrays: Under their names.
        about: What else is to be known: anything that JSON can say.
    """
    beside = path.with_name(f"{path.name}.new")
    whole = {name: np.array(array, order="C") for name, array in arrays.items()}
    save_file(whole, beside, metadata={"about": json.dumps(about, sort_keys=True)})
    with beside.open("rb+") as file:
        os.fsync(file.fileno())
    beside.replace(path)


def load_checkpoint(path: Path) -> Checkpoint:
    """Read what `save_checkpoint` wrote.

    Args:
        path: Of the file.

    Returns:
        Its arrays, and what else it says.

    Raises:
        ValueError: The file is of another kind, or damaged.
        FileNotFoundError: There is none.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads((file.metadata() or {})["about"])
            names = file.keys()  # an open file isn't iterable itself
            return Checkpoint({name: file.get_tensor(name) for name in names}, about)
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError, KeyError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path} must be a safetensors file that gradtricks wrote; got one that can't be read ({error}); "
            "remedy: train again"
        ) from error
