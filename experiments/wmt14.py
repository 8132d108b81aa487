"""Train the base or big Transformer on WMT14 English-German, as in "Attention Is All You Need".

    python experiments/wmt14.py base --workdir runs/wmt14              # or: big; buckets are mounted, see docs/tpu.md
    python experiments/wmt14.py base --data.root FOLDER --data.tfds ""  # train.en, train.de, … instead of TFDS

The paper's settings: 37,000 joint BPE merges, batches of about 25,000 tokens a side, Adam (0.9, 0.98) on the Noam
schedule with 4,000 warmup steps, label smoothing 0.1; base: 100,000 steps, dropout 0.1, the last 5 checkpoints
averaged; big: 300,000 steps, dropout 0.3, the last 20; beam 4, length penalty 0.6. It reports 27.3 and 28.4 BLEU on
newstest2014 (tokenised, compound-split). Compute is bfloat16, parameters are float32.

Not yet trained to the end here: it needs an accelerator and the data. What is verified, by tests: the parameter counts,
and training, checkpointing and scoring over generated data in the format of TFDS's wmt14_translate/de-en.
"""

import sys

from flax_transformer.data.text.parallel import TextCorpus
from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.models.text.transformer import transformer_base, transformer_big
from flax_transformer.nn import Precision
from flax_transformer.objective import TokenLoss
from flax_transformer.task.experiment import launch
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.sentence_pair import BPE, Batching, SentencePairs
from flax_transformer.task.translation import Translations
from flax_transformer.task.translator import Search
from flax_transformer.train import OptimizerConfig, ScheduleConfig, TrainConfig


def experiment(model: Seq2SeqConfig, *, steps: int, average: int) -> Recipe:
    """Return the paper's recipe for a model."""
    schedule = ScheduleConfig(name="noam", warmup=4_000, width=model.embedding.embed)
    return Recipe(
        model=model,
        family="marian",
        data=TextCorpus(tfds="wmt14_translate/de-en", train="train", validation="validation", test="test"),
        examples=SentencePairs(
            bpe=BPE(unit="byte", merges=37_000), batch=Batching(tokens=25_600, buckets=8, max_tokens=256)
        ),
        objective=TokenLoss(label_smoothing=0.1, chunk=4_096),
        evaluators=(Translations(search=Search(beams=4, length_penalty=0.6, penalty="gnmt")),),
        # Noam sets the rate; the optimizer's own is the factor before it.
        optimizer=OptimizerConfig(name="adam", learning_rate=1.0, schedule=schedule),
        train=TrainConfig(
            steps=steps, log_every=100, eval_every=2_500, checkpoint_every=1_250, keep=average, average=average
        ),
    )


BFLOAT16 = Precision(compute="bfloat16")
EXPERIMENTS = {
    "base": experiment(transformer_base(precision=BFLOAT16), steps=100_000, average=5),
    "big": experiment(transformer_big(precision=BFLOAT16), steps=300_000, average=20),
}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in EXPERIMENTS:
        sys.exit(__doc__ + "\nSay which: python experiments/wmt14.py base, or big.")
    launch(EXPERIMENTS[sys.argv[1]], sys.argv[2:])
