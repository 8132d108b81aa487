# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Before and beyond: a recurrent translator beside a Transformer
#
# Attention was a part of recurrent networks (Bahdanau et al. 2014) before it was all that there is (Vaswani et al.
# 2017). Both are composed here of the same parts, trained on the same sentences by the same recipe, and shown beside
# each other: what they cost, how fast they learn, and where they look as they write. The task is small, English number
# words into German, where the order turns: twenty-one is *einundzwanzig*. It takes about two minutes on two CPU cores.

# %%
import contextlib
import io
import tempfile
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt

from flax_transformer.bench.comparison import compare
from flax_transformer.data.synthetic import Numbers
from flax_transformer.models.text.recurrent import rnn_search
from flax_transformer.models.text.transformer import transformer_tiny
from flax_transformer.nn import with_fields
from flax_transformer.objective import TokenLoss
from flax_transformer.report import attention_figure
from flax_transformer.report.comparison import positions
from flax_transformer.report.comparison_page import comparison_table
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.sentence_pair import BPE, Batching, SentencePairs
from flax_transformer.task.series import scheduled, train_all
from flax_transformer.task.translation import Translations
from flax_transformer.task.translator import Search
from flax_transformer.train import OptimizerConfig, ScheduleConfig

plt.rcParams |= {"figure.dpi": 80, "figure.constrained_layout.use": True, "font.size": 9}

# %% [markdown]
# ## Two models, one recipe
#
# A model is a config; a recipe is a model with its data, objective and optimizer. The recurrent model reads by a
# bidirectional GRU and writes by another one that looks at what was read, by additive attention. The Transformer has
# two layers on each side. Only the model differs.

# %%
recurrent = with_fields(rnn_search(), embed=64, depth=1, dropout=0.0)
recurrent = replace(
    recurrent,
    encoder=with_fields(recurrent.encoder, hidden=64, bidirectional=True),
    decoder=with_fields(recurrent.decoder, hidden=128),
)
transformer = with_fields(transformer_tiny(), embed=64, inner=128, depth=2, dropout=0.0)


def recipe(model):
    return Recipe(
        model=model,
        data=Numbers(train=10_000, validation=100, test=100),
        examples=SentencePairs(bpe=BPE(merges=60), batch=Batching(tokens=1_024, buckets=1, max_tokens=40)),
        objective=TokenLoss(),
        evaluators=(Translations(search=Search(beams=1, ratio=0.0, extra=32, batch=100), headline="exact_match"),),
        optimizer=OptimizerConfig(learning_rate=5e-3, schedule=ScheduleConfig(name="linear"), clip_norm=1.0),
    )


recipes = {"recurrent": recipe(recurrent), "transformer": recipe(transformer)}

# %% [markdown]
# ## A series of runs
#
# Each run has a folder of its own, and a series that was cut off goes on where it was. `experiments/
# compare_architectures.py` does this with all translators, with an equal budget of CPU time in place of equal steps.

# %%
folder = Path(tempfile.mkdtemp())
series = {name: scheduled(each, 500, seed=0, evaluations=10) for name, each in recipes.items()}
with contextlib.redirect_stdout(io.StringIO()):
    train_all(series, folder)

# %% [markdown]
# ## Beside each other
#
# `flax-transformer compare RUN RUN …` writes one page of several runs and prints this table: what they score and what
# they cost. FLOPs are counted by formula, tokens exactly, as the run went on.

# %%
comparison, page = compare([folder / name for name in series], folder / "comparison.html")
print(comparison_table(comparison))

# %% [markdown]
# After as many sentences the Transformer makes hardly a mistake, the recurrent model still many. Over CPU time the
# curves are another comparison than over tokens: a step of one costs more than a step of the other.

# %%
figure, axes = plt.subplots(1, 2, figsize=(8, 2.8), sharey=True)
for run in comparison.runs:
    where = positions(run)
    rows = [at for at, record in enumerate(run.records) if record["split"] == "validation"]
    losses = [run.records[at]["loss"] for at in rows]
    for each, axis, scale in zip(axes, ("items", "cpu"), (1_000, 1), strict=True):
        each.plot([where[axis][at] / scale for at in rows], losses, marker="o", markersize=3, label=run.name)
axes[0].set(xlabel="thousand tokens", ylabel="validation loss", yscale="log")
axes[1].set(xlabel="CPU seconds, compiling included")
axes[0].legend()
plt.show()

# %% [markdown]
# ## Where they look
#
# Rows are the tokens that are written, columns those of the source. The recurrent model has one head, whose weights say
# what the decoder reads as it writes a token; each head of the Transformer's last layer has its own.

# %%
for run in comparison.runs:
    picture = run.text_attention[0]
    print(f"{run.name}: {picture.source} → {picture.output}")

# %%
attention_figure(comparison.runs[0].text_attention[0].maps[-1])

# %%
attention_figure(comparison.runs[1].text_attention[0].maps[-1])

# %% [markdown]
# What each made of the same sentences, where they differ:

# %%
made = [{sample["source"]: sample for sample in run.samples} for run in comparison.runs]
differ = [source for source in made[0] if made[0][source]["hypothesis"] != made[1][source]["hypothesis"]]
print(f"{len(differ)} of {len(made[0])} test sentences")
for source in differ[:3]:
    print(f"\n{source}\n  reference    {made[0][source]['target']}")
    for run, samples in zip(comparison.runs, made, strict=True):
        print(f"  {run.name:<12} {samples[source]['hypothesis']}")
