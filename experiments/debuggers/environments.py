"""An environment of its own for each tool, with fixed versions."""

import subprocess
import sys
from pathlib import Path

# The newest releases on 28 November 2026.
VERSIONS = {
    "torch_audit": "torch-audit==0.3.0",
    "guardtower": "guardtower==0.1.0",
    "torchmortem": "torchmortem==0.1.1",
    "traincheck": "traincheck==0.2.0",
}
OWN = ("gradtricks", "detect_anomaly")  # what this project's own environment has
PAIRED = ("traincheck",)  # what learns from a healthy twin, which must be a script beside the other
CLAIMED = {"tensorflow": ("gradtricks",), "torch": (*OWN, *VERSIONS)}
# What the trainings import.
COMMON = ["torch==2.13.0", "scikit-learn"]


def make_environment(tool: str, folder: Path) -> str:
    """Return the Python that has a tool; its environment is made in ``folder`` unless it is there.

    Raises:
        ValueError: No such tool is compared.
        RuntimeError: pip couldn't install it.
    """
    if tool in OWN:
        return sys.executable
    if tool not in VERSIONS:
        raise ValueError(f"tool must be one of {', '.join((*OWN, *VERSIONS))}; got {tool}")
    python, ready = folder / tool / "bin" / "python", folder / tool / "ready.txt"
    wanted = "\n".join([VERSIONS[tool], *COMMON])
    if not ready.is_file() or ready.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder / tool)], check=True)
        installed = subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", *wanted.split("\n")],
            capture_output=True,
            text=True,
        )
        if installed.returncode:
            raise RuntimeError(
                f"expected pip to install {VERSIONS[tool]}; got {installed.stderr.strip()[-500:]}; remedy: "
                f"give this machine an index of packages, or leave {tool} out of tools"
            )
        ready.write_text(wanted)
    return str(python.absolute())
