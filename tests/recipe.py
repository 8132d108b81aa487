"""Recipes for tests."""

from flax_transformer.data.synthetic import Numbers
from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.nn import EmbeddingConfig, TrunkConfig, transformer_block
from flax_transformer.objective import TokenLoss
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.sentence_pair import BPE, Batching, SentencePairs
from flax_transformer.task.translation import Translations
from flax_transformer.task.translator import Search
from flax_transformer.train.loop import TrainConfig
from flax_transformer.train.optimizer import OptimizerConfig
from flax_transformer.train.schedule import ScheduleConfig


def translation(*, bpe=BPE(), batch=Batching(), search=Search(), headline="bleu", samples=10, smoothing=0.1, **options):
    """Make the recipe of a translator."""
    return Recipe(
        family="marian",
        examples=SentencePairs(bpe=bpe, batch=batch),
        objective=TokenLoss(label_smoothing=smoothing, chunk=512),
        evaluators=(Translations(search=search, headline=headline, count=samples),),
        **options,
    )


BLOCK = {"embed": 16, "heads": 2, "inner": 16}


def tiny_translation(*, search=Search(beams=1, ratio=0.0, extra=12, batch=8), samples=10, **train):
    """Make the recipe of a translator that learns little and is always the same, so that it is compiled once."""
    return translation(
        model=Seq2SeqConfig(
            embedding=EmbeddingConfig(vocab=1, embed=16),
            encoder=TrunkConfig(block=transformer_block(**BLOCK), depth=2),
            decoder=TrunkConfig(block=transformer_block(**BLOCK, cross=True), depth=1),
        ),
        data=Numbers(train=100, validation=10, test=6),
        bpe=BPE(merges=20),
        batch=Batching(tokens=512, buckets=1, max_tokens=64),
        optimizer=OptimizerConfig(learning_rate=3e-3, schedule=ScheduleConfig(name="constant")),
        train=TrainConfig(**{"steps": 4, "log_every": 2, "eval_every": 4, "checkpoint_every": 4, **train}),
        search=search,
        samples=samples,
    )
