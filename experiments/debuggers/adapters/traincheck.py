"""TrainCheck's four commands as its README says: what holds in a healthy run is learned, then checked.

It needs a good run first. We give it the best that there is: the case's own cured twin, with the next seed.
The steps traced are those that its README advises for long runs.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from adapters.running import finding, once

TRACED = ("--sampling-interval", "10", "--warm-up-steps", "10")
_MODEL = re.compile(r"(?<![\w.])(?!self\b)(\w+)(?:\.\w+)*\.parameters\(")
_SEED = re.compile(r"(seed\()(\d+)\)")


def examine(script, *arguments):
    """Return the invariants that the script violates, without places: it names none in a script."""
    good = Path(script).with_name("healthy.py").read_text()
    # Each needs a name of its own, and the folder is this run's.
    Path("reference.py").write_text(_SEED.sub(lambda seed: f"{seed[1]}{int(seed[2]) + 1})", good))
    shutil.copyfile(script, "target.py")
    models = sorted(set(_MODEL.findall(good)))
    tracked = ("--models-to-track", *models) if models else ()
    _command("collect", "--pyscript", "reference.py", *tracked, *TRACED, "--output-dir", "reference")
    _command("infer", "-f", "reference", "-o", "invariants.json")
    known = ("--invariants", "invariants.json")
    _command("collect", "--pyscript", "target.py", *tracked, *TRACED, *known, "--output-dir", "target")
    _command("check", "-f", "target", "-i", "invariants.json", "-o", "checked")
    findings = [
        finding(each["relation_type"], each["display_name"])
        for summary in Path("checked").glob("*/violations_summary.json")
        for each in json.loads(summary.read_text())["violations"]
    ]
    return once(findings), ""


def _command(name, *options):
    """Run one of its commands, which stand beside the environment's Python."""
    subprocess.run([str(Path(sys.executable).with_name(f"traincheck-{name}")), *options], check=True)
