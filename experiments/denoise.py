"""Restore damaged text with a small BART: spans or tokens masked, tokens deleted, sentences out of order, rotation.

    python experiments/denoise.py --workdir runs/denoise
    python experiments/denoise.py --workdir runs/captions --data.text captions.en --vocabulary.size 4000 --length 48

The texts are three sums in words, each going on from the one before, so that most of what is lost follows from the
rest; with `--data.text` they are the lines of a file. 1.0 M parameters, 1,500 steps of 48 texts by Muon. Of 100 texts
that it had not seen it restored exactly, and as they were given this many were whole already,

    infill 33 % (0)   mask 57 % (0)   delete 59 % (0)   permute 90 % (17)   rotate 77 % (2)   both 18 % (0)

where both is infilling and permutation: 55.7 % in the mean against 3.2 %, chrF 92.2 against 80.7. (2026-11-21,
5 minutes of CPU time, 9 minutes on 2 cores shared with other work.) Some damage leaves more than one sum possible, so
that not all can be restored.
"""

from flax_transformer.models.preset import narrowed
from flax_transformer.models.text.bart import bart_base
from flax_transformer.objective import TokenLoss
from flax_transformer.task.denoising import DamagedTexts, Lines, Restorations
from flax_transformer.task.experiment import launch
from flax_transformer.task.recipe import Recipe
from flax_transformer.train import OptimizerConfig, ScheduleConfig, TrainConfig

EXPERIMENT = Recipe(
    model=narrowed(bart_base(dropout=0.0), embed=128, heads=4, inner=256, depth=2),
    family="bart",
    data=Lines(),
    examples=DamagedTexts(),
    objective=TokenLoss(chunk=512),
    evaluators=(Restorations(),),
    optimizer=OptimizerConfig(
        name="muon", learning_rate=3e-3, schedule=ScheduleConfig(name="cosine", warmup=100, final=0.02), clip_norm=1.0
    ),
    train=TrainConfig(steps=1_500, log_every=100, eval_every=500, checkpoint_every=500),
)

if __name__ == "__main__":
    launch(EXPERIMENT)
