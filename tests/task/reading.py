"""Small checkpoints that embed, rank, answer and write, with a tokenizer of words."""

import json
from pathlib import Path

from flax import nnx

from flax_transformer import hub
from flax_transformer.hub.processor.tokenizer import from_files
from flax_transformer.models.encoder import EncoderConfig
from flax_transformer.models.head import with_head
from flax_transformer.models.text.t5 import t5_small
from flax_transformer.nn import EmbeddingConfig, transformer_block, with_fields

WORDS = [
    *(
        "alpha",
        "beta",
        "gamma",
        "delta",
        "epsilon",
        "zeta",
        "eta",
        "theta",
        "iota",
        "kappa",
        "lambda",
        "mu",
        "nu",
        "xi",
    ),
    *("who", "what", "where", "question", "context"),
]


def tokenizer(*, encoder=True):
    """Make a tokenizer of a token for each word."""
    import tokenizers

    special = {"unk": "<unk>", "pad": "<pad>", "cls": "<s>", "sep": "</s>", "eos": "</s>"}
    vocabulary = {token: n for n, token in enumerate([*dict.fromkeys(special.values()), *WORDS, ":"])}
    engine = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    engine.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    around = [(mark, vocabulary[mark]) for mark in ("<s>", "</s>")]
    single, pair = ("<s> $A </s>", "<s> $A </s> $B:1 </s>:1") if encoder else ("$A </s>", "$A $B </s>")
    engine.post_processor = tokenizers.processors.TemplateProcessing(single=single, pair=pair, special_tokens=around)
    names = ["input_ids", *["token_type_ids"] * encoder, "attention_mask"]
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": names}
    said |= {f"{role}_token": token for role, token in special.items()}
    files = {"tokenizer.json": engine.to_str().encode(), "tokenizer_config.json": json.dumps(said).encode()}
    return from_files(files, Path("."), {}), len(vocabulary)


def encoder(vocab, length=48):
    """Return a small encoder's config."""
    table = EmbeddingConfig(
        vocab=vocab, embed=16, position="learned", max_length=length, types=2, norm=1e-12, scaled=False, init_std=0.5
    )
    block = transformer_block(embed=16, heads=2, inner=32, norm_eps=1e-12, activation="gelu", init_std=0.3)
    return EncoderConfig(embedding=table, block=block, depth=2)


def checkpoint(architecture, seed=0, length=48, **head):
    """Make a checkpoint of BERT's: with a head, or the model with its pooler."""
    read, vocab = tokenizer()
    head = head or {"outputs": 0, "pool": "first", "dense": "tanh"}
    model = with_head(encoder(vocab, length), **head).build(nnx.Rngs(seed))
    return hub.wrap(model, architecture, tokenizer=read)


def writer(seed=0):
    """Make a T5."""
    read, vocab = tokenizer(encoder=False)
    config = with_fields(t5_small(), vocab=vocab, embed=16, heads=2, inner=32, depth=2, head_width=8, output_scale=0.25)
    ids = {"pad_token_id": 1, "eos_token_id": 3, "decoder_start_token_id": 1}
    return hub.wrap(config.build(nnx.Rngs(seed)), "T5ForConditionalGeneration", tokenizer=read, **ids)
