"""Films that a notebook keeps: animated PNG, which every browser plays without a script."""

import io
from base64 import b64encode

import numpy as np
from PIL import Image

from gradtricks.lab.recording import name_figure, show

LARGEST_FILM = 1_000_000  # bytes
_COLOURS = 256  # of a palette, at most


def record_film(name: str, frames: np.ndarray, *, frames_per_second: float, alt: str) -> None:
    """Show a film and keep it under a name, so that chapters can show it as they show a figure.

    It is an animated PNG that begins again at its end and keeps every pixel as it is. Grey is smallest, then
    at most 256 colours in the whole film; what stays as it was from frame to frame costs nothing. Equal
    frames are equal files.

    Args:
        name: As for `record_figure`; no figure of the run may have it too.
        frames: uint8 ``[T, H, W]``, grey, or ``[T, H, W, 3]``, red, green and blue.
        frames_per_second: From 1 to 60; browsers show no more.
        alt: What the film shows, for those who can't see it.

    Raises:
        ValueError: An argument isn't as it has to be, or the film is larger than 1 MB.
    """
    about = name_figure(name, alt)
    data = encode_film(frames, frames_per_second)
    if len(data) > LARGEST_FILM:
        raise ValueError(
            f"expected a film of at most {LARGEST_FILM:,} bytes; got {len(data):,} for {name!r}, "
            f"frames of {list(np.shape(frames))}; remedy: fewer or smaller frames"
        )
    show({"image/png": b64encode(data).decode(), "text/plain": alt}, about)


def encode_film(frames: np.ndarray, frames_per_second: float) -> bytes:
    """Make the file that `record_film` keeps, of any size, which raises the same."""
    frames = np.asarray(frames)
    if frames.dtype != np.uint8 or frames.ndim not in (3, 4) or frames.shape[3:] not in ((), (3,)):
        raise ValueError(
            "frames must be uint8 of [T, H, W] or [T, H, W, 3]; "
            f"got {frames.dtype} of {list(frames.shape)}; remedy: stack frames of values from 0 to 255"
        )
    if not frames.size:
        raise ValueError(
            f"frames must be at least one, of at least one pixel; got {list(frames.shape)}; "
            "remedy: record the film after its frames were drawn"
        )
    if not 1 <= frames_per_second <= 60:
        raise ValueError(
            f"frames_per_second must be from 1 to 60; got {frames_per_second}; "
            "remedy: repeat frames for a slower film, leave some out for a faster one"
        )
    buffer = io.BytesIO()
    first, *rest = _images(frames)
    film = {"save_all": True, "append_images": rest, "duration": 1000 / frames_per_second, "loop": 0}
    first.save(buffer, format="PNG", optimize=True, **film)
    return buffer.getvalue()


def _images(frames: np.ndarray) -> list[Image.Image]:
    """Choose the smallest form that keeps every pixel: grey, a palette for all frames, or 24 bits."""
    if frames.ndim == 3:
        return [Image.fromarray(frame) for frame in frames]
    red, green, blue = np.moveaxis(frames.astype(np.uint32), -1, 0)
    colours, indices = np.unique(red << 16 | green << 8 | blue, return_inverse=True)
    if len(colours) > _COLOURS:
        return [Image.fromarray(frame) for frame in frames]
    palette = (colours[:, np.newaxis] >> [16, 8, 0]).astype(np.uint8).tobytes()
    images = [Image.fromarray(frame) for frame in indices.astype(np.uint8)]
    for image in images:
        image.putpalette(palette)
    return images
