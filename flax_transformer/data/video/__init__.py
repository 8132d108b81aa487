"""Clips in, batches out: folders of frames and video files, generated ones, skeletons.

`VideoFolderData` and `VideoData` give a `VideoSet`. The frames that a model sees are chosen and read by `SampleFrames`,
changed alike by `PerFrame`, laid out by `VideoRows` as images of many channels, so that all that changes batches of
images changes those of clips, and made clips by `ChannelsToFrames`.
"""

from flax_transformer.data.video.folder import VideoFolderData, VideoSet, open_videos
from flax_transformer.data.video.frame_sampling import (
    ChannelsToFrames,
    PerFrame,
    SampleFrames,
    VideoRows,
    evenly_spaced_frames,
)
from flax_transformer.data.video.moving_shape import ACTIONS, MovingShapes, VideoData
from flax_transformer.data.video.pose import CentreBody, MoveBody, PoseRows, ResampleFrames
from flax_transformer.data.video.skeleton import SkeletonData, Skeletons, SkeletonSet
from flax_transformer.data.video.video_set import InMemoryVideos, LabelledClips, VideoFiles

__all__ = [
    "ACTIONS",
    "CentreBody",
    "ChannelsToFrames",
    "InMemoryVideos",
    "LabelledClips",
    "MoveBody",
    "MovingShapes",
    "PerFrame",
    "PoseRows",
    "ResampleFrames",
    "SampleFrames",
    "SkeletonData",
    "SkeletonSet",
    "Skeletons",
    "VideoData",
    "VideoFiles",
    "VideoFolderData",
    "VideoRows",
    "VideoSet",
    "evenly_spaced_frames",
    "open_videos",
]
