"""Checkpoints at work: text or pictures in, text, classes, boxes or vectors out."""

from flax_transformer.task.use.answer import answer as answer
from flax_transformer.task.use.checkpoint import convert as convert
from flax_transformer.task.use.checkpoint import open_checkpoint as open_checkpoint
from flax_transformer.task.use.classify import Label as Label
from flax_transformer.task.use.classify import Word as Word
from flax_transformer.task.use.classify import classify as classify
from flax_transformer.task.use.classify import label_words as label_words
from flax_transformer.task.use.detect import Found as Found
from flax_transformer.task.use.detect import detect as detect
from flax_transformer.task.use.detect import draw_found as draw_found
from flax_transformer.task.use.fill import Guess as Guess
from flax_transformer.task.use.fill import fill_mask as fill_mask
from flax_transformer.task.use.match import Hit as Hit
from flax_transformer.task.use.match import choose as choose
from flax_transformer.task.use.match import embed_texts as embed_texts
from flax_transformer.task.use.match import search as search
from flax_transformer.task.use.picture import classify_pictures as classify_pictures
from flax_transformer.task.use.picture import embed_pictures as embed_pictures
from flax_transformer.task.use.transcribe import Spoken as Spoken
from flax_transformer.task.use.transcribe import Transcript as Transcript
from flax_transformer.task.use.transcribe import transcribe as transcribe
from flax_transformer.task.use.video import classify_clips as classify_clips
from flax_transformer.task.use.write import Writer as Writer
from flax_transformer.task.use.write import WriterConfig as WriterConfig
