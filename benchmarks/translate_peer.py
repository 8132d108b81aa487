"""Translating beside Hugging Face `generate` and CTranslate2, equal weights, alternating in one process.

    pip install torch==2.13.0 transformers ctranslate2
    python benchmarks/translate_peer.py [--rounds 8] [--json FILE]

`transformer_tiny` and `transformer_base` with random weights and V = 8,000 translate 32 sentences, and one, of 24
tokens into 32 tokens each, greedily and by beam search with 4 beams, in float32 on the CPU. All compute the same
Transformer (Marian's: post-norm, tied embeddings, sinusoidal positions) and must find the same tokens. A ratio above 1
says how many times faster ours is: medians of runs that took turns. CTranslate2 runs on all processors and on one, as
its threads wait for each other long where a virtual machine's processors sleep.
"""

import os
import tempfile
from collections.abc import Callable

import ctranslate2
import jax
import numpy as np
import torch
import transformers
from ctranslate2.converters.transformers import BartLoader
from results import arguments, ratios, spell, turns, write

from flax_transformer import hub
from flax_transformer.decode import Beam, Greedy, PowerPenalty
from flax_transformer.models.seq2seq import Seq2Seq, Seq2SeqConfig
from flax_transformer.models.text.transformer import transformer_base, transformer_tiny
from flax_transformer.task.translator import decode_batch

VOCAB, EOS, UNK, START = 8_000, 0, 1, 2
SOURCE, TARGET = 24, 32
PRESETS = {"transformer_tiny": transformer_tiny, "transformer_base": transformer_base}


def make_marian(cfg: Seq2SeqConfig) -> transformers.MarianMTModel:
    """Make Marian with random weights, wide enough apart that no two tokens are equally likely."""
    torch.manual_seed(0)
    attention, feedforward = cfg.encoder.block.attention, cfg.encoder.block.feedforward
    config = transformers.MarianConfig(
        vocab_size=VOCAB, d_model=attention.embed, encoder_layers=cfg.encoder.depth, decoder_layers=cfg.decoder.depth,
        encoder_attention_heads=attention.heads, decoder_attention_heads=attention.heads,
        encoder_ffn_dim=feedforward.inner, decoder_ffn_dim=feedforward.inner,
        activation_function="relu", scale_embedding=True, max_position_embeddings=64,
        pad_token_id=START, bos_token_id=START, eos_token_id=EOS, decoder_start_token_id=START,
        forced_eos_token_id=None, init_std=0.06,
    )  # fmt: skip
    model = transformers.MarianMTModel(config).eval()
    # No end token: every sentence then takes exactly the tokens it is given.
    model.generation_config.eos_token_id = None
    return model


def load(marian: transformers.MarianMTModel) -> Seq2Seq:
    with tempfile.TemporaryDirectory() as folder:
        marian.save_pretrained(folder)
        return hub.load(folder).model


def make_ctranslate2(marian: transformers.MarianMTModel, threads: int) -> ctranslate2.Translator:
    """Convert in memory through CTranslate2's own loader; its vocabulary is the numbers as words."""
    marian.config.normalize_before = marian.config.normalize_embedding = False
    words = [str(i) for i in range(VOCAB)]
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        spec = BartLoader().get_model_spec(marian)
        spec.config.bos_token = spec.config.decoder_start_token = words[START]
        spec.config.eos_token, spec.config.unk_token = words[EOS], words[UNK]
        spec.config.add_source_eos = False
        spec.register_source_vocabulary(words)
        spec.register_target_vocabulary(words)
        spec.validate()
        spec.optimize()
        spec.save(folder)
        return ctranslate2.Translator(folder, compute_type="float32", intra_threads=threads, inter_threads=1)


def runners(name: str, rows: int, beams: int):
    """Make the translators of a case; each call returns its tokens, [rows, TARGET]."""
    marian = make_marian(PRESETS[name](VOCAB))
    model = jax.jit(Seq2Seq.for_decoding)(load(marian))
    source = np.random.default_rng(0).integers(4, VOCAB, (rows, SOURCE)).astype(np.int32)
    lengths = np.full(rows, SOURCE, np.int32)
    tensor, words = torch.tensor(source).long(), [[str(i) for i in row] for row in source]
    seen = torch.ones_like(tensor)
    limits = {"max_length": TARGET, "eos": (), "pad": START}
    config = Greedy(**limits) if beams == 1 else Beam(**limits, beams=beams, length_penalty=PowerPenalty())

    def ours():
        found = decode_batch(model, source, lengths, config=config, bos=START)
        return np.asarray(found.tokens[:, 0])

    @torch.inference_mode()
    def hugging_face():
        found = marian.generate(
            tensor, attention_mask=seen, num_beams=beams, do_sample=False, max_new_tokens=TARGET, length_penalty=1.0
        )
        return found[:, 1:].numpy()

    def ct2(threads: int) -> Callable[[], np.ndarray]:
        translator = make_ctranslate2(marian, threads)

        def run():
            found = translator.translate_batch(
                words, beam_size=beams, length_penalty=1.0, min_decoding_length=TARGET, max_decoding_length=TARGET,
                max_batch_size=rows,
            )  # fmt: skip
            return np.array([[int(word) for word in result.hypotheses[0]] for result in found])

        return run

    several = {f"ctranslate2, {threads} threads": ct2(threads) for threads in {1, os.cpu_count() or 1}}
    return {"ours": ours, "hugging_face": hugging_face} | several


def compare(name: str, rows: int, beams: int, rounds: int) -> dict:
    translators = runners(name, rows, beams)
    tokens = {who: run() for who, run in translators.items()}
    seconds = turns(translators, rounds, warm=True)
    result = {"case": name, "sentences": rows, "beams": beams, "rounds": rounds}
    for peer, value in ratios(seconds).items():
        result[peer] = {**value, "same_tokens": float((tokens[peer] == tokens["ours"]).mean())}
    return result


def main() -> None:
    options = arguments(__doc__, 8)
    torch.set_num_threads(os.cpu_count() or 1)
    transformers.logging.set_verbosity_error()
    results = []
    for name in PRESETS:
        for rows in (32, 1):
            for beams in (1, 4):
                result = compare(name, rows, beams, options.rounds * (1 if rows > 1 else 4))
                results.append(result)
                told = (
                    f"{peer} {spell(result[peer])}, {100 * result[peer]['same_tokens']:.1f} % of the tokens the same"
                    for peer in result
                    if isinstance(result[peer], dict)
                )
                print(f"{name}, {rows} sentences, {beams} beams: {'; '.join(told)}", flush=True)
    write(options.json, results, compared=("torch", "transformers", "ctranslate2"))


if __name__ == "__main__":
    main()
