"""Models of speech, and of images with texts, beside Hugging Face: equal weights, taking turns in one process.

    pip install torch==2.13.0 transformers
    python benchmarks/multimodal_peer.py [--rounds 6] [--json FILE]

Whisper tiny writes down 30 seconds of audio, greedily, 64 tokens: features, encoder, decoding, once from samples to
tokens and once the encoder alone. CLIP ViT-B/32 embeds 8 images and 8 texts of 77 tokens. Random weights, float32, on
the CPU; tokens must be the same and numbers agree. PyTorch runs eagerly, with its fused attention. A ratio above 1 says
how many times faster ours is: medians of runs that took turns. Goal: 1.3 for Whisper.
"""

import os
import tempfile
from collections.abc import Callable

import numpy as np
import torch
import transformers
from results import arguments, ratios, spell, turns, write

from flax_transformer import hub
from flax_transformer.hub.processor.audio import AudioProcessor

TOKENS, RATE = 64, 16_000
SUPPRESSED = [50_257, *range(50_358, 51_865)]
"""No end, and no times."""

Runs = dict[str, Callable[[], np.ndarray]]


def opened(model: torch.nn.Module) -> hub.Pretrained:
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return hub.load(folder)


def whisper() -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        d_model=384, encoder_layers=4, decoder_layers=4, encoder_attention_heads=6, decoder_attention_heads=6,
        encoder_ffn_dim=1536, decoder_ffn_dim=1536, vocab_size=51_865, pad_token_id=50_257, bos_token_id=50_257,
        eos_token_id=50_257, decoder_start_token_id=50_258, init_std=0.2, attn_implementation="sdpa",
    )  # fmt: skip
    return transformers.WhisperForConditionalGeneration(config).eval()


def speech() -> dict[str, Runs]:
    theirs = whisper()
    ours = opened(theirs)
    extractor = transformers.WhisperFeatureExtractor()
    processor = AudioProcessor.of({"feature_extractor_type": "WhisperFeatureExtractor"})
    samples = np.random.default_rng(0).normal(0, 0.1, 30 * RATE).astype(np.float32)
    asked = {"max_new_tokens": TOKENS, "suppress_tokens": SUPPRESSED, "return_timestamps": False, "num_beams": 1}
    frames = processor(samples)["input_features"]
    start = np.array([[50_258]], np.int32)

    @torch.inference_mode()
    def written() -> np.ndarray:
        found = extractor(samples, sampling_rate=RATE, return_tensors="pt").input_features
        return theirs.generate(found, **asked).numpy()[:, -TOKENS:]

    @torch.inference_mode()
    def encoded() -> np.ndarray:
        return theirs(input_features=torch.as_tensor(frames), decoder_input_ids=torch.as_tensor(start)).logits.numpy()

    return {
        f"Whisper tiny, 30 s, {TOKENS} tokens": {
            "ours": lambda: np.asarray(ours.generate(processor(samples)["input_features"], **asked))[:, -TOKENS:],
            "transformers": written,
        },
        "Whisper tiny, 30 s, encoder and one token": {
            "ours": lambda: np.asarray(ours(input_features=frames, decoder_input_ids=start).logits),
            "transformers": encoded,
        },
    }


def pairs() -> dict[str, Runs]:
    torch.manual_seed(0)
    text = {"attn_implementation": "sdpa", "eos_token_id": 49_407}
    config = transformers.CLIPConfig(text_config=text, vision_config={"patch_size": 32}, attn_implementation="sdpa")
    theirs = transformers.CLIPModel(config).eval()
    ours = opened(theirs)
    random = np.random.default_rng(0)
    pixels = random.normal(size=(8, 3, 224, 224)).astype(np.float32)
    ids = np.concatenate([random.integers(0, 49_406, (8, 76)), np.full((8, 1), 49_407)], axis=1).astype(np.int32)

    @torch.inference_mode()
    def matched() -> np.ndarray:
        found = theirs(input_ids=torch.as_tensor(ids), pixel_values=torch.as_tensor(pixels))
        return found.logits_per_image.numpy()

    mine = lambda: np.asarray(ours(input_ids=ids, pixel_values=pixels).logits_per_image)  # noqa: E731
    return {"CLIP ViT-B/32, 8 images and 8 texts": {"ours": mine, "transformers": matched}}


def compare(case: str, runs: Runs, rounds: int) -> dict:
    found = {who: run() for who, run in runs.items()}
    same = found["ours"].dtype.kind == "i"
    error = 0.0 if same else float(np.abs(found["ours"] - found["transformers"]).max() / np.abs(found["ours"]).max())
    if (same and not np.array_equal(*found.values())) or not error < 1e-3:
        raise RuntimeError(f"{case}: transformers differs from ours by {error}")
    return {"case": case, "rounds": rounds, "relative_error": error, **ratios(turns(runs, rounds, warm=True))}


def main() -> None:
    options = arguments(__doc__, 6)
    torch.set_num_threads(os.cpu_count() or 1)
    transformers.logging.set_verbosity_error()
    results = []
    print(f"load when it began: {os.getloadavg()[0]:.1f}", flush=True)
    for make in (speech, pairs):
        for case, runs in make().items():
            results.append(compare(case, runs, options.rounds))
            print(f"{case}: {spell(results[-1]['transformers'])}", flush=True)
    write(options.json, results, compared=("torch", "transformers"))


if __name__ == "__main__":
    main()
