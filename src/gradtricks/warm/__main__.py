"""``python -m gradtricks.warm install``: a kernel that JupyterLab, nbclient and papermill start by a fork."""

import argparse
import sys

from gradtricks.warm.specs import install


def main() -> None:
    """Install the kernel ``python3-warm``."""
    parser = argparse.ArgumentParser(prog="python -m gradtricks.warm", description=__doc__)
    command = parser.add_subparsers(required=True).add_parser("install", help="install the kernel")
    command.add_argument("modules", nargs="*", help="modules to import before the first fork, such as torch")
    command.add_argument("--name", default="python3-warm")
    command.add_argument("--display-name", default="Python 3 (warm)")
    command.add_argument("--user", action="store_true", help="for the current user alone")
    command.add_argument("--prefix", help="where to install it")
    here = f"in this environment, {sys.prefix}"
    command.add_argument("--sys-prefix", action="store_const", const=sys.prefix, dest="prefix", help=here)
    options = vars(parser.parse_args())
    try:
        folder = install(options.pop("name"), **options)
    except OSError as error:
        sys.exit(f"expected to write the kernel; got {error}; remedy: --user or --sys-prefix")
    sys.stdout.write(f"installed in {folder}\n")


if __name__ == "__main__":
    main()
