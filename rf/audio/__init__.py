"""Audio features and their augmentation."""

from rf.audio.mel import log_mel_filterbank_from_raw as log_mel_filterbank_from_raw
from rf.audio.mel import mel_filterbank as mel_filterbank
from rf.audio.specaugment import mask as mask
from rf.audio.specaugment import random_mask as random_mask
from rf.audio.specaugment import specaugment as specaugment

__all__ = ["log_mel_filterbank_from_raw", "mask", "mel_filterbank", "random_mask", "specaugment"]
