"""What has changed since published runs were made, and runs done again that show it to make no difference."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock

from gradtricks.lab.recording import file_digests
from gradtricks.lab.runs.planning import source_digest
from gradtricks.lab.runs.provenance import describe_machine, describe_source
from gradtricks.lab.storage.manifests import LOCK, Repeat, read_manifest
from gradtricks.lab.storage.places import MANIFEST, explained, replace
from gradtricks.lab.storage.published import PublishedRun
from gradtricks.lab.storage.records import found_digest, inputs_digest, installed_version, request_digest
from gradtricks.lab.sweeps.files import ENDING
from gradtricks.lab.sweeps.sweep import Sweep


def changes(
    sweep: Sweep, runs: Sequence[PublishedRun], repeats: Sequence[Repeat]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Name what the runs used and what is another one now: notebook, what varies, files, libraries.

    Files and libraries don't count for runs of which one was done with and without the change, alike; which
    these were is returned too.
    """
    source = source_digest(sweep.specs[0].source)
    requests = {
        request_digest(source, run.parameters, run.record["provenance"]["threads"]): run.request
        for run in runs
    }
    changed = []
    if any(now != then for now, then in requests.items()):
        changed.append(sweep.notebook.name)
    elif requests.keys() != {run.request for run in sweep.specs}:
        changed.append(sweep.name + ENDING)
    groups = {inputs_digest(run.record["inputs"]): _changed_inputs(run) for run in runs}
    group_of = {run.label: inputs_digest(run.record["inputs"]) for run in runs}
    without = {(run.label, found_digest(run.record)) for run in runs}
    without |= {(each.run, each.found) for each in repeats if not each.changed}
    alike = [
        each
        for each in repeats
        if each.changed
        and each.changed == groups.get(group_of.get(each.run, ""))
        and (each.run, each.found) in without
    ]
    for each in alike:
        groups[group_of[each.run]] = {}
    minded = dict.fromkeys(name for names in groups.values() for name in names)
    return (*changed, *minded), tuple(dict.fromkeys(each.run for each in alike))


def note(run: PublishedRun, found: str) -> None:
    """Say in the manifest of a published run that it was done again, and what came out."""
    root, sweep = Path(run.location).parents[1], Path(run.location).parent.name
    again = Repeat(
        run=run.label,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=describe_source(root)["commit"],
        processor=describe_machine()["processor"],
        changed=_changed_inputs(run),
        found=found,
    )
    with explained(str(root)), FileLock(root / LOCK):
        manifest = read_manifest(root, sweep)
        others = [
            each
            for each in manifest.repeats
            if (each.run, each.processor, not each.changed) != (run.label, again.processor, not again.changed)
        ]
        noted = manifest.model_copy(update={"repeats": (*others, again)})
        replace(root / f"{sweep}{MANIFEST}", noted.model_dump_json(indent=1).encode() + b"\n")


def _changed_inputs(run: PublishedRun) -> dict[str, str | None]:
    """Give the digests of files and versions of libraries that aren't what a run used, as they are now."""
    files, versions = (run.record["inputs"][part] for part in ("files", "versions"))
    now = file_digests(files) | {name: installed_version(name) for name in versions}
    return {name: value for name, value in now.items() if value != (files | versions)[name]}
