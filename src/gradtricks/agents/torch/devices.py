"""Where tensors live, and where randomness starts."""

import torch

from gradtricks._core.checks import check_choice

DEVICES = ("auto", "cpu", "gpu")


def resolve_device(device: str = "auto") -> torch.device:
    """Return PyTorch's name of a device; ``"auto"`` is a GPU when there is one.

    Raises:
        ValueError: Another name, or ``"gpu"`` where there is none.
    """
    check_choice("device", device, DEVICES)
    available = torch.cuda.is_available()
    if device == "gpu" and not available:
        raise ValueError("device is 'gpu' but PyTorch sees none; remedy: pass 'cpu' or 'auto'")
    return torch.device("cuda" if available and device != "cpu" else "cpu")


def set_seed(seed: int) -> None:
    """Seed PyTorch and ask for deterministic operations."""
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True, warn_only=True)
