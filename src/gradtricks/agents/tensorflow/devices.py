"""Where tensors live, and where randomness starts."""

import random

import tensorflow as tf

from gradtricks._core.checks import check_choice

DEVICES = ("auto", "cpu", "gpu")


def resolve_device(device: str = "auto") -> str:
    """Return TensorFlow's name of a device; ``"auto"`` is a GPU when there is one.

    Raises:
        ValueError: Another name, or ``"gpu"`` where there is none.
    """
    check_choice("device", device, DEVICES)
    available = bool(tf.config.list_physical_devices("GPU"))
    if device == "gpu" and not available:
        raise ValueError("device is 'gpu' but TensorFlow sees none; remedy: pass 'cpu' or 'auto'")
    return "/GPU:0" if available and device != "cpu" else "/CPU:0"


def set_seed(seed: int) -> None:
    """Seed TensorFlow and Keras, and ask for deterministic operations."""
    tf.random.set_seed(seed)
    random.seed(seed)  # Keras' layers draw the seeds of their weights from Python's own generator
    tf.config.experimental.enable_op_determinism()
