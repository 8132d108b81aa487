"""Equal to diffusers' DiT and schedulers: outputs, tensors out and in again, one step of every sampler."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.decode.diffusion import DDIM, DDPM, Euler
from flax_transformer.hub.diffusers_folder import read_sampler
from flax_transformer.ops.diffusion import NoiseSchedule

torch, diffusers = pytest.importorskip("torch"), pytest.importorskip("diffusers")
pytestmark = [pytest.mark.parity, pytest.mark.proves("dit", "parity", "outputs, tensors, pipelines")]

SIZES = {
    "num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 4, "num_layers": 3, "sample_size": 8,
    "patch_size": 2, "num_embeds_ada_norm": 7,
}  # fmt: skip


def one_embedding(model):
    """Make the embeddings of all blocks the first one's, as in every published checkpoint; nothing is zero."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator) / max(parameter.shape[-1:]) ** 0.5
    first = model.transformer_blocks[0].norm1.emb.state_dict()
    for block in model.transformer_blocks:
        block.norm1.emb.load_state_dict(first)
    return model.eval()


def inputs():
    draw = np.random.default_rng(0)
    return (
        draw.normal(size=(3, 4, 8, 8)).astype(np.float32),
        np.array([0, 250, 999], np.float32),
        np.array([0, 3, 7]),
    )


def theirs(model, images, times, classes):
    with torch.no_grad():
        given = torch.tensor(images), torch.tensor(times), torch.tensor(classes)
        return model(given[0], timestep=given[1], class_labels=given[2]).sample.numpy()


@pytest.mark.parametrize("change", [{}, {"out_channels": 8}, {"attention_bias": False, "activation_fn": "gelu"}])
def test_outputs_and_tensors_are_those_of_diffusers(tmp_path, change):
    model = one_embedding(diffusers.DiTTransformer2DModel(**SIZES, **change))
    model.save_pretrained(tmp_path / "theirs")
    loaded = hub.load(tmp_path / "theirs")
    images, times, classes = inputs()
    found = loaded(pixel_values=images, timestep=times, class_labels=classes.astype(np.int32)).sample
    np.testing.assert_allclose(found, theirs(model, images, times, classes), atol=1e-5)
    hub.save(loaded, tmp_path / "ours")
    again = diffusers.DiTTransformer2DModel.from_pretrained(tmp_path / "ours")
    for (name, one), (_, two) in zip(model.state_dict().items(), again.state_dict().items(), strict=True):
        assert torch.equal(one, two), name


def test_the_transformer_of_a_pipeline_is_read_with_its_scheduler(tmp_path):
    model = one_embedding(diffusers.DiTTransformer2DModel(**SIZES))
    model.save_pretrained(tmp_path / "transformer")
    diffusers.DDIMScheduler(beta_end=0.03, clip_sample=False).save_pretrained(tmp_path / "scheduler")
    names = {str(i): f"class {i}" for i in range(7)}
    index = {"_class_name": "DiTPipeline", "id2label": names, "transformer": ["diffusers", "DiTTransformer2DModel"]}
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    loaded = hub.load(tmp_path)
    assert loaded.config["id2label"] == names
    assert read_sampler(loaded.generation, 10) == DDIM(steps=10, schedule=NoiseSchedule(last=0.03))


def test_blocks_with_embeddings_of_their_own_are_refused(tmp_path):
    diffusers.DiTTransformer2DModel(**SIZES).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"not a copy: transformer_blocks\.1\.norm1\.emb"):
        hub.load(tmp_path)


@pytest.mark.parametrize(("kind", "name"), [("linear", "linear"), ("cosine", "squaredcos_cap_v2")])
def test_schedules_are_those_of_diffusers(kind, name):
    scheduler = diffusers.DDPMScheduler(num_train_timesteps=200, beta_schedule=name)
    found = NoiseSchedule(kind=kind, steps=200).signal()
    np.testing.assert_allclose(found, scheduler.alphas_cumprod.numpy(), rtol=2e-5, atol=1e-7)


def one_step(sampler, number, x, output, noise):
    at = {name: jnp.float32(values[number]) for name, values in sampler.grid().items()}
    return sampler.step(lambda x, times: jnp.asarray(output), jnp.asarray(x), at, jnp.asarray(noise))


@pytest.mark.parametrize("number", [0, 4, 9])
@pytest.mark.parametrize("predicts", ["epsilon", "v_prediction", "sample"])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_step_of_ddim_and_of_ddpm_is_that_of_diffusers(number, predicts, clip):
    x, output, noise = np.random.default_rng(0).normal(size=(3, 2, 4, 4, 1)).astype(np.float32)
    own = {"steps": 10, "predicts": predicts, "clip": clip}
    options = {"prediction_type": predicts, "clip_sample": clip is not None, "timestep_spacing": "trailing"}
    scheduler = diffusers.DDIMScheduler(**options)
    scheduler.set_timesteps(10)
    given = [torch.tensor(each) for each in (output, x, noise)]
    for eta in (0.0, 1.0):
        found = one_step(DDIM(**own, eta=eta), number, x, output, noise)
        wanted = scheduler.step(given[0], scheduler.timesteps[number], given[1], eta=eta, variance_noise=given[2])
        np.testing.assert_allclose(found, wanted.prev_sample.numpy(), atol=2e-4, rtol=1e-4)
    scheduler = diffusers.DDPMScheduler(**options)
    scheduler.set_timesteps(10)
    time = scheduler.timesteps[number]
    mean = scheduler.step(given[0], time, given[1], generator=torch.Generator().manual_seed(0)).prev_sample
    drawn = torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).numpy()
    np.testing.assert_allclose(one_step(DDPM(**own), number, x, output, drawn), mean, atol=2e-4, rtol=1e-4)


def test_a_step_of_euler_is_that_of_diffusers():
    x, output = np.random.default_rng(0).normal(size=(2, 2, 4, 4, 1)).astype(np.float32)
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(sigmas=np.linspace(1, 0, 6)[:-1].tolist())
    sampler = Euler(steps=5)
    np.testing.assert_allclose(scheduler.timesteps.numpy(), 1000 * sampler.grid()["time"], rtol=1e-5)
    for number in range(5):
        wanted = scheduler.step(torch.tensor(output), scheduler.timesteps[number], torch.tensor(x)).prev_sample
        np.testing.assert_allclose(one_step(sampler, number, x, output, x), wanted.numpy(), atol=1e-5)


def test_a_tiny_ddim_run_is_that_of_diffusers(tmp_path):
    model = one_embedding(diffusers.DiTTransformer2DModel(**SIZES, out_channels=8))
    model.save_pretrained(tmp_path)
    loaded, (images, _, classes) = hub.load(tmp_path), inputs()
    scheduler = diffusers.DDIMScheduler(clip_sample=False, timestep_spacing="trailing")
    scheduler.set_timesteps(4)
    x = torch.tensor(images)
    for time in scheduler.timesteps:
        output = theirs(model, x.numpy(), np.full(3, float(time), np.float32), classes)
        x = scheduler.step(torch.tensor(output[:, :4]), time, x).prev_sample
    from flax_transformer.decode.diffusion import denoise

    def predict(x, times):
        return loaded.model.predict(x, times, jnp.asarray(classes))

    found = jax.jit(lambda x: denoise(predict, x, DDIM(steps=4)))(jnp.moveaxis(jnp.asarray(images), 1, -1))
    np.testing.assert_allclose(np.moveaxis(np.asarray(found), -1, 1), x.numpy(), atol=2e-3, rtol=1e-3)
