"""Tiny checkpoints to begin training with: golden ones of transformers, beside tokenizers and processors made here."""

import json
import shutil
import wave
from pathlib import Path

import jax
import numpy as np
from flax import nnx

from flax_transformer import hub
from flax_transformer.hub.processor.audio import AudioProcessor
from flax_transformer.models.answer_head import answering
from flax_transformer.models.head import with_head
from flax_transformer.models.multimodal.clip import clip_text, clip_vision
from flax_transformer.models.multimodal.towers import TwoTowersConfig
from flax_transformer.models.multimodal.vilt import vilt_encoder
from flax_transformer.models.multimodal.vision_encoder_decoder import captioner
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.models.vision.vit import vit_encoder
from flax_transformer.nn import with_fields

GOLDEN = Path(__file__).parent.parent / "hub" / "golden"
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
GERMAN = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
SPECIAL = {"unk": "<unk>", "bos": "<s>", "eos": "</s>", "pad": "<pad>"}
LETTERS = "abcdefghijklmnopqrstuvwxyzü "
RATE = 1_400
PROMPT = {
    20: "<|endoftext|>", 21: "<|startoftranscript|>", 22: "<|en|>", 23: "<|de|>", 24: "<|translate|>",
    25: "<|transcribe|>", 28: "<|notimestamps|>",
}  # fmt: skip


def tokenizer_files(marks, mask="<mask>", **said):
    """Make tokenizer.json and tokenizer_config.json of a token for each letter; `marks` are those around a text."""
    import tokenizers

    special = {**SPECIAL, "mask": mask}
    tokens = [*SPECIAL.values(), *LETTERS, mask]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    engine = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    engine.decoder = tokenizers.decoders.Fuse()
    engine.add_special_tokens([*special.values()])
    around = [(mark, vocabulary[mark]) for mark in marks.split() if mark != "$A"]
    engine.post_processor = tokenizers.processors.TemplateProcessing(single=marks, special_tokens=around)
    roles = {f"{role}_token": token for role, token in special.items()}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **roles, **said}
    return {"tokenizer.json": engine.to_str(), "tokenizer_config.json": json.dumps(config)}


def whisper_files():
    """Make Whisper's tokenizer: letters of English, and its tokens where the golden generation_config.json has them."""
    import tokenizers

    letters = sorted({letter for word in WORDS for letter in word} | {" "})
    vocabulary = {f"<{n}>": n for n in range(40)}
    for number, letter in enumerate(letters):
        del vocabulary[f"<{4 + number}>"]
        vocabulary[letter] = 4 + number
    for number, token in PROMPT.items():
        del vocabulary[f"<{number}>"]
        vocabulary[token] = number
    engine = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[], unk_token="<0>"))
    engine.decoder = tokenizers.decoders.Fuse()
    engine.add_special_tokens([*PROMPT.values(), *(f"<{n}>" for n in range(4))])
    roles = {f"{role}_token": PROMPT[20] for role in ("bos", "eos", "unk")}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **roles}
    return {"tokenizer.json": engine.to_str(), "tokenizer_config.json": json.dumps(config)}


