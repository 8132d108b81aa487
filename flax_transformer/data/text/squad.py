"""Questions with passages and answers: files in SQuAD's form, or facts made up."""

import random
from pathlib import Path

from flax_transformer.data.record import FORMS, find_split
from flax_transformer.data.split import split_file
from flax_transformer.data.text.annotated import Question, read_questions
from flax_transformer.frozen import frozen

_NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "Jill", "Kai", "Lea")
_THINGS = ("book", "cup", "lamp", "key", "coat", "map", "drum", "ring")
_PLACES = ("kitchen", "garden", "small office", "old barn", "cellar", "school", "red tower", "harbour")


@frozen
class SquadData:
    """Questions of a folder, `{root}/{split name}.json` or `.json.gz`, or CSV, JSON lines, Parquet and Arrow files and
    folders that `datasets` wrote, see `read_questions`; without a folder questions about made-up facts.

    Of those every fourth has no answer in its passage.
    """

    root: str = ""
    """The folder; empty: made-up facts."""
    train: str = "train"
    """Name of the file that is trained on, without its suffix."""
    validation: str = "dev"
    """Name of the file that is validated on."""
    test: str = ""
    """The validation questions again, where this names none."""
    holdout: float = 0.0
    """How much of the training passages is for validation in place of a file, so that `validation` is for the test."""
    columns: tuple[str, ...] = ()
    """Names of the columns of a question, a passage and its answers, where a form has names; by default the usual."""

    def __post_init__(self):
        if not 0 <= self.holdout < 1:
            raise ValueError(f"holdout must be in [0, 1), got {self.holdout}")

    def read(self, split: str) -> list[Question]:
        """Read the `train`, `validation` or `test` questions.

        Raises:
          FileNotFoundError, ValueError: as `read_questions`.
        """
        name = split_file(self, split) or self.validation
        if not self.root:
            return made_up_questions(split)
        if self.holdout and split != "test":
            found = self._file(self.train)
            passages = list(dict.fromkeys(each.context for each in found))
            held = set(passages[: round(self.holdout * len(passages))])
            return [each for each in found if (each.context in held) == (split == "validation")]
        return self._file(name)

    def _file(self, name: str) -> list[Question]:
        paths = [Path(self.root) / f"{name}{suffix}" for suffix in (".json", ".json.gz")]
        path = next((path for path in paths if path.is_file()), None)
        return read_questions(path or find_split(self.root, name, FORMS[1:]) or paths[0], self.columns)


def made_up_questions(split: str, count: int = 10_000) -> list[Question]:
    """Make up questions about who put what where, one of each passage; a tenth as many to validate and to test."""
    draw = random.Random({"train": 0, "validation": 1, "test": 2}[split])
    questions = []
    for number in range(count if split == "train" else count // 50):
        facts = [
            (name, thing, place)
            for name, thing, place in zip(
                draw.sample(_NAMES, 2), draw.sample(_THINGS, 2), draw.sample(_PLACES, 2), strict=True
            )
        ]
        context = " ".join(f"{name} put the {thing} in the {place}." for name, thing, place in facts)
        name, thing, place = draw.choice(facts)
        where = draw.random() < 0.5
        if number % 4 == 3:
            thing = draw.choice([each for each in _THINGS if each not in {fact[1] for fact in facts}])
            answers, starts = (), ()
        else:
            answers = (place if where else name,)
            sentence = context.index(f"{name} put the {thing}")
            starts = (context.index(answers[0], sentence),)
        asked = f"Where is the {thing}?" if where else f"Who put the {thing} away?"
        questions.append(Question(asked, context, answers, starts))
    return questions
