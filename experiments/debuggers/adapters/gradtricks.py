"""``gradtricks doctor --json SCRIPT``."""

import contextlib
import io
import json

from adapters.running import finding


def examine(script, *arguments):
    """Return the findings of the command, and how it and the script ended."""
    from gradtricks.cli import app

    printed = io.StringIO()
    code = 0
    with contextlib.redirect_stdout(printed):
        try:
            app(["doctor", "--json", script, *arguments])
        except SystemExit as end:
            code = end.code
    told = json.loads(printed.getvalue())
    findings = []
    for cause in told["causes"]:
        place = cause["place"]
        words = f"{cause['kind']}: {cause['seen']}; remedy: {cause['remedy']}"
        findings.append(finding(cause["id"], words, [(place["file"], place["line"])] if place else []))
    return findings, f"exit code {code}" if code not in (0, 1) else ""
