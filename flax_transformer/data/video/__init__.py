"""Videos in, batches out: folders of frames and video files, skeletons.

`VideoFolderData` gives a `DataSet` of tables. The frames that a model sees are chosen and read by `SampleFrames`,
changed alike by `PerFrame`, laid out by `VideoRows` as images of many channels, so that all that changes batches of
images changes those of videos, and made videos by `ChannelsToFrames`.
"""

from flax_transformer.data.video.folder import VideoFolderData, open_videos
from flax_transformer.data.video.frame_sampling import (
    ChannelsToFrames,
    PerFrame,
    SampleFrames,
    VideoRows,
    evenly_spaced_frames,
)
from flax_transformer.data.video.skeleton import (
    CentreBody,
    MoveBody,
    PoseRows,
    ResampleFrames,
    SkeletonData,
    labelled_skeletons,
)
from flax_transformer.data.video.video_set import InMemoryVideos, VideoFiles, labelled_videos

__all__ = [
    "CentreBody",
    "ChannelsToFrames",
    "InMemoryVideos",
    "MoveBody",
    "PerFrame",
    "PoseRows",
    "ResampleFrames",
    "SampleFrames",
    "SkeletonData",
    "VideoFiles",
    "VideoFolderData",
    "VideoRows",
    "evenly_spaced_frames",
    "labelled_skeletons",
    "labelled_videos",
    "open_videos",
]
