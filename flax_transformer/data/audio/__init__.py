"""Sounds: reading files, changing the rate, spectra; all in NumPy."""

from flax_transformer.data.audio.decode import Sound as Sound
from flax_transformer.data.audio.decode import decode_sound as decode_sound
from flax_transformer.data.audio.decode import mono as mono
from flax_transformer.data.audio.resample import resample as resample
from flax_transformer.data.audio.spectrum import log_mel as log_mel
from flax_transformer.data.audio.spectrum import mel_filters as mel_filters
