"""Checkpoints at work: what is written, filled in, classified and answered agrees with the model called by hand."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest
from flax import nnx

from flax_transformer import hub
from flax_transformer.data.text import train_byte_bpe
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.hub.registry import find_architecture
from flax_transformer.task.fill_mask import fill_mask
from flax_transformer.task.question_answering import AnswerConfig, Conversation, answer
from flax_transformer.task.text_classification import classify, label_words
from flax_transformer.task.text_generation import TextGenerator, TextStream, WriterConfig

pytestmark = pytest.mark.slow

TEXTS = ["the dog barks and the cat sleeps", "über die Brücke ☃ gehen", "what does the dog do? the dog barks."] * 3
PLAIN = train_byte_bpe(TEXTS, vocab_size=280)
CAUSAL = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 48, "initializer_range": 0.6}
ENCODER = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 20,
    "max_position_embeddings": 40, "initializer_range": 0.6, "type_vocab_size": 2,
}  # fmt: skip
T5 = {"d_model": 16, "d_kv": 8, "d_ff": 20, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}


def make(architecture, tokenizer, *, seed=0, **fields):
    """Make a random checkpoint of any class."""
    family, known = find_architecture(architecture)
    named = {"model_type": family.model_type, "architectures": [architecture], "vocab_size": tokenizer.vocab_size}
    tokens = {f"{role}_token_id": getattr(tokenizer, role) for role in ("pad", "bos", "eos")}
    config = known.config(Fields.of({**named, **tokens, **fields}))
    model = jax.jit(lambda: config.build(nnx.Rngs(seed)))()
    return hub.Pretrained(model, Fields.of({**named, **tokens, **fields}), tokenizer)


@pytest.fixture(scope="module")
def plain():
    return HubTokenizer.of(PLAIN)


@pytest.fixture(scope="module")
def marked():
    return HubTokenizer.of_encoder(PLAIN.with_mask())


@pytest.fixture(scope="module")
def causal(plain):
    return make("GPT2LMHeadModel", plain, **CAUSAL)


@pytest.fixture(scope="module")
def seq2seq(plain):
    return make("T5ForConditionalGeneration", plain, **T5)


def writer(pretrained, stop=(), seed=0, **settings):
    return TextGenerator(pretrained, WriterConfig(settings=tuple(settings.items()), stop=stop, seed=seed))


def test_a_writer_writes_what_generate_does(causal, plain):
    ids = np.array(plain.encode(["the dog"]))
    tokens = np.asarray(causal.generate(ids, max_new_tokens=12))
    whole = plain.decode(tokens)[0]
    ((text,),) = writer(causal, max_new_tokens=12)(["the dog"])
    assert "the dog" + text == whole
    assert "".join(writer(causal, max_new_tokens=12).stream("the dog")) == text


def test_prompts_of_any_lengths_are_written_on_as_if_alone(causal):
    prompts = ["the dog", "a", "über die Brücke"]
    write = writer(causal, max_new_tokens=9)
    assert write(prompts) == [write([prompt])[0] for prompt in prompts]


def test_an_encoder_decoder_answers(seq2seq, plain):
    tokens = seq2seq.generate(np.array(plain.encode(["the dog"])), max_new_tokens=6)
    write = writer(seq2seq, max_new_tokens=6)
    assert write(["the dog"]) == [plain.decode(tokens)]
    assert "".join(write.stream("the dog")) == plain.decode(tokens)[0]


def test_samples_are_the_seeds(causal):
    settings = {"max_new_tokens": 8, "do_sample": True, "num_return_sequences": 2}
    one, same, other = (writer(causal, seed=seed, **settings)(["the"])[0] for seed in (1, 1, 2))
    assert one == same != other
    assert len(one) == 2


def test_beams_that_the_checkpoint_asks_for_are_searched(seq2seq):
    asks = replace(seq2seq, generation=Fields.of({"num_beams": 3}))
    asked = writer(seq2seq, max_new_tokens=6, num_beams=3)(["the dog"])
    assert writer(asks, max_new_tokens=6)(["the dog"]) == asked


@pytest.mark.parametrize("settings", [{}, {"num_beams": 2}], ids=["greedy", "beam"])
def test_stop_texts_end_and_are_left_out(causal, settings):
    ((full,),) = writer(causal, max_new_tokens=20, **settings)(["the dog"])
    stop = full[5:8]
    ((text,),) = writer(causal, max_new_tokens=20, stop=("never there", stop), **settings)(["the dog"])
    assert text == full[: full.index(stop)]
    if not settings:
        assert "".join(writer(causal, max_new_tokens=20, stop=(stop,)).stream("the dog")) == text


@pytest.mark.parametrize("stop", [(), ("☃ g",), ("cke ☃", "xyz")])
def test_streams_never_print_half_a_character_or_a_stop_text(plain, stop):
    text = "über die Brücke ☃ gehen"
    stream = TextStream(plain, (), (), stop)
    pieces = [stream.push([token]) for token in PLAIN.encode([text])[0]] + [stream.finish()]
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    end = min((text.index(each) for each in stop if each in text), default=len(text))
    assert "".join(pieces) == text[:end]
    assert len([piece for piece in pieces if piece]) > 3


def test_what_never_becomes_a_character_comes_at_the_end(plain):
    half = PLAIN.encode(["☃"])[0][:1]
    stream = TextStream(plain, (), (), ())
    assert stream.push(half) == ""
    assert stream.finish() == "\N{REPLACEMENT CHARACTER}"


def test_end_tokens_end_a_text(plain):
    (ids,) = PLAIN.encode(["the dog"])
    assert TextStream(plain, (), (plain.eos,), ()).whole([*ids, plain.eos, *ids]) == "the dog"


def test_a_conversation_is_what_the_model_reads(causal, plain):
    talk, write = Conversation().add("the dog", "barks"), writer(causal, max_new_tokens=5)
    ids = np.array([talk.ids("and", plain)])
    expected = TextStream(plain, (), (plain.eos,), ()).whole(
        np.asarray(causal.generate(ids, max_new_tokens=5))[0, ids.shape[1] :]
    )
    assert "".join(write.reply(talk, "and")) == expected
    for _ in range(9):
        talk = talk.add("the dog barks", "the cat sleeps")
    assert isinstance("".join(write.reply(talk, "and")), str)  # the oldest turns made room


TURNS = (
    "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }};{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)


def templated(pretrained, template, **generation):
    """Return a checkpoint a chat template, and settings of its own."""
    tokenizer = pretrained.tokenizer
    options = json.loads(tokenizer.files["tokenizer_config.json"]) | {"chat_template": template}
    files = {**tokenizer.files, "tokenizer_config.json": json.dumps(options).encode()}
    return replace(pretrained, tokenizer=replace(tokenizer, files=files), generation=Fields.of(generation))


def test_a_chat_is_read_as_its_template_writes_it_and_ends_with_the_turn(causal, plain):
    talk = Conversation().add("the dog", "barks")
    (ids,) = plain.encode(["<u>the dog;<a>barks;<u>and;<a>"])
    tokens = np.asarray(causal.generate(np.array([ids]), max_new_tokens=6))[0, len(ids) :]
    whole = "".join(writer(templated(causal, TURNS), max_new_tokens=6).reply(talk, "and"))
    assert whole == TextStream(plain, ids, (plain.eos,), ()).whole(tokens)
    end = int(next(token for i, token in enumerate(tokens) if i > 0 and token not in tokens[:i]))
    ended = templated(causal, TURNS, eos_token_id=[plain.eos, end])
    said = "".join(writer(ended, max_new_tokens=6).reply(talk, "and"))
    assert said == TextStream(plain, ids, (end,), ()).whole(tokens)
    assert len(said) < len(whole)


def test_a_long_chat_forgets_its_oldest_turns(causal, plain):
    talk = Conversation()
    for i in range(9):
        talk = talk.add(f"q{i}", "w")
    chat = templated(causal, TURNS).tokenizer
    text = plain.decode(talk.ids("and", chat, 40))
    assert text.startswith("<u>q")
    assert text.endswith("<a>w;<u>and;<a>")
    assert not text.startswith("<u>q0")
    with pytest.raises(ValueError, match="the message must have at most 5 tokens, end mark included, got"):
        talk.ids("and", chat, 5)


def test_a_template_may_refuse_a_conversation(causal):
    refusing = templated(causal, "{{ raise_exception('no users') }}")
    with pytest.raises(ValueError, match=r"the chat template of .* refuses this conversation: no users"):
        writer(refusing).reply(Conversation(), "and")


@pytest.mark.parametrize(
    ("prompts", "settings", "message"),
    [
        ([""], {}, "a prompt must not be empty"),
        (["a", ""], {}, "a prompt must not be empty, number 2 is"),
        (["a "] * 0, {}, "a prompt must not be empty"),
        (["q w " * 20], {}, "a prompt must fit into the 48 positions, got 80 tokens"),
        (["q w " * 10], {"max_new_tokens": 50}, "after a prompt of 40 tokens 9 more fit into the 48 positions, got 50"),
    ],
)
def test_prompts_that_cannot_be_written_on(causal, prompts, settings, message):
    with pytest.raises(ValueError, match=message):
        writer(causal, **settings)(prompts)


def test_without_a_number_as_many_tokens_as_fit(causal):
    (row,) = writer(causal)._inputs(["q w " * 10])[0]
    assert writer(causal)._settings(len(row)) == {"max_new_tokens": 9}
    assert writer(causal)(["q w " * 10])


def test_masks_are_filled_with_the_likeliest_tokens(marked):
    pretrained = make("BertForMaskedLM", marked, **ENCODER)
    text = "the <mask> barks and <mask>"
    guesses = fill_mask(pretrained, text, top=3)
    inputs = marked([text])
    places = np.flatnonzero(inputs["input_ids"][0] == marked.mask)
    shares = np.asarray(jax.nn.softmax(pretrained(**inputs).logits[0]))[places]
    assert len(guesses) == len(places) == 2
    for share, mask in zip(shares, guesses, strict=True):
        np.testing.assert_allclose([guess.probability for guess in mask], np.sort(share)[::-1][:3], rtol=1e-5)
        for guess in mask:
            assert "<s>" not in guess.text.replace(guess.token, "")
            assert guess.text.count("<mask>") >= 1  # the other one
    with pytest.raises(ValueError, match="the text must have the mask token <mask>, got 'the dog'"):
        fill_mask(pretrained, "the dog")


def test_a_tokenizer_without_mask_is_named(plain):
    with pytest.raises(ValueError, match="takes a mask token, the checkpoint's tokenizer has none"):
        fill_mask(make("BertForMaskedLM", plain, **ENCODER), "the <mask>")


def test_classes_have_names_and_probabilities(marked):
    names = {"0": "bad", "1": "so-so", "2": "good"}
    pretrained = make("BertForSequenceClassification", marked, id2label=names, **ENCODER)
    texts = ["the dog", "a cat sleeps", "über"]
    results = classify(pretrained, texts)
    for text, labels in zip(texts, results, strict=True):
        share = np.asarray(jax.nn.softmax(pretrained(**marked([text])).logits[0]))
        assert [label.name for label in labels] == [names[str(i)] for i in np.argsort(-share)]
        np.testing.assert_allclose([label.probability for label in labels], np.sort(share)[::-1], rtol=2e-5)
    pair = classify(pretrained, ["the dog"], ["barks"])[0]
    assert {label.probability for label in pair} != {label.probability for label in results[0]}
    with pytest.raises(ValueError, match="a text to classify must not be empty"):
        classify(pretrained, ["the dog", " "])


def test_classes_that_do_not_exclude_each_other(marked):
    pretrained = make(
        "BertForSequenceClassification", marked, num_labels=3, problem_type="multi_label_classification", **ENCODER
    )
    (labels,) = classify(pretrained, ["the dog"])
    logits = np.asarray(pretrained(**marked(["the dog"])).logits[0])
    np.testing.assert_allclose(sorted(x.probability for x in labels), np.sort(1 / (1 + np.exp(-logits))), rtol=1e-5)
    assert {label.name for label in labels} == {"LABEL_0", "LABEL_1", "LABEL_2"}


@pytest.mark.parametrize(
    ("kind", "labels", "expected"),
    [
        (None, 1, lambda x: 1 / (1 + np.exp(-x))),
        ("single_label_classification", 1, lambda x: 1 / (1 + np.exp(-x))),
        ("regression", 1, lambda x: x),
        ("regression", 3, lambda x: x),
        ("single_label_classification", 3, jax.nn.softmax),
    ],
)
def test_a_problem_says_what_logits_mean(marked, kind, labels, expected):
    pretrained = make("BertForSequenceClassification", marked, num_labels=labels, problem_type=kind, **ENCODER)
    (found,) = classify(pretrained, ["the dog"])
    logits = np.asarray(pretrained(**marked(["the dog"])).logits[0])
    np.testing.assert_allclose(sorted(x.probability for x in found), np.sort(expected(logits)), rtol=1e-5)


def test_words_have_shares_whatever_the_problem(marked):
    several = {"problem_type": "multi_label_classification", "num_labels": 4}
    pretrained = make("BertForTokenClassification", marked, **several, **ENCODER)
    (word,) = label_words(pretrained, "the")
    share = np.asarray(jax.nn.softmax(pretrained(**marked(["the"])).logits[0, 1]))
    assert word.probability == pytest.approx(float(share.max()), rel=1e-5)


def test_words_have_the_class_of_their_first_piece(marked):
    pretrained = make("BertForTokenClassification", marked, num_labels=4, **ENCODER)
    text = "über die Brücke, the dog"
    words = label_words(pretrained, text)
    assert [word.text for word in words] == ["über", "die", "Brücke", ",", "the", "dog"]
    best = np.asarray(pretrained(**marked([text])).logits[0]).argmax(-1)
    assert words[0].label == f"LABEL_{best[1]}"
    assert all(text[word.start : word.end] == word.text for word in words)


@pytest.mark.parametrize("threshold", [None, 0.0])
def test_answers_are_found_in_passages_of_any_length(marked, threshold):
    pretrained = make("BertForQuestionAnswering", marked, **ENCODER)
    context = " ".join(TEXTS)
    answers = answer(pretrained, "what barks?", context, AnswerConfig(n_best=4, threshold=threshold))
    assert 4 <= len(answers) <= 5
    assert sum(found.probability for found in answers) == pytest.approx(1)
    assert all(context[found.start : found.end] == found.text for found in answers)
    assert ("" in {found.text for found in answers}) == (threshold is not None)
    short = "the dog barks"
    inputs = marked(["what barks?"], [short])
    output = pretrained(**inputs)
    inside = np.flatnonzero(inputs["token_type_ids"][0])[:-1]
    start, end = np.asarray(output.start_logits[0])[inside], np.asarray(output.end_logits[0])[inside]
    best = max(start[i] + end[j] for i in range(len(start)) for j in range(i, len(start)))
    assert answer(pretrained, "what barks?", short)[0].score == pytest.approx(float(best), rel=1e-5)


def test_a_checkpoint_of_another_kind_is_named(causal, marked):
    encoder = make("BertForMaskedLM", marked, **ENCODER)
    with pytest.raises(ValueError, match="a BertForMaskedLM generates no text: it is no language model"):
        writer(encoder)
    for use, name in (
        (
            lambda: fill_mask(causal, "the"),
            "to fill in masks takes .* got a GPT2LMHeadModel, which can write on from a prompt",
        ),
        (lambda: classify(causal, ["the"]), "to classify takes a checkpoint that can, got a GPT2LM"),
        (lambda: label_words(encoder, "the"), "to label words takes .* got a BertForMaskedLM, which can fill in masks"),
        (lambda: answer(encoder, "the", "dog"), "to answer questions takes .* got a BertForMaskedLM"),
        (lambda: writer(hub.Pretrained(causal.model, causal.config)), "text needs a tokenizer"),
    ):
        with pytest.raises(ValueError, match=name):
            use()
