"""Which runs a location means: those of a store, or published ones."""

from pathlib import Path

from gradtricks.lab.storage.manifests import ENDING, manifests
from gradtricks.lab.storage.published import Published, PublishedRun
from gradtricks.lab.storage.staging import staged
from gradtricks.lab.storage.store import Store
from gradtricks.lab.storage.troubles import StoreError, is_url


def is_published(location: str | Path) -> bool:
    """Say whether runs are published in a folder: whether there is a manifest with its table."""
    root = Path(location)
    return not is_url(str(location)) and any(
        (root / f"{sweep}.parquet").exists() or staged(root) for sweep in manifests(root)
    )


def open_store(location: str | Path) -> Store | Published:
    """Open runs to be read: those of a store, or published ones."""
    return Published(location) if is_published(location) else Store(location)


def store_of_runs(location: str | Path) -> Store:
    """Open a store to be written to; a StoreError refuses published runs, and folders among them."""
    if any(map(is_published, (location, Path(location).resolve().parent))):
        raise StoreError(
            f"expected a store of runs; got published ones in {location}, which nothing but "
            "gradtricks publish changes; remedy: leave out --store"
        )
    return Store(location)


def published_at(path: str) -> PublishedRun | None:
    """Find the published run that a path means, or that kept the file there; None where it means none."""
    if is_url(path):
        return None
    place = Path(path).resolve()
    root, sweep = place.parent.parent, place.parent.name
    if not (root / f"{sweep}{ENDING}").is_file() or not is_published(root):
        return None
    return Published(root).at(f"{sweep}/{place.name}")
