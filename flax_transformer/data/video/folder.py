"""A folder of class folders of videos: `{root}/{class}/{video}`, or `{root}/{split}/{class}/{video}`.

A video is a folder of frames, images in the order of their names, or a video file.
"""

from pathlib import Path

from flax_transformer.data.folder import FileType, folders_of, open_folders
from flax_transformer.data.split import complete_splits, normal
from flax_transformer.data.table import DataSet, Table
from flax_transformer.data.video.video_set import VideoFiles, frame_files, is_video_name, labelled_videos
from flax_transformer.frozen import frozen


@frozen
class VideoFolderData:
    """Videos of class folders, which may be within `train`, `validation` and `test`."""

    root: str
    """The folder of the data."""
    holdout: float = 0.1
    """Share of the training videos, of each class, for each of validation and test that the folder lacks."""
    split_seed: int = 0
    """Which videos these are."""

    def open(self) -> DataSet:
        """Open the videos without decoding them; errors as `open_videos`."""
        return open_videos(Path(self.root).expanduser(), holdout=self.holdout, seed=self.split_seed)


def open_videos(root: Path, *, holdout: float = 0.1, seed: int = 0) -> DataSet:
    """Find the videos of class folders, and hold out a part where there is no such split.

    Args:
      root: the folder.
      holdout: the share.
      seed: which videos are held out, with their names.

    Raises:
      FileNotFoundError: no such folder.
      ValueError: no videos, one class, a class folder without videos, loose frames, or too few videos to hold some out.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"{root} must be a folder of videos, there is none")
    found, classes = open_folders(root, VIDEOS)
    splits = {split: labelled_videos(VideoFiles(each.root, each.names), each.labels) for split, each in found.items()}
    how = {"share": holdout, "seed": seed, "where": root, "what": "videos"}
    return DataSet(complete_splits(splits, _names, lambda table: table["label"], **how), classes)


def _names(table: Table) -> list[str]:
    return [normal(Path(name).as_posix()) for name in table["frames"].names]


@frozen
class VideoFileType(FileType):
    """Videos: video files, and folders of frames."""

    def below(self, folder: Path) -> list[Path]:
        """Find the videos of a class folder.

        Raises:
          ValueError: frames that are in no folder of their own.
        """
        if loose := frame_files(folder):
            raise ValueError(f"{folder} must have a folder for the frames of each video, got {loose[0].name}")
        found = [folder / name for name in self.files(folder)] + list(folders_of(folder).values())
        return sorted(found, key=lambda path: normal(path.name))


VIDEOS = VideoFileType(one="video", many="videos", named=is_video_name)
