"""rf: sequence models with named dims and automatic masking, eager on several backends."""

# Each of the modules below names what it exports in __all__.
# ruff: noqa: F403

__version__ = "0.1.0"

from rf import audio as audio
from rf import init as init
from rf._core import Tensor as Tensor
from rf._dim import Dim as Dim
from rf._dim import batch_dim as batch_dim
from rf._dim import single_step_dim as single_step_dim
from rf._errors import BackendError as BackendError
from rf._errors import BackendMissingError as BackendMissingError
from rf._errors import DimError as DimError
from rf._errors import KernelMissingError as KernelMissingError
from rf._errors import RfError as RfError
from rf._errors import ShapeError as ShapeError
from rf._errors import UserError as UserError
from rf.backend import get_backend as get_backend
from rf.backend import get_raw_tensor_type as get_raw_tensor_type
from rf.backend import get_selected_backend as get_selected_backend
from rf.backend import is_backend_raw_tensor_dim_tag_independent as is_backend_raw_tensor_dim_tag_independent
from rf.backend import is_executing_eagerly as is_executing_eagerly
from rf.backend import register_backend as register_backend
from rf.backend import select_backend as select_backend
from rf.backend import select_backend_numpy as select_backend_numpy
from rf.backend import select_backend_torch as select_backend_torch
from rf.backend import use_backend as use_backend
from rf.dtypes import *
from rf.nn import hooks as hooks
from rf.nn.attention import *
from rf.nn.build import *
from rf.nn.container import *
from rf.nn.conv import *
from rf.nn.linear import Embedding as Embedding
from rf.nn.linear import Linear as Linear
from rf.nn.module import *
from rf.nn.norm import *
from rf.nn.parameter import *
from rf.nn.pos_enc import *
from rf.nn.rec import *
from rf.nn.rel_pos_attention import *
from rf.nn.rotary import RotaryPosCausalSelfAttention as RotaryPosCausalSelfAttention
from rf.nn.rotary import RotaryPosSelfAttention as RotaryPosSelfAttention
from rf.nn.running_mean import RunningMean as RunningMean
from rf.nn.state import *
from rf.ops.concat import *
from rf.ops.contract import dot as dot
from rf.ops.contract import matmul as matmul
from rf.ops.control import *
from rf.ops.conv import *
from rf.ops.create import *
from rf.ops.ctc import *
from rf.ops.device import *
from rf.ops.dims import *
from rf.ops.dropout import *
from rf.ops.elementwise import *
from rf.ops.gradient import *
from rf.ops.index import *
from rf.ops.loss import *
from rf.ops.masking import *
from rf.ops.normalize import log_softmax as log_softmax
from rf.ops.normalize import softmax as softmax
from rf.ops.rand import *
from rf.ops.reduce import *
from rf.ops.scatter import *
from rf.ops.sequence import *
from rf.ops.shape import *
from rf.ops.signal import *
from rf.ops.top import *
from rf.run_ctx import *
from rf.tensor_dict import TensorDict as TensorDict
from rf.types import *
