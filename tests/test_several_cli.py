"""Commands on several files: one that is damaged is named, and the others are gone on with; results as JSON."""

import json
import shutil
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from flax_transformer import hub
from flax_transformer.task.image_input import read_image
from flax_transformer.task.segmentation import map_image, segment
from tests.data.image.image_files import pixels, write_image

GOLDEN = Path(__file__).parent / "hub" / "golden"
GREY = {
    "image_processor_type": "ViTImageProcessor", "do_resize": True, "size": {"height": 0, "width": 0}, "resample": 2,
    "do_rescale": True, "do_normalize": True, "image_mean": [0.5], "image_std": [0.5],
}  # fmt: skip


@pytest.fixture
def album(tmp_path, monkeypatch):
    """Return a folder of three images, of which the second is damaged."""
    monkeypatch.chdir(tmp_path)
    for number in range(3):
        write_image(tmp_path / "album" / f"{number}.png", pixels(number, 24, 24))
    whole = (tmp_path / "album" / "1.png").read_bytes()
    (tmp_path / "album" / "1.png").write_bytes(whole[: len(whole) // 2])
    return ["album/0.png", "album/1.png", "album/2.png"]


def checkpoint(name, folder):
    """Copy a golden checkpoint and say how it sees images."""
    made = Path(shutil.copytree(GOLDEN / name, folder / name))
    config = json.loads((made / "config.json").read_text())
    seen = config.get("vision_config", config)
    seen = config.get("backbone_config", seen) if name == "mask2former" else seen
    size, channels = seen.get("image_size", 32), seen.get("num_channels", 3)
    height, width = size if isinstance(size, list) else (size, size)
    said = {**GREY, "size": {"height": height, "width": width}, "image_mean": [0.5] * channels}
    said |= {"image_std": [0.5] * channels, "image_processor_type": "DetrImageProcessor"} if "detr" in name else {}
    said |= {"image_std": [0.5] * channels}
    (made / "preprocessor_config.json").write_text(json.dumps(said))
    return name


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("name", "command", "arguments"),
    [
        ("vit", "classify", ()),
        ("vit", "embed", ()),
        ("detr", "detect", ("--threshold", "0")),
        ("clip", "embed", ()),
        ("beit_segmentation", "segment", ()),
    ],
)
def test_a_damaged_file_is_named_and_the_others_are_gone_on_with(run, album, tmp_path, name, command, arguments):
    checkpoint(name, tmp_path)
    code, out, err = run(command, name, *album, *arguments, "--jsonl")
    found = [json.loads(line) for line in out.splitlines()]
    assert [each["file"] for each in found] == [album[0], album[2]]
    assert (code, err.count("error:"), err.count("album/1.png")) == (1, 1, 1)
    alone = run(command, name, album[2], *arguments, "--jsonl")
    assert (alone[0], json.loads(alone[1]).keys()) == (0, found[1].keys())


def test_search_leaves_a_damaged_picture_out(run, album, tmp_path):
    checkpoint("clip", tmp_path)
    for _ in range(2):  # by the images, then by what is kept of them
        code, out, err = run("search", "clip", album[0], "album")
        assert [line.split("\t")[1] for line in out.splitlines()] == [album[0], album[2]]
        assert (code, err.count("album/1.png")) == (1, 1)


def test_what_is_no_file_is_told_as_what_it_is(run, album, tmp_path):
    checkpoint("vit", tmp_path)
    code, out, err = run("classify", "vit", album[0], "album", "none.png")
    assert (code, len(out.splitlines())) == (1, 1)
    assert err.splitlines() == [
        f"error: a {'ViTForImageClassification'} reads images, and 'album' is a folder",
        "error: a ViTForImageClassification reads images, and there is no file 'none.png'",
    ]


@pytest.mark.parametrize("suffix", ["npy", "npz", "jsonl"])
def test_vectors_are_written_by_the_files_suffix(run, album, tmp_path, suffix):
    checkpoint("vit", tmp_path)
    path = tmp_path / f"vectors.{suffix}"
    assert run("embed", "vit", album[0], album[2], "--output", path, "--normalise")[0] == 0
    if suffix == "jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        names, vectors = [each["file"] for each in rows], np.array([each["vector"] for each in rows])
    else:
        made = np.load(path)
        names, vectors = (None, made) if suffix == "npy" else (made["names"].tolist(), made["vectors"])
    assert names in (None, [album[0], album[2]])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    code, _, err = run("embed", "vit", album[0], "--output", tmp_path / "x.csv")
    assert (code, "a file of .npy, .npz or .jsonl, got" in err) == (1, True)
    assert "a text are pooled, got images" in run("embed", "vit", album[0], "--pooling", "mean")[2]


@pytest.mark.rotates
def test_several_pictures_are_drawn_into_a_folder(run, album, tmp_path):
    checkpoint("detr", tmp_path)
    code, out, _ = run("detect", "detr", album[0], album[2], "--threshold", "0.99", "--output", "drawn")
    assert code == 0
    assert out.splitlines()[0].startswith(f"{album[0]}\t")
    assert sorted(path.name for path in (tmp_path / "drawn").iterdir()) == ["0.png", "2.png"]
    code, _, err = run("detect", "detr", album[0], album[2], "--output", "drawn.png")
    assert (code, "the output of several images must be a folder, got drawn.png" in err) == (1, True)


@pytest.mark.rotates
@pytest.mark.parametrize("subtask", ["panoptic", "instance"])
def test_segments_are_drawn_over_the_picture(run, album, tmp_path, subtask):
    checkpoint("mask2former", tmp_path)
    asked = ("segment", "mask2former", album[0], "--subtask", subtask, "--threshold", "0.3")
    code, out, _ = run(*asked, "--overlay", "--output", "drawn.png")
    *lines, written = out.splitlines()
    assert (code, written) == (0, "drawn.png")
    assert all(len(line.split("\t")) == 3 for line in lines)
    drawn = PIL.Image.open("drawn.png")
    assert (drawn.mode, drawn.size) == ("RGB", (480, 480))
    assert run(*asked, "--output", "map.png")[0] == 0
    numbers = np.asarray(PIL.Image.open("map.png"))
    found = json.loads(run(*asked, "--jsonl")[1])["regions"]
    assert found
    assert len(lines) == len(found)
    assert {each["number"] for each in found} >= {*np.unique(numbers).tolist()} - {0}
    for each in found:
        assert each["fraction"] == pytest.approx((numbers == each["number"]).mean())
    plain = PIL.Image.open(album[0]).convert("RGB").resize(drawn.size, PIL.Image.Resampling.NEAREST)
    changed = (np.asarray(drawn) != np.asarray(plain)).any(-1)
    assert changed.mean() >= 0.9 * (numbers > 0).mean()


@pytest.mark.rotates
def test_a_subtask_that_a_checkpoint_does_not_do_is_refused(run, album, tmp_path):
    checkpoint("beit_segmentation", tmp_path)
    code, _, err = run("segment", "beit_segmentation", album[0], "--subtask", "panoptic")
    assert (code, "tells classes of pixels alone, got 'panoptic'" in err) == (1, True)
    checkpoint("detr_segmentation", tmp_path)
    code, _, err = run("segment", "detr_segmentation", album[0], "--subtask", "instance")
    assert (code, "tells the surest object of each pixel, which is 'panoptic', got 'instance'" in err) == (1, True)


@pytest.mark.rotates
def test_maps_of_classes_are_written_as_large_as_the_pictures(run, album, tmp_path):
    checkpoint("beit_segmentation", tmp_path)
    code, out, _ = run("segment", "beit_segmentation", album[0], "--output", "map.png")
    *lines, written = out.splitlines()
    assert (code, written) == (0, "map.png")
    drawn = np.asarray(PIL.Image.open("map.png"))
    assert drawn.shape == (24, 24)
    counts = np.bincount(drawn.ravel(), minlength=3) / drawn.size
    assert sorted(lines) == sorted(f"{counts[i]:.4f}\tLABEL_{i}" for i in range(3) if counts[i])
    found = json.loads(run("segment", "beit_segmentation", album[0], "--jsonl")[1])["regions"]
    assert [each["fraction"] for each in found] == sorted(counts[counts > 0], reverse=True)
    pretrained = hub.load(tmp_path / "beit_segmentation")
    (again,) = segment(pretrained, read_image(pretrained, album[0]))
    np.testing.assert_array_equal(again.numbers, drawn)
    code, _, err = run("segment", checkpoint("vit", tmp_path), album[0])
    assert (code, "to tell the class of every pixel takes a checkpoint that can, got a ViT" in err) == (1, True)


@pytest.mark.rotates
def test_objects_are_told_apart_in_maps(run, album, tmp_path):
    checkpoint("detr_segmentation", tmp_path)
    noise = np.random.default_rng(0).integers(0, 256, (32, 32), np.uint8)
    PIL.Image.fromarray(noise).save(album[0])
    code, out, _ = run("segment", "detr_segmentation", album[0], album[2], "--threshold", "0.4", "--output", "maps")
    assert code == 0
    assert sorted(path.name for path in (tmp_path / "maps").iterdir()) == ["0.png", "2.png"]
    said = run("segment", "detr_segmentation", album[0], "--threshold", "0.4", "--jsonl")[1]
    drawn = np.asarray(PIL.Image.open("maps/0.png"))
    for each in json.loads(said)["regions"]:
        assert f"{album[0]}\t{each['fraction']:.4f}\t{each['label']}\t{each['probability']:.4f}" in out.splitlines()
        assert each["fraction"] == (drawn == each["number"]).mean()
        assert each["probability"] > 0.4
    assert json.loads(said)["regions"]
    assert run("segment", "detr_segmentation", album[0], "--threshold", "1")[1] == "nothing is found above 1\n"
    assert (
        "threshold must be from 0 to 1, got 2" in run("segment", "detr_segmentation", album[0], "--threshold", "2")[2]
    )


def test_maps_of_many_classes_have_16_bits():
    classes = np.array([[0, 300], [7, 65_535]])
    np.testing.assert_array_equal(np.asarray(map_image(classes)), classes)


def test_a_classifier_of_pictures_is_measured_on_class_folders(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkpoint("vit", tmp_path)
    names = json.loads((tmp_path / "vit" / "config.json").read_text())
    classes = [*names.get("id2label", {"0": "0", "1": "1"}).values()][:2]
    for number, name in enumerate(classes * 2):
        write_image(tmp_path / "data" / name / f"{number}.png", pixels(number, 24, 24))
    (tmp_path / "data" / classes[0] / "9.png").write_bytes(b"none")
    code, out, err = run("evaluate", "vit", "data")
    result = json.loads(out)
    told = [
        json.loads(line)
        for line in run(
            "classify",
            "vit",
            *sorted(str(path.relative_to(tmp_path)) for path in (tmp_path / "data").rglob("[0-8].png")),
            "--jsonl",
        )[1].splitlines()
    ]
    right = [each["labels"][0]["name"] == Path(each["file"]).parent.name for each in told]
    assert (code, result["rows"], result["split"], err.count("9.png")) == (1, 4, "all", 1)
    assert result["accuracy"] == pytest.approx(100 * np.mean(right))
    (tmp_path / "data" / classes[1]).rename(tmp_path / "data" / "strange")
    assert "classes that the checkpoint does not know, strange; it knows" in run("evaluate", "vit", "data")[2]
    for given in ((), ("data", "--source", "x"), ("--reference", "x")):
        assert (
            "a model is measured on DATA, or on --source and --reference together" in run("evaluate", "vit", *given)[2]
        )
