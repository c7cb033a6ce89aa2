# SPDX-License-Identifier: Apache-2.0
"""The types of the arrays in replies, for annotations."""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]
