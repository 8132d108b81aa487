"""Questions of a conversation, rewritten so that each can be understood alone (Elgohary et al. 2019,
https://aclanthology.org/D19-1605)."""

from flax_transformer.hub import Pretrained
from flax_transformer.task.checkpoint import tokenizer_of
from flax_transformer.task.question_answering import Conversation
from flax_transformer.task.text_generation import TextGenerator, WriterConfig

BETWEEN = " ||| "
"""Between what was said, as encoder-decoders that were trained on CANARD read it."""
INSTRUCTION = "Write the last question so that it can be understood without the others. Write nothing else.\n\n{said}"
CONTINUED = "{said}\nThe last question, so that it can be understood without the others: "
"""What a decoder-only model without a chat template goes on from."""


def rewrite_question(
    pretrained: Pretrained, question: str, talk: Conversation = Conversation(), new_tokens: int = 64
) -> str:
    """Rewrite a question by a model that writes, from the turns before it; one that begins a conversation stays.

    An encoder-decoder reads turns and question with `BETWEEN` between them, a decoder-only model an instruction. Where
    it writes nothing, earlier turns are put before the question as `Conversation.question` does.

    Raises:
      ValueError: a checkpoint that does not write, or new_tokens below 1.
    """
    if new_tokens < 1:
        raise ValueError(f"new_tokens must be at least 1, got {new_tokens}")
    writer = TextGenerator(pretrained, WriterConfig(settings=(("max_new_tokens", new_tokens),), stop=("\n",)))
    if not talk.carried:
        return question
    said = [part for turn in talk.carried for part in turn if part]
    if not writer.continues:
        ((written,),) = writer([BETWEEN.join([*said, question])])
    elif tokenizer_of(pretrained).chat_templates:
        written = "".join(writer.reply(Conversation(), INSTRUCTION.format(said="\n".join([*said, question]))))
    else:
        ((written,),) = writer([CONTINUED.format(said="\n".join([*said, question]))])
    return " ".join(written.split()) or talk.question(question)
