"""Floats without numpy, or arrays elementwise: the few functions that the solver needs of both.

A surface counts as an array when a constant of its law is one, as with all bootstrap draws at once.
"""

import math
from typing import Any

LOG_MAX = math.log(1e30)  # no N or D is sought beyond


def scalar(surface: Any, *values) -> bool:
    constants = surface.law.constants().values()
    return not any(hasattr(value, "shape") for value in (*constants, *values))


def shaped(surface, value, low, high):
    """Bracket ends with the shape of the law's constants."""
    import numpy as np

    shape = np.broadcast_shapes(*(np.shape(v) for v in (*surface.law.constants().values(), value, low, high)))
    return np.broadcast_to(low, shape), np.broadcast_to(high, shape)


def search_range(*values):
    """[0, LOG_MAX] for floats, arrays of it where any of the values is one."""
    arrays = [v for value in values for v in _arrays_in(value)]
    if not arrays:
        return 0.0, LOG_MAX
    import numpy as np

    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    return np.zeros(shape), np.full(shape, LOG_MAX)


def _arrays_in(value):
    values = value.law.constants().values() if hasattr(value, "law") else (value,)
    return [v for v in values if hasattr(v, "shape")]


def exp(x):
    if hasattr(x, "shape"):
        import numpy as np

        return np.exp(x)
    return math.exp(x) if x < 700 else math.inf


def log_inside(x):
    if hasattr(x, "shape"):
        import numpy as np

        with np.errstate(divide="ignore", invalid="ignore"):
            return np.clip(np.log(x), 0.0, LOG_MAX)
    return min(max(math.log(x), 0.0), LOG_MAX) if x > 0 else 0.0


def log(x):
    if hasattr(x, "shape"):
        import numpy as np

        return np.log(x)
    return math.log(x)


def clip(x, limit):
    if hasattr(x, "shape"):
        import numpy as np

        return np.clip(x, -limit, limit)
    return max(-limit, min(limit, x))


def where(condition, this, that):
    if hasattr(condition, "shape"):
        import numpy as np

        return np.where(condition, this, that)
    return this if condition else that
