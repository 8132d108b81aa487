"""What compilers say of training steps on TPUs and GPUs that are not here: the tables of docs/scaling.md.

    python benchmarks/scaling.py [SECTION …] [--init FOLDER]

Sections are `decoder`, `transformer`, `families`, `vision`, `multimodal`, `experiments` and `gpu`; all by default. Each
row is one `plan`, kept for the next call with the same code, so a second call only prints. `--init` names a checkpoint
of a decoder-only language model, for the experiment that adapts one. Compiles about 80 programs, half a minute each on
one core. Rows of `gpu`, which are estimates, need JAX's plug-in for CUDA, the others libtpu.
"""

import argparse
import sys
from collections.abc import Iterator

from flax_transformer.bench.chip import GIB
from flax_transformer.bench.compile_ahead import Case, CompilerError
from flax_transformer.bench.plan import CompiledPlan, plan
from flax_transformer.bench.report import amount, seconds
from flax_transformer.parallel import AXES, MeshConfig

SMALL = ("v5e:2x2", "v5p:2x2x1")
FAMILIES = (
    "gpt2", "bert_base_uncased", "roberta_base", "distilbert_base_uncased", "t5_small", "bart_base", "marian",
    "qwen2_5_0_5b", "qwen3_0_6b", "llama3_2_1b", "mistral_7b",
)  # fmt: skip
EXPERIMENTS = (
    "language_model.py:tiny", "pretrain_bert.py:new", "classify_text.py:new", "text_to_text.py", "denoise.py",
    "translate_numbers.py", "translate_text.py:transformer", "forkme.py",
)  # fmt: skip
DECODER = (
    ("v5p:2x2x4", {"fsdp": 16}, 16), ("v5p:4x4x4", {"fsdp": 64}, 64), ("v5p:4x4x4", {"data": 4, "fsdp": 16}, 64),
    ("v5p:4x8x8", {"fsdp": 256}, 256), ("v5p:4x8x8", {"data": 16, "fsdp": 16}, 256), ("v5p:8x8x8", {"fsdp": 512}, 512),
    ("v5p:8x8x8", {"data": 32, "fsdp": 16}, 512), ("v5p:4x4x4", {"fsdp": 16, "sequence": 4}, 16),
    ("v5p:4x4x4", {"fsdp": 16, "pipeline": 4}, 64), ("v5p:4x4x4", {"data": 16, "pipeline": 4}, 64),
)  # fmt: skip
TRANSFORMER = (
    ("transformer_base", "v5e:4x4", {"data": 16}), ("transformer_base", "v5e:4x4", {"data": 2, "fsdp": 8}),
    ("transformer_base", "v5e:4x4", {"data": 4, "pipeline": 2, "tensor": 2}),
    ("transformer_base", "v5p:4x4x4", {"data": 4, "fsdp": 16}),
    ("transformer_big", "v5p:4x4x4", {"data": 4, "fsdp": 16}),
    ("transformer_big", "v5e:4x4", {"fsdp": 16}), ("transformer_big", "v4:2x2x4", {"fsdp": 16}),
    ("transformer_big", "v5p:2x2x4", {"fsdp": 16}), ("transformer_big", "v6e:4x4", {"fsdp": 16}),
    ("transformer_big", "tpu7x:2x2x4", {"data": 2, "fsdp": 16}),
)  # fmt: skip
VISION = (
    ("vit_base_patch16", {"data": 16}, 1024, "none"), ("vit_huge_patch14", {"fsdp": 16}, 512, "full"),
    ("swin_base", {"data": 16}, 512, "none"), ("detr_resnet50", {"data": 16}, 64, "none"),
)  # fmt: skip
MULTIMODAL = (
    ("clip_vit_large_patch14", "v5e:8x8", {"data": 64}, 4096, "full"),
    ("vivit_base", "v5e:4x4", {"data": 16}, 64, "full"), ("whisper_small", "v5e:4x4", {"data": 16}, 256, "full"),
)  # fmt: skip
GPU = (
    ("gpt2", "h100:8", {"fsdp": 8}, {"batch": 64, "length": 1024, "dropout": 0.0}),
    ("bert_base_uncased", "h100:8", {"data": 8}, {"batch": 256, "length": 128, "dropout": 0.0}),
    ("t5_base", "h100:8", {"data": 8}, {"batch": 64, "length": 128, "dropout": 0.0}),
    ("vit_base_patch16", "h100:8", {"data": 8}, {"batch": 512}),
    ("llama2_7b", "h100:8", {"fsdp": 8}, {"batch": 8, "length": 4096, "remat": "full"}),
    ("llama2_7b", "h100:16", {"data": 2, "fsdp": 8}, {"batch": 16, "length": 4096, "remat": "full"}),
)  # fmt: skip
HEAD = (
    "target", "slice, mesh", "step", "memory a device", "sent a device", "times the usual", "arithmetic", "links",
    "step, at the least", "items a second, at the most", "compiled in",
)  # fmt: skip


