"""Learn vectors of texts by which those that belong together are found: sentence embeddings.

    python experiments/embed_texts.py                                    # docstrings and functions of Python's library
    python experiments/embed_texts.py pairs --workdir runs/pairs --data.root PAIRS
    python experiments/embed_texts.py scored --workdir runs/sts --data.root STS
    python experiments/embed_texts.py tokens --workdir runs/colbert --data.root PAIRS
    python experiments/embed_texts.py towers --workdir runs/towers --data.root PAIRS [--init bert-base-uncased]
    python experiments/embed_texts.py simcse --workdir runs/simcse --data.of.root PAIRS   # of texts alone
    python experiments/embed_texts.py finetune --init sentence-transformers/all-MiniLM-L6-v2 --data.root PAIRS

`PAIRS/` holds train.tsv, dev.tsv and test.tsv, or .jsonl: a text, a tab and one that belongs to it a line, and perhaps
others that do not, with tabs between them. Every text is told from all second ones of its batch (multiple negatives
ranking), and once more by the first 64, 32 and 16 numbers of each vector (Matryoshka), so that vectors may be cut.
`simcse` is told nothing of what belongs together: every text is to be found by itself, seen with other dropout.
`scored` learns from lines of two texts and a number that says how alike they are (CoSENT). `tokens` gives each token a
vector and compares texts token by token (ColBERT), to rank passages: `ask --ranker` takes the run. `towers` has an
encoder of questions and one of passages (DPR), compared by inner products, which both begin with `--init`, a BERT;
`index`, `search` and `ask` take the run, and its export has a folder of either for transformers. `finetune` goes on
with any checkpoint of an encoder or decoder, a sentence encoder or not. `export` is a folder that
sentence-transformers opens, of `tokens` one of ColBERT's form.

Without a folder it learns which function of Python's standard library a docstring is of: 4,720 pairs, 590 in the test.
Of those the function is found at once by 45.42 % of the docstrings, among the first ten by 71.86 % (chance is 1.7 %),
the docstring by 43.56 and 71.53 % of the functions. From scratch, 1.3 million parameters, 300 steps, 4 minutes of CPU
time on two cores of an AMD EPYC beside other work (one seed, 2026-11-27).
"""

from dataclasses import replace

from flax_transformer.data.text.sentence import RepeatedTexts, SentenceData
from flax_transformer.models.encoder import EncoderConfig
from flax_transformer.models.head import with_head
from flax_transformer.models.text.sentence import sentence_encoder
from flax_transformer.models.text.two_encoders import two_encoders
from flax_transformer.nn import EmbeddingConfig, transformer_block
from flax_transformer.objective import CoSENTLoss, LateInteractionLoss, MatryoshkaLoss, MultipleNegativesRankingLoss
from flax_transformer.task.experiment import launch
from flax_transformer.task.opened import VocabularyConfig
from flax_transformer.task.passage_retrieval import PassageRetrieval, QuestionRows
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.retrieval import RetrievalEvaluator
from flax_transformer.task.sentence_similarity import SimilarityEvaluator, TextRows
from flax_transformer.task.start import StartConfig
from flax_transformer.task.token_retrieval import MarkedRows, TokenRetrieval
from flax_transformer.train import OptimizerConfig, ScheduleConfig, TrainConfig, adamw_linear

ENCODER = EncoderConfig(
    embedding=EmbeddingConfig(
        vocab=8_192, embed=128, position="learned", max_length=128, types=2, norm=1e-12, scaled=False, dropout=0.1,
        init_std=0.02,
    ),
    block=transformer_block(
        embed=128, heads=4, inner=256, norm_eps=1e-12, activation="gelu", dropout=0.1, attention_dropout=0.1,
        init_std=0.02,
    ),
    depth=2,
)  # fmt: skip

EXPERIMENT = Recipe(
    model=sentence_encoder(ENCODER, normalise=True),
    family="bert",
    data=SentenceData(),
    examples=TextRows(vocabulary=VocabularyConfig(size=8_192), rows=128, length=64),
    objective=MatryoshkaLoss(of=MultipleNegativesRankingLoss(), widths=(128, 64, 32, 16)),
    evaluators=(RetrievalEvaluator(),),
    optimizer=OptimizerConfig(
        name="adamw", learning_rate=2e-3, schedule=ScheduleConfig(name="cosine", warmup=30), weight_decay=0.01,
        decay_pattern=r"(kernel|embedding)$", clip_norm=1.0,
    ),
    train=TrainConfig(
        steps=300, log_every=25, eval_every=100, checkpoint_every=300, monitor="accuracy", keep_best=True
    ),
)  # fmt: skip

SCORED = replace(
    EXPERIMENT,
    data=SentenceData(scored=True),
    examples=replace(EXPERIMENT.examples, scored=True, rows=64, length=64),
    objective=CoSENTLoss(),
    evaluators=(SimilarityEvaluator(),),
    train=replace(EXPERIMENT.train, monitor="loss"),
)

TOKENS = replace(
    EXPERIMENT,
    model=with_head(ENCODER, outputs=32, bias=False),
    examples=MarkedRows(vocabulary=VocabularyConfig(size=8_192), rows=64, length=64),
    objective=LateInteractionLoss(),
    evaluators=(TokenRetrieval(),),
)

ONE = sentence_encoder(ENCODER, pools=("first",))
TOWERS = replace(
    EXPERIMENT,
    model=two_encoders(ONE),
    family="dpr",
    examples=QuestionRows(vocabulary=VocabularyConfig(size=8_192), rows=128, length=64),
    objective=MultipleNegativesRankingLoss(similarity="dot", scale=1.0),
    evaluators=(PassageRetrieval(),),
)

SIMCSE = replace(
    EXPERIMENT,
    data=RepeatedTexts(),
    objective=MultipleNegativesRankingLoss(),
    train=replace(EXPERIMENT.train, keep_best=False, monitor="loss"),
)

FINETUNE = replace(
    EXPERIMENT,
    model=StartConfig(),
    family="",
    objective=MultipleNegativesRankingLoss(),
    optimizer=adamw_linear(3e-5),
    train=replace(EXPERIMENT.train, keep_best=False, monitor="loss"),
)

EXPERIMENTS = {
    "pairs": EXPERIMENT, "scored": SCORED, "tokens": TOKENS, "towers": TOWERS, "simcse": SIMCSE, "finetune": FINETUNE,
}  # fmt: skip

if __name__ == "__main__":
    launch(EXPERIMENTS)
