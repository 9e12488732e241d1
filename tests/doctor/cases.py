"""Scripts that a diagnosis is tried on, by name."""


def registry():
    """Return scripts by name, and what registers one with its thread, its cause and a part of the line."""
    cases = {}

    def issue(address, kind, code):
        def register(script):
            cases[script.__name__] = (address, kind, code, script)
            return script

        return register

    return cases, issue, lambda kind, code: issue("", kind, code)


def nothing(*_):
    """Do nothing where a step could do more than usual."""
