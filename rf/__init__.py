"""rf: sequence models with named dims and automatic masking, eager on several backends."""

__version__ = "0.1.0"

from rf._dim import Dim as Dim
from rf._dim import batch_dim as batch_dim
from rf._dim import single_step_dim as single_step_dim
from rf._core import Tensor as Tensor
from rf._errors import BackendError as BackendError
from rf._errors import BackendMissingError as BackendMissingError
from rf._errors import DimError as DimError
from rf._errors import RfError as RfError
from rf._errors import ShapeError as ShapeError
from rf._errors import UserError as UserError
from rf.backend import get_backend as get_backend
from rf.backend import select_backend as select_backend
from rf.backend import use_backend as use_backend
from rf.dtypes import *
from rf.ops.contract import dot as dot
from rf.ops.contract import matmul as matmul
from rf.ops.create import *
from rf.ops.device import *
from rf.ops.elementwise import *
from rf.ops.normalize import log_softmax as log_softmax
from rf.ops.normalize import softmax as softmax
from rf.ops.reduce import *
