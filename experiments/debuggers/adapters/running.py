"""Running a training as a script, and words that are the same twice."""

import linecache
import re
import runpy

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def run(script):
    """Run a script, and say how it ended: nothing, or its error."""
    try:
        runpy.run_path(script, run_name="__main__")
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        return f"{type(error).__name__}: {error}"[:500]
    return ""


def finding(rule, words, lines=()):
    """Return a finding: the tool's name of its rule, its words, and ``(file, line)`` of each place."""
    shown = [
        {"file": file.rsplit("/", 1)[-1], "line": line, "code": linecache.getline(file, line).strip()}
        for file, line in lines
    ]
    return {"rule": str(rule), "words": " ".join(str(words).split())[:1000], "lines": shown}


def frames(text):
    """Return ``(file, line)`` of each frame of a printed traceback that is the training's own."""
    found = [(file, int(line)) for file, line in _FRAME.findall(text)]
    inner = max((i for i, (file, _) in enumerate(found) if "runpy" in file), default=-1)
    return [(file, line) for file, line in found[inner + 1 :] if "site-packages" not in file]


def once(findings):
    """Leave out what a tool says again and again, numbers aside."""
    kept = {}
    for each in findings:
        kept.setdefault((each["rule"], re.sub(r"\d[\d.,e+-]*", "0", each["words"])), each)
    return list(kept.values())
