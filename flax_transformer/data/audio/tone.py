"""Generated recordings of digits: the two tones of a telephone's key, by voices that differ.

Axes: T samples.
"""

import numpy as np
from jaxtyping import Float

from flax_transformer.data.audio.recording import InMemoryAudio, Recordings
from flax_transformer.frozen import frozen

LOW, HIGH = (697, 770, 852, 941), (1209, 1336, 1477)
"""Hz of a key's row and of its column (ITU-T Q.23)."""
KEYS = "147*2580369#"
"""Down the columns."""
DIGITS = tuple(map(str, range(10)))


@frozen
class TouchTones:
    """Recordings of the ten digits, always the same of a seed: every voice is a little higher or lower and
    longer or shorter than others, every recording is noisy."""

    voices: int = 4
    takes: int = 25
    """Recordings of each digit by each voice, of which 0 to 4 are the test's."""
    rate: int = 8_000
    """Samples a second."""
    noise: float = 0.5
    """Standard deviation of what is added, of the tones' own."""
    tone_seed: int = 0
    """Which recordings these are."""

    def __post_init__(self) -> None:
        if self.voices < 1 or self.takes < 7 or self.rate < 4_000 or self.noise < 0 or self.tone_seed < 0:
            raise ValueError(
                "tones have at least 1 voice, 7 takes, 4000 samples a second, and no negative noise or seed, got "
                f"{self.voices}, {self.takes}, {self.rate}, {self.noise}, {self.tone_seed}"
            )

    def recordings(self) -> Recordings:
        """Make all: `label`, `speaker` and `take` of each are known."""
        every = [(v, d, t) for v in range(self.voices) for d in range(10) for t in range(self.takes)]
        voices, digits, takes = np.array(every).T
        samples = [self.sound(*each) for each in every]
        names = [f"tones of {digit} by voice {voice}, number {take}" for voice, digit, take in every]
        known = {"label": digits.astype(np.int32), "speaker": voices.astype(str), "take": takes}
        return Recordings(InMemoryAudio(samples, self.rate, names), known)

    def sound(self, voice: int, digit: int, take: int) -> Float[np.ndarray, "T"]:
        """Make one recording."""
        person = np.random.default_rng((self.tone_seed, voice))
        pitch, seconds = person.uniform(0.99, 1.01), person.uniform(0.2, 0.5)  # keys are a tenth apart
        rng = np.random.default_rng((self.tone_seed, voice, digit, take))
        times = np.arange(int(self.rate * seconds * rng.uniform(0.8, 1.2))) / self.rate
        column, row = divmod(KEYS.index(str(digit)), 4)
        waves = [np.sin(2 * np.pi * (hertz * pitch * times + rng.random())) for hertz in (LOW[row], HIGH[column])]
        loud = np.hanning(len(times) + 2)[1:-1] * rng.uniform(0.1, 0.4)
        noise = rng.normal(0, self.noise * loud.mean(), len(times))
        return (loud * sum(waves) / 2 + noise).astype(np.float32)
