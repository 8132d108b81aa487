"""How many images a second the pipeline gives, alone: each of its parts on one core, and the whole with its threads.

    python benchmarks/images.py [--rounds 20] [--json FILE]

Small images are 8,192 of 32², held in memory; large ones are 256 JPEG files of 500 × 375, about 60 kB each, made of
noise of several sizes, seen at 224². Parts are single calls with 128 small or 32 large images; a whole is the stream
that training reads. `images_per_second` is by the clock, the median over rounds; `images_per_cpu_second` is by the time
that the process had a core, so that it tells of a busy machine too.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import PIL.Image
from results import arguments, write

from flax_transformer.data import shuffled
from flax_transformer.data.image import (
    DecodedRows,
    Draw,
    Erase,
    Flip,
    ImageRows,
    ImageStream,
    InMemoryImages,
    InMemoryRows,
    MixupCutmix,
    Normalise,
    RandAugment,
    RandomResizedCrop,
    Resize,
    ShiftFlip,
    decode_image,
    labelled_images,
    open_images,
)

NORMALISE = Normalise(mean=(0.5,) * 3, std=(0.25,) * 3)
THREADS = (1, 2, 4)


def measure(call: Callable[[], object], images: int, rounds: int) -> dict:
    call()
    walls, cores = [], []
    for _ in range(rounds):
        wall, core = time.perf_counter(), time.process_time()
        call()
        walls.append(time.perf_counter() - wall)
        cores.append(time.process_time() - core)
    return {
        "images_per_second": images / statistics.median(walls),
        "images_per_cpu_second": images / statistics.mean(cores),
    }


def small(rounds: int) -> dict[str, dict]:
    draw = np.random.default_rng(0)
    pixels = draw.integers(0, 256, (8192, 32, 32, 3), np.uint8)
    pictures = labelled_images(InMemoryImages(pixels), draw.integers(0, 10, 8192).astype(np.int32))
    rows = InMemoryRows(pictures, 0)
    numbers = np.arange(128)
    batch = rows.read(numbers)
    floats = NORMALISE(batch)
    given = {"shift_flip": (ShiftFlip(), batch), "normalise": (NORMALISE, batch), "erase": (Erase(), floats),
             "mix": (MixupCutmix(classes=10), floats)}  # fmt: skip
    calls = {
        name: lambda change=change, part=part: change(part, Draw(np.random.default_rng(0), 128, numbers))
        for name, (change, part) in given.items()
    }
    found = {"read": measure(lambda: rows.read(numbers), 128, rounds)}
    found |= {name: measure(call, 128, rounds) for name, call in calls.items()}
    strong = RandAugment(deviation=0.5, share=0.5)
    found["rand_augment"] = measure(lambda: [strong(pictures[i], draw) for i in range(128)], 128, rounds)
    for threads in THREADS:
        for name, more in (("plain", ()), ("all", (Erase(), MixupCutmix(classes=10)))):
            stream = ImageStream(rows, ShiftFlip(), NORMALISE, *more, rows=128, seed=0, threads=threads)
            found[f"stream_{name}_{threads}"] = whole(stream, 128, 50, rounds)
    return found


def large(folder: Path, rounds: int) -> dict[str, dict]:
    draw = np.random.default_rng(0)
    for number in range(256):
        image = sum(np.kron(draw.normal(size=(375 // s + 1, 500 // s + 1, 3)), np.ones((s, s, 1)))[:375, :500]
                    for s in (2, 16, 128))  # fmt: skip
        path = folder / f"class {number % 2}" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        PIL.Image.fromarray(np.clip(128 + 30 * image, 0, 255).astype(np.uint8)).save(path, quality=85)
    train = open_images(folder).splits["train"]
    names = [train["name"][number] for number in range(32)]
    decoded = [train[number] for number in range(32)]
    changes = {"resize": Resize(size=224), "random_resized_crop": RandomResizedCrop(size=224),
               "rand_augment": RandAugment(deviation=0.5, share=0.5)}  # fmt: skip
    found = {"decode": measure(lambda: [decode_image(name) for name in names], 32, rounds)}
    for name, change in changes.items():
        items = [Resize(size=(224, 224))(each, draw) for each in decoded] if name == "rand_augment" else decoded
        found[name] = measure(lambda change=change, items=items: [change(each, draw) for each in items], 32, rounds)
    examples = shuffled(train, RandomResizedCrop(size=224), Flip(), seed=0)
    for threads in THREADS:
        stream = ImageStream(DecodedRows(examples, ImageRows()), NORMALISE, rows=32, seed=0, threads=threads)
        found[f"stream_{threads}"] = whole(stream, 32, 4, max(3, rounds // 4))
    return found


def whole(stream: ImageStream, rows: int, batches: int, rounds: int) -> dict:
    found = measure(lambda: [next(stream) for _ in range(batches)], rows * batches, rounds)
    stream.close()
    return found


def main() -> None:
    options = arguments(__doc__, 20)
    with tempfile.TemporaryDirectory() as folder:
        found = {"32": small(options.rounds), "224": large(Path(folder), options.rounds)}
    results = [
        {"pixels": int(size), "part": part, **each} for size, parts in found.items() for part, each in parts.items()
    ]
    for each in results:
        rates = f"{each['images_per_second']:>11,.0f} a second, {each['images_per_cpu_second']:>11,.0f} a core second"
        print(f"{each['pixels']:>4}² {each['part']:<22}{rates}", flush=True)
    said = "images a second of the pipeline alone, each part and the whole"
    write(options.json, results, compared=("pillow",), proves=("pictures", said))


if __name__ == "__main__":
    main()