def mesh(**sizes: int) -> MeshConfig:
    """Make a mesh of these axes alone."""
    return MeshConfig(**{"data": 1, **sizes})


def cases(section: str, init: str | None) -> Iterator[Case]:
    """List the rows of a section."""
    if section == "decoder":
        for topology, sizes, rows in DECODER:
            size = {"batch": rows, "length": 4096, "dtype": "bfloat16", "remat": "full"}
            yield Case(target="llama2_7b", topology=topology, mesh=mesh(**sizes), size=size)
    elif section == "transformer":
        for target, topology, sizes in TRANSFORMER:
            size = {"batch": 1024 if topology == "v5p:4x4x4" else 256, "length": 128, "dtype": "bfloat16"}
            yield Case(target=target, topology=topology, mesh=mesh(**sizes), size=size)
        for topology in ("v5e:4x4", "v5p:2x2x1"):
            yield Case(target="experiments/wmt14.py:base", topology=topology)
    elif section == "families":
        size = {"batch": 32, "length": 128, "dtype": "bfloat16"}
        for target in FAMILIES:
            for topology in SMALL:
                yield Case(target=target, topology=topology, mesh=mesh(data=4), size=size)
        for target, topology, parts in (
            ("llama3_2_1b", "v5e:2x2", 4), ("mistral_7b", "v5e:4x4", 16), ("mistral_7b", "v5p:2x2x1", 4)
        ):  # fmt: skip
            yield Case(target=target, topology=topology, mesh=mesh(fsdp=parts), size=size)
    elif section == "vision":
        for target, sizes, rows, remat in VISION:
            for topology in ("v5e:4x4", "v5p:2x2x4"):
                size = {"batch": rows, "dtype": "bfloat16", "remat": remat}
                yield Case(target=target, topology=topology, mesh=mesh(**sizes), size=size)
    elif section == "multimodal":
        for target, topology, sizes, rows, remat in MULTIMODAL:
            size = {"batch": rows, "dtype": "bfloat16", "remat": remat}
            yield Case(target=target, topology=topology, mesh=mesh(**sizes), size=size)
    elif section == "gpu":
        for target, topology, sizes, size in GPU:
            yield Case(target=target, topology=topology, mesh=mesh(**sizes), size={**size, "dtype": "bfloat16"})
    else:
        for topology in SMALL:
            for name in EXPERIMENTS:
                yield Case(target=f"experiments/{name}", topology=topology)
            if init:
                yield Case(target="experiments/finetune_lora.py", topology=topology, options=("--init", init))


def row(case: Case) -> tuple[str, ...]:
    """Plan one case and spell what came out."""
    sizes = {} if case.mesh is None else {axis: getattr(case.mesh, axis) for axis in AXES}
    split = " × ".join(f"{axis} {size}" for axis, size in sizes.items() if size != 1) or "its own mesh"
    head = f"`{case.target}`", f"{case.topology}, {split}"
    try:
        found = plan(case)
    except (ValueError, CompilerError) as error:
        return *head, str(error).splitlines()[0], *["–"] * (len(HEAD) - 3)
    known, bounds = found.compiled, found.bounds
    shape = ", ".join([known.dtype, *(f"{name} {size:,}" for name, size in known.shape.items() if name != "vocab")])
    if not known.fits:
        much = f"{known.used / GIB:.2f} of {known.limit / GIB:.2f} GiB, too much"
        return *head, shape, much, *["–"] * (len(HEAD) - 5), seconds(known.seconds)
    sent, usual = sum(each["bytes"] * each["times"] for each in known.collectives), sum(known.usual.values())
    return (
        *head, shape, f"{known.used / GIB:.2f} GiB", amount(sent, "B"), of_usual(found, sent, usual),
        seconds(bounds.compute), seconds(bounds.links),
        f"{seconds(bounds.step)}, {bounds.by}",
        f"{found.items_per_second:,.0f}" if found.items_per_second else "–", seconds(known.seconds),
    )  # fmt: skip


def of_usual(found: CompiledPlan, sent: int, usual: int) -> str:
    """Compare with `minimum_bytes` where kernels are gathered twice, which says nothing of some axes."""
    silent = found.case.mesh and any(getattr(found.case.mesh, axis) != 1 for axis in ("sequence", "pipeline"))
    return f"{sent / usual:.3f}" if usual and not silent else "–"


def main() -> None:
    """Print the sections asked for."""
    sections = ("decoder", "transformer", "families", "vision", "multimodal", "experiments", "gpu")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(sections))
    parser.add_argument("--init")
    options = parser.parse_args()
    if unknown := set(options.sections) - set(sections):
        parser.error(f"sections are {', '.join(sections)}, got {', '.join(sorted(unknown))}")
    for section in options.sections or sections:
        print(f"\n{section}\n\n| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}", flush=True)
        for case in cases(section, options.init):
            print(f"| {' | '.join(row(case))} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
