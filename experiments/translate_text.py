"""Translate text: train the Transformer of 2017 on any parallel corpus, files or TFDS.

    python experiments/translate_text.py --workdir runs/multi30k --data.root MULTI30K \\
        --data.train train.tok --data.validation val.tok --data.test test_2016_flickr.tok

The defaults are the Multi30k recipe of Wu et al. 2021, who report 41.02 BLEU on test2016 (tokenised, lowercased); it
wants an accelerator and has not been run to its end on one yet. A shorter variant for two CPU cores, its command in
docs/translation.md, reached 40.15 in 71 minutes of CPU time, 36 of two cores (2026-11-21).
"""

from flax_transformer.data.text.corpus import TextCorpus
from flax_transformer.models.text.transformer import transformer_tiny
from flax_transformer.task.experiment import launch
from flax_transformer.task.translation import BPE, Batching, Search, Translation
from flax_transformer.train.loop import TrainConfig
from flax_transformer.train.optimizer import OptimizerConfig
from flax_transformer.train.schedule import ScheduleConfig

EXPERIMENT = Translation(
    model=transformer_tiny(),
    data=TextCorpus(),
    bpe=BPE(unit="word", merges=10_000),
    batch=Batching(tokens=8_192, buckets=8, max_tokens=128),
    optimizer=OptimizerConfig(learning_rate=5e-3, schedule=ScheduleConfig(name="inverse_sqrt", warmup=2_000)),
    train=TrainConfig(steps=8_000, log_every=100, eval_every=400, checkpoint_every=400, keep=10, average=10),
    search=Search(beams=5, length_penalty=1.0),
    headline="tokenized_bleu",
)

if __name__ == "__main__":
    launch(EXPERIMENT)
