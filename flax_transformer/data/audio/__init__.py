"""Sounds: reading files, changing the rate, spectra; recordings of a folder, sentences made of them, batches.

`SoundData` takes a folder of whichever form and gives a `AudioSet`, `SpeechData` what JSON lines tell of, `StringData`
sentences made of recordings of words. All in NumPy.
"""

from flax_transformer.data.audio.augment import Cut as Cut
from flax_transformer.data.audio.augment import Gain as Gain
from flax_transformer.data.audio.augment import Heard as Heard
from flax_transformer.data.audio.augment import MaskFrames as MaskFrames
from flax_transformer.data.audio.augment import Noise as Noise
from flax_transformer.data.audio.augment import Shift as Shift
from flax_transformer.data.audio.augment import Silence as Silence
from flax_transformer.data.audio.augment import Speed as Speed
from flax_transformer.data.audio.batch import ClassRows as ClassRows
from flax_transformer.data.audio.batch import LetterRows as LetterRows
from flax_transformer.data.audio.batch import SampleRows as SampleRows
from flax_transformer.data.audio.batch import TextRows as TextRows
from flax_transformer.data.audio.decode import Sound as Sound
from flax_transformer.data.audio.decode import decode_sound as decode_sound
from flax_transformer.data.audio.decode import is_sound_name as is_sound_name
from flax_transformer.data.audio.decode import mono as mono
from flax_transformer.data.audio.decode import sound_size as sound_size
from flax_transformer.data.audio.open import SoundData as SoundData
from flax_transformer.data.audio.open import SpeechData as SpeechData
from flax_transformer.data.audio.recording import AudioSet as AudioSet
from flax_transformer.data.audio.recording import HeldSounds as HeldSounds
from flax_transformer.data.audio.recording import Recordings as Recordings
from flax_transformer.data.audio.recording import RespelledTexts as RespelledTexts
from flax_transformer.data.audio.recording import SoundFiles as SoundFiles
from flax_transformer.data.audio.recording import hold_sounds as hold_sounds
from flax_transformer.data.audio.resample import resample as resample
from flax_transformer.data.audio.spectrum import log_mel as log_mel
from flax_transformer.data.audio.spectrum import mel_filters as mel_filters
from flax_transformer.data.audio.spoken_string import StringData as StringData
from flax_transformer.data.audio.spoken_string import Stringing as Stringing
from flax_transformer.data.audio.spoken_string import Strings as Strings
from flax_transformer.data.audio.tone import TouchTones as TouchTones
