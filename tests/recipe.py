"""Recipes for tests."""

from flax_transformer.objective import TokenLoss
from flax_transformer.task.evaluator import Translations
from flax_transformer.task.example import BPE, Batching, SentencePairs
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.translator import Search


def translation(*, bpe=BPE(), batch=Batching(), search=Search(), headline="bleu", samples=10, smoothing=0.1, **options):
    """Make the recipe of a translator."""
    return Recipe(
        family="marian",
        examples=SentencePairs(bpe=bpe, batch=batch),
        objective=TokenLoss(label_smoothing=smoothing, chunk=512),
        evaluators=(Translations(search=search, headline=headline, count=samples),),
        **options,
    )