def letter_files():
    """Make a tokenizer of four capital letters, as that of wav2vec 2.0 is."""
    tokens = ["<pad>", "<s>", "</s>", "<unk>", "|", *"EINO"]
    config = {"tokenizer_class": "Wav2Vec2CTCTokenizer", "word_delimiter_token": "|"}
    config |= {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return {
        "vocab.json": json.dumps({token: n for n, token in enumerate(tokens)}),
        "tokenizer_config.json": json.dumps(config),
    }


FILES = {
    "vit": dict,
    "clip": lambda: tokenizer_files("<s> $A </s>"),
    "vilt": lambda: tokenizer_files("<s> $A </s>"),
    "t5": lambda: tokenizer_files("$A </s>"),
    "mt5": lambda: tokenizer_files("$A </s>"),
    "bart": lambda: tokenizer_files("<s> $A </s>"),
    "led": lambda: tokenizer_files("<s> $A </s>"),
    "marian": lambda: tokenizer_files("$A </s>"),
    "bert": lambda: tokenizer_files("<s> $A </s>", "[MASK]", cls_token="<s>", sep_token="</s>"),
    "roberta": lambda: tokenizer_files("<s> $A </s>", cls_token="<s>", sep_token="</s>"),
    "vision-encoder-decoder": lambda: tokenizer_files("$A", pad_token=None),
    "whisper": whisper_files,
    "wav2vec2": letter_files,
}
AUDIO_FILES = {
    "whisper": {
        "feature_extractor_type": "WhisperFeatureExtractor", "sampling_rate": RATE, "feature_size": 5,
        "chunk_length": 1, "hop_length": 100, "n_fft": 200,
    },
    "wav2vec2": {
        "feature_extractor_type": "Wav2Vec2FeatureExtractor", "sampling_rate": RATE, "feature_size": 1,
        "do_normalize": True, "return_attention_mask": True,
    },
}  # fmt: skip
IMAGES = {
    "image_processor_type": "ViTImageProcessor", "size": {"height": 12, "width": 12}, "do_resize": True,
    "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 2,
}  # fmt: skip


ENCODER = with_fields(vit_encoder("tiny", 4, image=12), embed=8, heads=2, inner=12, depth=1)
"""Of images of three channels, which those of golden checkpoints do not have."""


SMALL = {"embed": 8, "heads": 2, "depth": 1}
MADE = {
    "vit": ("ViTForImageClassification", lambda: with_head(ENCODER, outputs=3)),
    "clip": (
        "CLIPModel",
        lambda: TwoTowersConfig(
            text=with_fields(clip_text(6, length=16, **SMALL), vocab=40),
            vision=clip_vision(6, image=12, patch=4, **SMALL),
        ),
    ),
    "vilt": (
        "ViltForQuestionAnswering",
        lambda: answering(with_fields(vilt_encoder(image=12, patch=4, length=24, inner=8, **SMALL), vocab=40), 3),
    ),
}
"""Models of images of three channels, which those of golden checkpoints do not have, with their architectures."""


def save(config, architecture, folder, **fields):
    """Save a new model as a checkpoint."""
    model = jax.jit(lambda: config.build(nnx.Rngs(0)))()
    hub.save(hub.wrap(model, architecture, **fields), folder)


def captioner_files(folder):
    """Save a captioner."""
    words = with_fields(
        gpt2_tiny(dropout=0.0), embed=8, heads=2, inner=12, depth=1, vocab=40, max_length=32, init_std=0.3
    )
    ids = {"bos_token_id": 1, "decoder_start_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
    save(captioner(ENCODER, words), "VisionEncoderDecoderModel", folder, **ids)


def checkpoint(kind, folder, **config):
    """Put a tiny checkpoint of a family into a folder; `config` changes fields of its config.json, None drops them."""
    if kind == "vision-encoder-decoder":
        captioner_files(folder)
    elif kind in MADE:
        save(MADE[kind][1](), MADE[kind][0], folder)
    else:
        shutil.copytree(GOLDEN / kind, folder, ignore=shutil.ignore_patterns("expected.npz"))
    for name, content in FILES[kind]().items():
        (folder / name).write_text(content)
    if kind in AUDIO_FILES:
        AudioProcessor.of(AUDIO_FILES[kind]).save(folder)
    if kind == "vision-encoder-decoder" or kind in MADE:
        (folder / "preprocessor_config.json").write_text(json.dumps(IMAGES))
    for name in ("config.json", "generation_config.json"):
        if (path := folder / name).is_file():
            said = {**json.loads(path.read_text()), "_from_model_config": None, **config}
            path.write_text(json.dumps({key: value for key, value in said.items() if value is not None}))
    return folder


def corpus(folder):
    """Write pairs of number words as files of two languages."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for split, count in (("train", 24), ("val", 6), ("test", 4)):
        rows = [rng.integers(0, 10, rng.integers(1, 3)).tolist() for _ in range(count)]
        for end, words in (("en", WORDS), ("de", GERMAN)):
            (folder / f"{split}.{end}").write_text("".join(" ".join(words[n] for n in row) + "\n" for row in rows))
    return folder


def speech(folder, texts, key="text"):
    """Write recordings of noise, and JSON lines of what is said in each."""
    folder.mkdir()
    rng, lines = np.random.default_rng(0), []
    for number, text in enumerate(texts):
        samples = (8_000 * rng.standard_normal(int(RATE * rng.uniform(0.5, 0.9)))).clip(-32_000, 32_000).astype("<i2")
        with wave.open(str(folder / f"{number}.wav"), "wb") as file:
            file.setparams((1, 2, RATE, 0, "NONE", ""))
            file.writeframes(samples.tobytes())
        lines.append(json.dumps({"audio": f"{number}.wav", key: text}))
    (folder / "metadata.jsonl").write_text("\n".join(lines))
    return folder
