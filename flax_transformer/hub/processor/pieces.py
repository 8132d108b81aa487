"""SentencePiece models as engines of `tokenizers` (Kudo and Richardson 2018), through the optional package."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flax_transformer.data.text.tokenizer import unreadable_is_value_error
from flax_transformer.hub.processor.dress import Special, set_ends
from flax_transformer.hub.processor.language_code import MBART50


def require_sentencepiece(path: Path) -> None:
    """Refuse a SentencePiece model where the package is not installed."""
    try:
        import sentencepiece  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"{path} needs the sentencepiece package: pip install 'flax-transformer[sentencepiece]'"
        ) from error


def require(special: Special, roles: Sequence[str], folder: Path) -> None:
    """Refuse a vocabulary without special tokens that it needs."""
    absent = [role for role in roles if special.get(role) is None]
    if absent:
        raise ValueError(f"{folder}: this vocabulary needs the special tokens {', '.join(roles)}, it lacks {absent}")


def sentencepiece_engine(content: bytes, path: Path, kind: Any, special: Special, options: Mapping[str, Any]) -> Any:
    """Make the engine of a SentencePiece model.

    Raises:
        ValueError: one of a kind that is not read, or a malformed one; names it.
    """
    if kind.name not in _ENGINES:
        raise ValueError(f"{path} is read for {' and '.join(_ENGINES)}, got {kind.name}; save it with tokenizer.json")
    require(special, ("unk", "eos"), path)
    require_sentencepiece(path)
    import tokenizers
    from sentencepiece import sentencepiece_model_pb2

    with unreadable_is_value_error(path):
        model = sentencepiece_model_pb2.ModelProto.FromString(content)
        number, expected = model.trainer_spec.model_type, 2 if kind.name == "llama" else 1
        if number != expected:
            raise ValueError(f"{kind.name} is a SentencePiece model of type {expected}, got {number}")
        engine = _ENGINES[kind.name](model, special, options)
        kind.dress(engine, special, options)
        if kind.name == "llama":
            set_ends(engine, special, bos=options.get("add_bos_token", True), eos=options.get("add_eos_token", False))
        engine.add_tokens(
            [
                tokenizers.AddedToken(piece.piece, normalized=False, special=piece.type == piece.CONTROL)
                for piece in model.pieces
                if piece.type in (piece.CONTROL, piece.USER_DEFINED)
            ]
        )
    return engine


def _t5(model: Any, special: Special, options: Mapping[str, Any]) -> Any:
    """T5: a unigram vocabulary, then sentinels numbered downwards (Raffel et al. 2020)."""
    count = options.get("extra_ids", 100)
    if not 0 <= count <= 10_000:
        raise ValueError(f"extra_ids must be between 0 and 10,000, got {count}")
    sentinels = [f"<extra_id_{i}>" for i in reversed(range(count))]
    pieces = [*((piece.piece, piece.score) for piece in model.pieces), *((token, 0.0) for token in sentinels)]
    return _unigram(model, pieces, model.trainer_spec.unk_id, sentinels)


def _pegasus(model: Any, special: Special, options: Mapping[str, Any]) -> Any:
    """PEGASUS: tokens of its pre-training before the pieces (Zhang et al. 2020)."""
    count = options.get("offset", 103)
    if not 2 <= count <= 10_000:
        raise ValueError(f"offset must be between 2 and 10,000, got {count}")
    masks = [options.get("mask_token_sent", "<mask_1>"), special.get("mask")]
    own = [*(token for token in masks if token is not None), *(f"<unk_{i}>" for i in range(2, count))]
    before = [(special["pad"], 0.0), (special["eos"], 0.0), *((token, -100.0) for token in own)]
    pieces = [*before, *((piece.piece, piece.score) for piece in model.pieces[2:])]
    return _unigram(model, pieces, len(before) + model.trainer_spec.unk_id - 2, own)


def _mbart50(model: Any, special: Special, options: Mapping[str, Any]) -> Any:
    """mBART-50: fairseq's tokens before the pieces, languages and the mask after them (Tang et al. 2020)."""
    import tokenizers

    before = [(special[role], 0.0) for role in ("cls", "pad", "eos", "unk")]
    after = [(token, 0.0) for token in (*MBART50, special["mask"])]
    pieces = [*before, *((piece.piece, piece.score) for piece in model.pieces[3:]), *after]
    return _unigram(model, pieces, 3, [*MBART50, tokenizers.AddedToken(special["mask"], lstrip=True)])


def _unigram(model: Any, pieces: list[tuple[str, float]], unk: int, special: Sequence[Any]) -> Any:
    """Make an engine of pieces with scores, of which some are special tokens."""
    import tokenizers

    engine = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=unk))
    if model.normalizer_spec.precompiled_charsmap:
        engine.normalizer = tokenizers.normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap)
    engine.add_special_tokens(list(special))
    return engine


def _llama(model: Any, special: Special, options: Mapping[str, Any]) -> Any:
    import tokenizers

    vocabulary = {piece.piece: id for id, piece in enumerate(model.pieces)}
    # A SentencePiece model holds no merges; the earlier piece merges first, from whatever two pieces make it.
    merges = [
        (piece[:i], piece[i:])
        for piece in vocabulary
        for i in range(1, len(piece))
        if piece[:i] in vocabulary and piece[i:] in vocabulary
    ]
    return tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=merges))


_ENGINES = {"t5": _t5, "llama": _llama, "pegasus": _pegasus, "mbart50": _mbart50}
"""How the pieces of a model become a vocabulary, by kind of tokenizers."""
