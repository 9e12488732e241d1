"""Scripts that a diagnosis is tried on, by name."""


def registry():
    """Return scripts by name, their cures, and what registers a script with its thread, cause and line.

    A cure is ``(words, old, new)``: words of the printed remedy, and the lines that it changes in the script.
    """
    cases, cures = {}, {}

    def issue(address, kind, code, *, cure=None):
        def register(script):
            cases[script.__name__] = (address, kind, code, script)
            cures.update({script.__name__: cure} if cure else {})
            return script

        return register

    return cases, cures, issue, lambda kind, code, *, cure=None: issue("", kind, code, cure=cure)


def nothing(*_):
    """Do nothing where a step could do more than usual."""
