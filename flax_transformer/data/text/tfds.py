"""TensorFlow Datasets translation corpora without TensorFlow: written and read as ArrayRecord, by random access."""

import contextlib
import difflib
import itertools
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, SupportsIndex

from flax_transformer.data.text.pair import PairSource
from flax_transformer.data.tfds_metadata import first_line, refuse_code
from flax_transformer.listing import listed

Pairs = PairSource | Iterable[Mapping[str, str]]


# Translation corpora of the public catalogue whose code needs TensorFlow, so that a list of what can be had needs them.
_CATALOGUE = (
    "flores",
    "mtnt",
    "opus",
    "para_crawl",
    "ted_hrlr_translate",
    "ted_multi_translate",
    *(f"wmt{year}_translate" for year in range(13, 20)),
    "wmt_t2t_translate",
)


@dataclass(frozen=True)
class TfdsPairs:
    """Sentence pairs of one split of a prepared TFDS translation data set."""

    records: Any  # a TFDS random-access data source
    source: str
    target: str
    origin: str = "TFDS"
    """Where they come from, for messages."""

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: SupportsIndex) -> dict[str, str]:
        return self.__getitems__([range(len(self))[index]])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, str]]:
        """Read many at once, which is what makes reading fast.

        Raises:
            ValueError: damaged records.
        """
        try:
            records = self.records.__getitems__(list(indices))
            return [{"source": _text(each[self.source]), "target": _text(each[self.target])} for each in records]
        except Exception as error:
            raise ValueError(f"{self.origin} cannot be read: {first_line(error)}") from error


def tfds_pairs(
    name: str, split: str, *, source: str, target: str, data_dir: str | os.PathLike | None = None
) -> TfdsPairs:
    """Open a split, such as ``"train"`` or ``"train[:1%]"``, of ``name``, such as ``"wmt14_translate/de-en"``.

    ``data_dir`` is where prepared data sets lie, by default TFDS's own folder. A data set that is not there is
    downloaded and prepared where TFDS can do that without TensorFlow.

    Raises:
        ValueError: unknown name, split or language; says what there is.
        RuntimeError: known, but not prepared as ArrayRecord and not preparable here.
    """
    import tensorflow_datasets as tfds

    folder = str(data_dir) if data_dir is not None else tfds.core.constants.DATA_DIR
    builder = _builder(name, folder)
    if not builder.is_prepared():
        _prepare(builder, name, folder)
    if split.split("[")[0] not in builder.info.splits:
        raise ValueError(f"{name} in {folder} has the splits {listed(sorted(builder.info.splits))}, got {split!r}")
    features = list(builder.info.features)
    missing = [language for language in (source, target) if language not in features]
    if missing:
        raise ValueError(f"{name} in {folder} has the features {listed(sorted(features))}, got {listed(missing)}")
    if builder.info.file_format.value != "array_record":
        raise RuntimeError(
            f"{name} in {folder} is prepared as {builder.info.file_format.value}, random access needs array_record; "
            f"prepare it with: tfds build {name} --file_format=array_record"
        )
    origin = f"{name} in {folder}, split {split},"
    try:
        return TfdsPairs(builder.as_data_source(split=split), source, target, origin)
    except Exception as error:
        raise ValueError(f"{origin} cannot be read: {first_line(error)}") from error


def build_pairs(
    name: str,
    splits: Mapping[str, Pairs],
    *,
    source: str,
    target: str,
    data_dir: str | os.PathLike,
    version: str = "1.0.0",
) -> Path:
    """Write pairs as a TFDS data set that ``tfds_pairs`` (and ``tfds.load``) opens by the same ``name``.

    Each split is read once and in order, so a corpus larger than memory can come from a generator. Items are the
    ``{"source": …, "target": …}`` of this package's own sources or name their languages, ``{"de": …, "en": …}``.
    ``name`` may hold a configuration behind a slash, as in ``"wmt14_translate/de-en"``. Returns the folder written.

    Raises:
        ValueError: a version of it is already there.
    """

    builder = _pair_builder(name, splits, (source, target), str(data_dir), version)
    if builder.is_prepared():
        raise ValueError(f"{name} version {version} is already built in {builder.data_path}")
    with contextlib.redirect_stdout(sys.stderr):  # TFDS tells its progress on standard output
        builder.download_and_prepare(file_format="array_record")
    return Path(builder.data_path)


