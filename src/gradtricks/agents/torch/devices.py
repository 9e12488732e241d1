"""Where tensors live, and where randomness starts."""

import torch

DEVICES = ("auto", "cpu", "gpu")


def resolve_device(device: str = "auto") -> torch.device:
    """Turn ``"auto"``, ``"cpu"`` or ``"gpu"`` into a device.

    Args:
        device: ``"auto"`` takes a GPU when there is one.

    Returns:
        The device, ready for ``tensor.to``.

    Raises:
        ValueError: Another name, or ``"gpu"`` where there is none.
    """
    if device not in DEVICES:
        raise ValueError(f"device must be one of {', '.join(map(repr, DEVICES))}; got {device!r}")
    available = torch.cuda.is_available()
    if device == "gpu" and not available:
        raise ValueError("device is 'gpu' but PyTorch sees none; remedy: pass 'cpu' or 'auto'")
    return torch.device("cuda" if available and device != "cpu" else "cpu")


def set_seed(seed: int) -> None:
    """Seed PyTorch and ask for deterministic operations.

    Args:
        seed: Any integer that fits 64 bits.
    """
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True, warn_only=True)
