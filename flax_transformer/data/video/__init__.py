"""Clips in, batches out: folders of frames and video files, generated ones, skeletons.

`ClipData` and `VideoData` give a `ClipSet`. The frames that a model sees are chosen and read by `SampleFrames`, changed
alike by `EveryFrame`, laid out by `ClipRows` as images of many channels, so that all that changes batches of images
changes those of clips, and made clips by `Unfold`.
"""

from flax_transformer.data.video.folder import ClipData, ClipSet, open_clips
from flax_transformer.data.video.frame_sampling import ClipRows, EveryFrame, SampleFrames, Unfold, spread_evenly
from flax_transformer.data.video.moving_shape import ACTIONS, MovingShapes, VideoData
from flax_transformer.data.video.pose import CentreBody, MoveBody, PoseRows, ResampleFrames
from flax_transformer.data.video.skeleton import SkeletonData, Skeletons, SkeletonSet
from flax_transformer.data.video.video_set import ClipFiles, HeldClips, LabelledClips

__all__ = [
    "ACTIONS",
    "CentreBody",
    "ClipData",
    "ClipFiles",
    "ClipRows",
    "ClipSet",
    "EveryFrame",
    "HeldClips",
    "LabelledClips",
    "MoveBody",
    "MovingShapes",
    "PoseRows",
    "ResampleFrames",
    "SampleFrames",
    "SkeletonData",
    "SkeletonSet",
    "Skeletons",
    "Unfold",
    "VideoData",
    "open_clips",
    "spread_evenly",
]
