"""Adapters held by name: one program for all choices, in every family and transform, on meshes; what is refused."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake_devices import on_eight

from flax_transformer import hub
from flax_transformer.bench import Compilations
from flax_transformer.compress import Quantization, quantize_model
from flax_transformer.hub.adapter_target import targets_of
from flax_transformer.hub.generate import stream_tokens
from flax_transformer.nn.adapted import choose_adapter
from flax_transformer.train import LoraConfig, init_lora
from flax_transformer.train.lora import LowRank

HERE = Path(__file__).parent
GOLDEN = sorted((HERE / "golden").iterdir())
IDS = np.random.default_rng(1).integers(4, 30, (3, 6))

pytestmark = pytest.mark.proves("checkpoints", "several adapters held by name: one program, every family, meshes")


def factors(plain, pattern, rank=2, seed=0, size=0.3):
    lora = init_lora(plain.model, LoraConfig(rank=rank, pattern=pattern), jax.random.key(seed))
    random = np.random.default_rng(seed)
    draw = lambda leaf: jnp.asarray(size * random.normal(size=leaf.shape), jnp.float32)  # noqa: E731
    return {name: LowRank(pair.a, draw(pair.b), pair.scale) for name, pair in lora.items()}


def held_of(name):
    plain = hub.load(HERE / "golden" / name)
    adapters = {"one": factors(plain, r"(query|up)\.kernel$"), "two": factors(plain, r"(query|value)\.kernel$", 3, 1)}
    return plain, hub.hold_adapters(plain, adapters)


@pytest.fixture(scope="module")
def gpt2():
    return held_of("gpt2")


def close(one, other):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * float(np.abs(other).max()))


@pytest.mark.rotates
def test_one_program_serves_all_choices(gpt2):
    _, held = gpt2
    held.choose("one")(input_ids=IDS), held.choose(["one", None, "two"])(input_ids=IDS)
    with Compilations() as fresh:
        for name in ("two", None, "one"):
            held.choose(name)(input_ids=IDS)
        for names in (["two"] * 3, [None] * 3, ["two", "one", "one"]):
            held.choose(names)(input_ids=IDS)
        held.choose("two").choose(["one", None, "two"])(input_ids=IDS)
    assert fresh.count == 0


@pytest.mark.rotates
def test_one_program_generates_with_all_choices(gpt2):
    _, held = gpt2
    options = {"max_new_tokens": 5, "min_new_tokens": 5, "num_beams": 2}
    held.choose(["one", None, "two"]).generate(IDS, **options)
    with Compilations() as fresh:
        tokens = held.choose(["two", "one", None]).generate(IDS, **options)
    assert fresh.count == 0
    again = [held.choose(name).generate(IDS[row : row + 1], **options) for row, name in enumerate(["two", "one", None])]
    np.testing.assert_array_equal(tokens, np.concatenate(again))
    chunks = stream_tokens(held.choose(["two", "one", None]), IDS, max_new_tokens=5, min_new_tokens=5)
    whole = held.choose(["two", "one", None]).generate(IDS, max_new_tokens=5, min_new_tokens=5)
    np.testing.assert_array_equal(np.concatenate([*chunks], axis=1), whole[:, 6:])


@pytest.mark.rotates
@pytest.mark.parametrize("folder", GOLDEN, ids=lambda folder: folder.name)
def test_rows_of_every_family_are_as_alone(folder):
    plain = hub.load(folder)
    paths = [path for path, each in targets_of(plain).items() if len(each.entry.shape) == 2 and not each.is_table]
    paths = [path for path in paths if path.endswith(".kernel")]
    if not paths:
        pytest.skip("has no linear layers")
    pattern = "^(" + "|".join(path.replace(".", r"\.") for path in paths) + ")$"
    lora = {"one": factors(plain, pattern, size=0.03), "two": factors(plain, pattern, 3, 1, 0.03)}
    held = hub.hold_adapters(plain, lora)
    with np.load(folder / "expected.npz") as arrays:
        given = {name.removeprefix("in_"): value for name, value in arrays.items() if name.startswith("in_")}
    rows = next(iter(given.values())).shape[0]
    if any(value.shape[0] != rows for value in given.values()):
        pytest.skip("has inputs of different numbers of rows")
    names = [[None, "two", "one"][row % 3] for row in range(rows)]
    found = held.choose(names)(**given)
    alone = {name: held.choose(name)(**given) for name in set(names)}
    fields = [name for name in found if np.shape(found[name])[:1] == (rows,) and not name.startswith("logits_per")]
    assert fields
    for field in fields:
        for row, name in enumerate(names):
            one = np.asarray(alone[name][field])[row]
            scale = np.abs(one[np.isfinite(one)]).max(initial=0)
            np.testing.assert_allclose(np.asarray(found[field])[row], one, rtol=1e-4, atol=1e-5 * scale)
    base = plain(**given)
    np.testing.assert_array_equal(np.asarray(held(**given)[fields[0]]), np.asarray(base[fields[0]]))
    assert rows < 2 or np.abs(np.asarray(found[fields[0]])[1] - np.asarray(base[fields[0]])[1]).max() > 1e-5


def test_vmap_over_rows_and_choices_is_the_batch(gpt2):
    _, held = gpt2
    choice = np.array([1, -1, 0])

    def one(choice, ids):
        return choose_adapter(held.model, choice).hidden_states(tokens=ids)

    rows = choose_adapter(held.model, choice).hidden_states(tokens=jnp.asarray(IDS))
    mapped = jax.jit(jax.vmap(one))(choice, jnp.asarray(IDS))
    for a, b in zip(jax.tree.leaves(mapped), jax.tree.leaves(rows), strict=True):
        close(a, b)


def test_a_choice_is_data_inside_of_jit(gpt2):
    _, held = gpt2
    run = jax.jit(lambda held, ids: held(input_ids=ids).logits)
    for names in (["one", None, "two"], ["two", "two", "one"]):
        close(run(held.choose(names), IDS), held.choose(names)(input_ids=IDS).logits)
    assert run._cache_size() == 1


@pytest.mark.rotates
def test_kernels_of_few_bits_and_half_precision_hold_adapters(gpt2):
    plain, _ = gpt2
    lora = {"one": factors(plain, r"(query|up)\.kernel$")}
    few = hub.Pretrained(quantize_model(plain.model, Quantization()), plain.config)
    held, whole = hub.hold_adapters(few, lora), few(input_ids=IDS).logits
    np.testing.assert_array_equal(held(input_ids=IDS).logits, whole)
    close(held.choose("one")(input_ids=IDS).logits, held.merged("one")(input_ids=IDS).logits)
    half = hub.load(HERE / "golden" / "gpt2", dtype="bfloat16")
    found = hub.hold_adapters(half, lora).choose("one")(input_ids=IDS).logits
    exact = hub.hold_adapters(plain, lora).choose("one")(input_ids=IDS).logits
    np.testing.assert_allclose(found, exact, rtol=0.1, atol=0.05 * np.abs(exact).max())


def test_folders_are_held_by_name_and_merged_when_asked(gpt2, tmp_path):
    plain, _ = gpt2
    lora = factors(plain, r"(query|up)\.kernel$")
    hub.save_adapter(lora, plain, tmp_path / "one", base=HERE / "golden" / "gpt2")
    held = hub.load(HERE / "golden" / "gpt2", adapters={"one": tmp_path / "one"})
    assert held.adapters == ("one",)
    assert "adapters: one" in repr(held)
    merged = held.merged("one")
    assert jax.tree.structure(merged.model) == jax.tree.structure(plain.model)
    assert merged.adapters == ()
    hub.save(merged, tmp_path / "merged")
    close(hub.load(tmp_path / "merged")(input_ids=IDS).logits, held.choose("one")(input_ids=IDS).logits)
    with pytest.raises(ValueError, match=r"saved with one of them in it, or none: .*merged\('one'\)"):
        hub.save(held, tmp_path / "held")


def test_what_cannot_be_chosen_says_so(gpt2):
    _, held = gpt2
    for names in ("three", ["one", "three", None]):
        with pytest.raises(ValueError, match="adapters are one, two, got 'three'"):
            held.choose(names)
    with pytest.raises(ValueError, match="adapters are none, got 'one'"):
        gpt2[0].choose("one")
    with pytest.raises(ValueError, match="for each row, or one for all, got an empty list"):
        held.choose([])
    with pytest.raises(ValueError, match="as many rows as have chosen adapters must be given, 2, got 3"):
        held.choose(["one", "two"])(input_ids=IDS)
    with pytest.raises(ValueError, match="as many rows as have chosen adapters must be given, 2, got 3"):
        held.choose(["one", "two"]).generate(IDS, max_new_tokens=2)
    with pytest.raises(AttributeError, match=r"no 'set_adapter'; pretrained\.choose\(name\)"):
        held.set_adapter("one")


@pytest.mark.rotates
def test_recordings_have_one_adapter_for_all():
    plain = hub.load(HERE / "golden" / "whisper")
    held = hub.hold_adapters(plain, {"one": factors(plain, r"(query|up)\.kernel$")})
    with np.load(HERE / "golden" / "whisper" / "expected.npz") as arrays:
        features = arrays["in_input_features"]
    one = held.choose("one").generate(features, max_new_tokens=3)
    np.testing.assert_array_equal(one, held.merged("one").generate(features, max_new_tokens=3))
    with pytest.raises(ValueError, match="with one adapter for all of them, got one for each of 2"):
        held.choose(["one", None]).generate(features, max_new_tokens=3)


def test_what_cannot_be_held_says_so(gpt2, tmp_path):
    plain, held = gpt2
    lora = factors(plain, r"query\.kernel$")
    (path, pair), *_ = lora.items()
    for adapters, message in (
        ({}, "adapters are held by their names, got none"),
        ({"": lora}, "adapters are held by their names, got ''"),
        ({"one": {path: LowRank(pair.a[..., :1], pair.b, 1.0)}}, "adapter 'one': the low-rank factors must fit"),
        ({"one": {"trunk.up.kernel": pair}}, r"adapter 'one': .*trunk\.up\.kernel, which the model lacks"),
        (
            {"one": factors(plain, r"token\.embedding$")},
            r"linear layers alone, one changes embedding\.token",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            hub.hold_adapters(plain, adapters)
    with pytest.raises(ValueError, match="holds adapters once, this one has one, two"):
        hub.hold_adapters(held, {"three": lora})
    other = hub.load(HERE / "golden" / "llama")
    hub.save_adapter(factors(other, r"query\.kernel$"), other, tmp_path)
    with pytest.raises(ValueError, match=r"adapter 'one': .* is an adapter of another model"):
        hub.hold_adapters(plain, {"one": tmp_path})


@pytest.mark.slow
def test_meshes_compute_what_one_device_does(tmp_path):
    plain = hub.load(HERE / "golden" / "gpt2")
    hub.save(plain, tmp_path / "base")
    for seed, name in enumerate(("one", "two")):
        hub.save_adapter(factors(plain, r"(query|value|out|up|down)\.kernel$", 2 + seed, seed), plain, tmp_path / name)
    errors = on_eight(HERE / "eight_adapters.py", tmp_path)[0]
    assert "on a mesh with pipeline a choice is for all rows" in errors.pop("refused")
    assert len(errors) == 4
    assert max(error for each in errors.values() for error in each) <= 1e-5, errors
