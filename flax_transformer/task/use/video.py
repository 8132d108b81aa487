"""Tell what happens in clips.

Axes: B clips, I frames, C channels, H W height and width.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flax_transformer.data.image.decode import MODES
from flax_transformer.data.video import VideoFiles, evenly_spaced_frames
from flax_transformer.data.video.frame_sampling import check_frame_count
from flax_transformer.hub import Pretrained
from flax_transformer.task.use.classify import Label, ranked
from flax_transformer.task.use.require import image_processor_of, require_use


def classify_videos(pretrained: Pretrained, clips: Sequence[str | os.PathLike | list[Any]]) -> list[list[Label]]:
    """Tell what happens in clips: folders of frames, video files, or what `read_clip` gives of them.

    Returns:
      For each clip all classes, the most probable first, as `classify` gives them.

    Raises:
      ValueError: a checkpoint of another kind or without an image processor, or what is no clip.
    """
    require_use(pretrained, "classify", "clips")
    processor = image_processor_of(pretrained)
    frames = (clip if isinstance(clip, list) else read_clip(pretrained, clip) for clip in clips)
    logits = [pretrained(**processor(each)).logits for each in frames]
    by_clip = [np.asarray(each.astype(np.float32)).mean(axis=0) for each in logits]  # a row a frame without time
    return ranked(pretrained, np.stack(by_clip)) if by_clip else []


def read_clip(pretrained: Pretrained, clip: str | os.PathLike) -> list[Any]:
    """Decode as many frames of a clip as the model sees, evenly spread, with as many channels as its frames have.

    Raises:
      ValueError: no such clip, one of fewer frames or of several sizes, or a damaged one; names it.
    """
    path, count = Path(clip), pretrained.config.integer("num_frames", 8)
    if not path.exists():
        name = pretrained.config["architectures"][0]
        raise ValueError(
            f"a {name} reads clips, folders of frames or video files, and there is no {os.fspath(clip)[:200]!r}"
        )
    found = VideoFiles(path.parent, [path.name])
    length = found.size(0)[0]
    try:
        check_frame_count(length, count)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    mode = MODES[1 if pretrained.config.channels == 1 else 3]
    return [frame.convert(mode) for frame in found.read(0, evenly_spaced_frames(count, length).tolist())]
