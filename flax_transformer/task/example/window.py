"""Running text as windows of tokens, for language models."""

from dataclasses import dataclass
from functools import partial

from flax_transformer.data import each_once, shuffled
from flax_transformer.data.text import Rows, TokenWindows
from flax_transformer.data.text.plain import PlainText, encode_documents
from flax_transformer.frozen import frozen
from flax_transformer.task.example.opened import Context, Opened, VocabularyConfig, check_rows, stream
from flax_transformer.task.spec import Spec


@dataclass(frozen=True)
class HeldText:
    """Held-out text."""

    windows: TokenWindows
    characters: int


@frozen
class TextWindows:
    """Cut running text into windows, whose every token is to be told from those before it."""

    vocabulary: VocabularyConfig = VocabularyConfig()
    """Of a new model; one that begins with a checkpoint has the checkpoint's."""
    rows: int = 32
    """Windows a batch."""
    length: int = 256
    """Tokens a window."""

    def __post_init__(self):
        check_rows(self.rows, self.length)

    @property
    def positions(self) -> int:
        """How many positions a model must have."""
        return self.length

    def open(self, data: PlainText, context: Context) -> Opened:
        """Read the text, learn or load the tokenizer, cut windows; held out is a `HeldText`."""
        documents = {split: data.read(split) for split in ("train", "validation")}
        tokenizer = context.tokenizer or self.vocabulary.open(context.folder, documents["train"])
        tokens = {split: encode_documents(texts, tokenizer).flat for split, texts in documents.items()}
        for split, texts in documents.items():
            print(f"{split}: {sum(map(len, texts)):,} characters, {len(tokens[split]):,} tokens", flush=True)
        print(f"{tokenizer.vocab_size:,} tokens in the vocabulary", flush=True)
        train = TokenWindows(tokens=tokens["train"], length=self.length)
        held = TokenWindows(tokens=tokens["validation"], length=self.length, stride=self.length)
        collate = Rows(length=self.length, pad=tokenizer.pad or 0)
        validation = partial(each_once, held, rows=context.held_rows(self.rows), collate=collate)
        return Opened(
            tokenizer=tokenizer,
            spec=Spec(uses=("continue",), vocab=tokenizer.vocab_size),
            batches=stream(shuffled(train, seed=context.seed), collate, self.rows),
            validation=validation,
            test=validation,
            held=HeldText(held, sum(map(len, documents["validation"]))),
        )
