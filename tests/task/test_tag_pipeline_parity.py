"""One call for a task, against the pipelines of transformers."""

import numpy as np
import pytest

from flax_transformer.task.pipeline import pipeline
from tests.task.checkpoints import tokenizer_files

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.proves("pipelines", "texts, prompts, images, objects, recordings, against `transformers`"),
]

TEXT = {
    "vocab_size": 40, "pad_token_id": 3, "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 66,
    "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 24,
    "initializer_range": 0.3,
}  # fmt: skip
SIZES = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 24}
TEXTS = ["one game of five", "they vote in may for a new man", "a" * 40]
KINDS = {"id2label": dict(enumerate("abcdefg")), "label2id": {name: n for n, name in enumerate("abcdefg")}}


def saved(folder, model, marks="<s> $A </s>", processor=None):
    """Save a model with a tokenizer of letters, or with a processor."""
    model.eval().save_pretrained(folder)
    if processor is not None:
        processor.save_pretrained(folder)
        return str(folder)
    for name, text in tokenizer_files(marks, model_max_length=60).items():
        (folder / name).write_text(text)
    return str(folder)


def same(ours, theirs):
    """Compare records: numbers to 1e-5, all else exactly; theirs may have keys that ours lack."""
    if isinstance(ours, dict):
        for name, value in ours.items():
            same(value, theirs[name])
    elif isinstance(ours, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            same(one, other)
    elif isinstance(ours, float):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    else:
        assert ours == theirs


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def both(task, folder, inputs, **options):
    """Ask both, and compare; return ours."""
    ours = pipeline(task, folder)(inputs, **options)
    same(ours, transformers.pipeline(task, model=folder, device="cpu")(inputs, **options))
    return ours


@pytest.mark.parametrize("top_k", [1, 2, None])
def test_classes_of_texts(tmp_path, top_k):
    config = transformers.RobertaConfig(**TEXT, num_labels=7, **KINDS)
    folder = saved(tmp_path, transformers.RobertaForSequenceClassification(config))
    found = both("text-classification", folder, TEXTS, **({} if top_k == 1 else {"top_k": top_k}))
    assert len(found) == 3


def test_masks(tmp_path):
    folder = saved(tmp_path, transformers.RobertaForMaskedLM(transformers.RobertaConfig(**TEXT)))
    both("fill-mask", folder, ["on<mask> game", "<mask>wo"], top_k=3)
    ours = pipeline("fill-mask", folder)("a<mask>b<mask>")
    theirs = transformers.pipeline("fill-mask", model=folder, device="cpu")("a<mask>b<mask>")
    for one, other in zip(ours, theirs, strict=True):  # their sequences have special tokens, where masks are several
        same([{**each, "sequence": None} for each in one], [{**each, "sequence": None} for each in other])


@pytest.mark.parametrize("whole", [True, False])
def test_prompts(tmp_path, whole):
    config = transformers.GPT2Config(
        vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=64, bos_token_id=1, eos_token_id=2, pad_token_id=3,
        initializer_range=0.4,
    )  # fmt: skip
    folder = saved(tmp_path, transformers.GPT2LMHeadModel(config), "$A")
    both("text-generation", folder, TEXTS[:2], max_new_tokens=7, do_sample=False, return_full_text=whole)


def images(count):
    """Draw noise."""
    import PIL.Image

    rng = np.random.default_rng(0)
    return [PIL.Image.fromarray(rng.integers(0, 256, (20 + n, 26, 3), dtype=np.uint8)) for n in range(count)]


def test_classes_of_images(tmp_path):
    config = transformers.ViTConfig(**SIZES, image_size=12, patch_size=4, num_labels=7, **KINDS, initializer_range=0.3)
    processor = transformers.ViTImageProcessor(size={"height": 12, "width": 12})
    folder = saved(tmp_path, transformers.ViTForImageClassification(config), processor=processor)
    assert len(both("image-classification", folder, images(3))[0]) == 5
    assert len(both("image-classification", folder, images(1), top_k=2)[0]) == 2


def test_objects(tmp_path):
    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic", out_features=["stage2"]
    )
    config = transformers.DetrConfig(
        use_timm_backbone=False, backbone_config=backbone, backbone=None, d_model=16, encoder_layers=1, num_queries=5,
        decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=24, init_std=0.5,
        decoder_ffn_dim=24, num_labels=7, **KINDS,
    )  # fmt: skip
    processor = transformers.DetrImageProcessor(size={"shortest_edge": 24, "longest_edge": 40})
    folder = saved(tmp_path, transformers.DetrForObjectDetection(config), processor=processor)
    found = pipeline("object-detection", folder)(images(2), threshold=0.01)
    theirs = transformers.pipeline("object-detection", model=folder, device="cpu")(images(2), threshold=0.01)
    same(found, [sorted(each, key=lambda one: -one["score"]) for each in theirs])
    assert sum(map(len, found))


