"""Translate English number words to German ones: "three hundred twenty-one" → "dreihunderteinundzwanzig".

    python experiments/translate_numbers.py --workdir runs/translate_numbers      # what `make demo` runs

German says the ones before the tens and writes it all as one word, so there is something to learn. 600 steps on 20,000
numbers translate 100.0 % of 1,000 unseen ones exactly, in a minute on 2 CPU cores (2026-11-21).
"""

from flax_transformer.data.synthetic import Numbers
from flax_transformer.models.text.transformer import transformer_tiny
from flax_transformer.nn import with_fields
from flax_transformer.objective import TokenLoss
from flax_transformer.task.experiment import launch
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.sentence_pair import BPE, Batching, SentencePairs
from flax_transformer.task.translation import Translations
from flax_transformer.task.translator import Search
from flax_transformer.train import OptimizerConfig, ScheduleConfig, TrainConfig

EXPERIMENT = Recipe(
    model=with_fields(transformer_tiny(dropout=0.1), depth=2),
    family="marian",
    data=Numbers(),
    examples=SentencePairs(bpe=BPE(unit="byte", merges=200), batch=Batching(tokens=2_048, buckets=3, max_tokens=64)),
    objective=TokenLoss(label_smoothing=0.1, chunk=512),
    evaluators=(Translations(search=Search(beams=1), headline="exact_match"),),
    optimizer=OptimizerConfig(learning_rate=3e-3, schedule=ScheduleConfig(name="cosine", warmup=100)),
    train=TrainConfig(steps=600, log_every=100, eval_every=300, checkpoint_every=300),
)

if __name__ == "__main__":
    launch(EXPERIMENT)
