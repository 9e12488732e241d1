"""Where tensors live, and where randomness starts."""

import random

import tensorflow as tf

DEVICES = ("auto", "cpu", "gpu")


def resolve_device(device: str = "auto") -> str:
    """Turn ``"auto"``, ``"cpu"`` or ``"gpu"`` into a device.

    Args:
        device: ``"auto"`` takes a GPU when there is one.

    Returns:
        The device's name, ready for ``tf.device``.

    Raises:
        ValueError: Another name, or ``"gpu"`` where there is none.
    """
    if device not in DEVICES:
        raise ValueError(f"device must be one of {', '.join(map(repr, DEVICES))}; got {device!r}")
    available = bool(tf.config.list_physical_devices("GPU"))
    if device == "gpu" and not available:
        raise ValueError("device is 'gpu' but TensorFlow sees none; remedy: pass 'cpu' or 'auto'")
    return "/GPU:0" if available and device != "cpu" else "/CPU:0"


def set_seed(seed: int) -> None:
    """Seed TensorFlow and Keras, and ask for deterministic operations.

    Args:
        seed: Any integer that fits 64 bits.
    """
    tf.random.set_seed(seed)
    random.seed(seed)  # Keras' layers draw the seeds of their weights from Python's own generator
    tf.config.experimental.enable_op_determinism()