def _pair_builder(name: str, splits: Mapping[str, Pairs], languages: tuple[str, str], folder: str, version: str) -> Any:
    import tensorflow_datasets as tfds

    base, _, config = name.partition("/")

    class PairBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version(version)
        BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=config, version=VERSION)] if config else []
        url_infos = MappingProxyType({})  # nothing to download, so TFDS need not look for checksums beside this file

        def _info(self) -> Any:
            return tfds.core.DatasetInfo(
                builder=self,
                description="Sentence pairs written by flax_transformer.",
                features=tfds.features.Translation(languages),
                supervised_keys=languages,
                disable_shuffling=True,
            )

        def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
            return {split: self._generate_examples(pairs) for split, pairs in splits.items()}

        def _generate_examples(self, pairs: Pairs) -> Any:
            for index, pair in enumerate(pairs):
                names = languages if languages[0] in pair else ("source", "target")
                yield index, {language: pair[key] for language, key in zip(languages, names, strict=True)}

    PairBuilder.name = base
    return PairBuilder(data_dir=folder, config=config or None)


def _builder(name: str, folder: str) -> Any:
    import tensorflow_datasets as tfds

    try:
        _refuse_code(name, folder)
        return tfds.builder(name, data_dir=folder)
    except tfds.core.DatasetNotFoundError as error:
        if name.split("/")[0].split(":")[0] in _CATALOGUE:
            raise RuntimeError(_unprepared(name, folder, "its builder needs TensorFlow")) from error
        nearest = difflib.get_close_matches(name, _known(folder), n=4, cutoff=0.5)
        near = f"nearest: {', '.join(nearest)}" if nearest else f"prepared there: {_prepared_text(folder)}"
        raise ValueError(f"no TFDS data set {name!r} in {folder} or the catalogue; {near}") from error
    except Exception as error:
        raise ValueError(f"TFDS cannot open {name!r} in {folder}: {first_line(error)}") from error


def _refuse_code(name: str, folder: str) -> None:
    """Refuse a name or a folder by which TFDS would import code that is not its own."""
    import tensorflow_datasets as tfds

    asked, _ = tfds.core.naming.parse_builder_name_kwargs(name)
    if asked.namespace:
        raise ValueError(f"data sets of a namespace are code from elsewhere, got {asked.namespace}")
    found = (tfds.core.Path(folder).expanduser().glob(f"{asked.name}/{level}/features.json") for level in ("*", "*/*"))
    for path in sorted(itertools.chain(*found)):  # with a version, or a configuration and a version, between
        refuse_code(path)


def _prepare(builder: Any, name: str, folder: str) -> None:
    try:
        with contextlib.redirect_stdout(sys.stderr):
            builder.download_and_prepare(file_format="array_record")
    except Exception as error:
        raise RuntimeError(_unprepared(name, folder, first_line(error))) from error


def _unprepared(name: str, folder: str, why: str) -> str:
    return (
        f"{name} is not prepared in {folder} and cannot be prepared here ({why}); prepared there: "
        f"{_prepared_text(folder)}; where TensorFlow and a network are, run: "
        f"tfds build {name} --file_format=array_record"
    )


def _known(folder: str) -> list[str]:
    import tensorflow_datasets as tfds

    return [*_prepared(folder), *_CATALOGUE, *tfds.list_builders(with_community_datasets=False)]


def _prepared(folder: str) -> list[str]:
    """List data sets (``name`` or ``name/config``) that lie in a folder."""
    infos = sorted(Path(folder).expanduser().glob("**/dataset_info.json"))
    return sorted({"/".join(info.parent.parent.relative_to(Path(folder).expanduser()).parts) for info in infos})


def _prepared_text(folder: str) -> str:
    return listed(_prepared(folder)) if _prepared(folder) else "nothing"


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