def upernet():
    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 12, 16, 20], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = transformers.UperNetConfig(
        backbone_config=backbone, hidden_size=8, pool_scales=[1, 2], use_auxiliary_head=False, num_labels=7, **KINDS
    )
    return transformers.UperNetForSemanticSegmentation(config)


def segformer():
    config = transformers.SegformerConfig(
        num_encoder_blocks=2, hidden_sizes=[8, 12], depths=[1, 1], num_attention_heads=[2, 3], sr_ratios=[2, 1],
        decoder_hidden_size=8, initializer_range=0.3, num_labels=7, **KINDS,
    )  # fmt: skip
    return transformers.SegformerForSemanticSegmentation(config)


@pytest.mark.parametrize("make", [upernet, segformer])
def test_classes_of_pixels(tmp_path, make):
    """Every class that is there, with its mask."""
    processor = transformers.SegformerImageProcessor(size={"height": 64, "width": 64})
    folder = saved(tmp_path, make(), processor=processor)
    found = pipeline("image-segmentation", folder)(images(2))
    theirs = transformers.pipeline("image-segmentation", model=folder, device="cpu")(images(2))
    for ours, expected in zip(found, theirs, strict=True):
        assert {each["label"] for each in ours} == {each["label"] for each in expected}
        masks = {each["label"]: each["mask"] for each in expected}
        for each in ours:
            np.testing.assert_array_equal(np.asarray(each["mask"]), np.asarray(masks[each["label"]]))


@pytest.mark.parametrize("subtask", ["panoptic", "instance", "semantic"])
def test_segments_of_pixels(tmp_path, subtask):
    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 12, 16], depths=[1, 1, 1], layer_type="basic",
        out_features=["stage1", "stage2", "stage3"],
    )  # fmt: skip
    config = transformers.Mask2FormerConfig(
        backbone_config=backbone, feature_size=32, mask_feature_size=8, hidden_dim=16, encoder_feedforward_dim=8,
        dim_feedforward=8, encoder_layers=1, decoder_layers=2, num_attention_heads=2, num_labels=70,
        num_queries=1 if subtask == "panoptic" else 5,  # of several at random none has most of its mask for its own
        feature_strides=[4, 8, 16],
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.Mask2FormerForUniversalSegmentation(config)
    model.class_predictor.weight.data *= 30
    model.class_predictor.bias.data[3] += 20
    processor = transformers.Mask2FormerImageProcessor(size={"height": 64, "width": 64})
    folder = saved(tmp_path, model, processor=processor)
    found = pipeline("image-segmentation", folder)(images(2), subtask=subtask, threshold=0.01)
    with_torch = transformers.pipeline("image-segmentation", model=folder, device="cpu")
    theirs = with_torch(images(2), subtask=subtask, threshold=0.01)
    assert sum(map(len, found)) > 1
    for ours, expected in zip(found, theirs, strict=True):
        left = [(each["label"], each["score"], np.asarray(each["mask"])) for each in expected]
        for each in ours:
            mask = np.asarray(each["mask"])
            at = [i for i, (label, _, other) in enumerate(left) if label == each["label"] and (mask == other).all()]
            assert at
            score = left.pop(at[0])[1]
            assert (score is None) == (each["score"] is None)
            assert score is None or abs(score - each["score"]) <= 2e-6
        assert not left


def test_classes_of_recordings(tmp_path):
    config = transformers.Wav2Vec2Config(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, conv_dim=(8, 8), vocab_size=9,
        conv_stride=(5, 4), conv_kernel=(10, 8), num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
        num_feat_extract_layers=2, num_labels=7, classifier_proj_size=8, **KINDS, initializer_range=0.3,
    )  # fmt: skip
    processor = transformers.Wav2Vec2FeatureExtractor()
    folder = saved(tmp_path, transformers.Wav2Vec2ForSequenceClassification(config), processor=processor)
    rng = np.random.default_rng(0)
    both("audio-classification", folder, [rng.normal(size=1_600).astype(np.float32) for _ in range(2)], top_k=3)
