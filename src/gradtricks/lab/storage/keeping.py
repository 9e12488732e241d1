"""Publish the runs of a sweep: all files of it are replaced at once, by one manifest."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from gradtricks.lab.storage.manifests import (
    ENDING,
    Manifest,
    PublishedFile,
    alone,
    find,
    put,
    row_of,
    settle,
    shared,
    stage,
    used_by,
)
from gradtricks.lab.storage.published import runs_in
from gradtricks.lab.storage.records import StoredRun
from gradtricks.lab.storage.rows import read_rows, write_rows
from gradtricks.lab.storage.troubles import StoreError, explained


def write_published(
    root: Path, plan: Mapping[str, Any], runs: Sequence[StoredRun], labels: Sequence[str]
) -> Path:
    """Publish the runs of a sweep instead of its former ones: their records and files, not their notebooks.

    Whoever is killed meanwhile has published nothing, or everything. A StoreError says that the folder can't
    be written to, or that a file of a run isn't what it was.

    Args:
        root: Folder of the published sweeps.
        plan: Of the sweep, its notebook seen from that folder.
        runs: All that the plan names, in its order; each has finished.
        labels: What the table, which is returned, is to call each of them, and its files.
    """
    sweep, records = plan["name"], [run.record for run in runs]
    cases = [run.get("case", "") for run in plan["runs"]]
    same, (used, besides) = shared(records), used_by(records)
    times = sorted((record["started"] for record in records), key=datetime.fromisoformat)
    with explained(str(root)), alone(root) as folder:
        settle(root)
        table = folder / "table"
        write_rows([row_of(record, same, *said) for record, *said in zip(records, labels, cases)], table)
        size = table.stat().st_size
        files = {f"{sweep}.parquet": PublishedFile(bytes=size, sha256=stage(table))}
        for run, label in zip(runs, labels, strict=True):
            for name in run.files:
                path = f"{sweep}/{label}{Path(name).suffix if len(run.files) == 1 else f'-{name}'}"
                data = run.read_file(name)
                digest = hashlib.sha256(data).hexdigest()
                files[path] = PublishedFile(bytes=len(data), sha256=digest, run=label, name=name)
                if find(root, path, digest) is None:
                    (folder / "file").write_bytes(data)
                    stage(folder / "file")
        manifest = Manifest(
            **{part: plan[part] for part in ("title", "question", "notebook")},
            varied=tuple(plan["varied"]),
            shown=tuple(plan["shown"]),
            runs=len(runs),
            started=(times[0], times[-1]),
            same=same,
            used=used,
            used_besides=besides,
            files=files,
        )
        text = manifest.model_dump_json(indent=1).encode() + b"\n"
        _compare(root, sweep, Manifest.model_validate_json(text), records)
        # From here on these runs are the published ones.
        put(root, f"{sweep}{ENDING}", text)
        settle(root)
    return root / f"{sweep}.parquet"


def _compare(root: Path, sweep: str, manifest: Manifest, records: Sequence[Mapping[str, Any]]) -> None:
    """Read what was written before it counts."""
    path = find(root, *manifest.table)
    rows = read_rows([path])[0] if path else []
    now = [run.record for run in runs_in(root, sweep, manifest, rows)]
    for before, after in zip(records, now, strict=True):
        if json.dumps(before, sort_keys=True) != json.dumps(after, sort_keys=True):
            raise StoreError(
                f"expected to read {before['title']} from {root / sweep}.parquet as it was recorded; got "
                "another record; remedy: report it; the former runs are still the published ones"
            )
