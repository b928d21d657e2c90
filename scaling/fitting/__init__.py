"""Fitting: the parametric fit and its relatives, intervals, diagnostics. Names load on first use."""

import importlib

_HOME = {
    "fit_law": "scaling.fitting.parametric",
    "FitResult": "scaling.fitting.result",
    "Status": "scaling.fitting.result",
    "DEFAULT_BOUNDS": "scaling.fitting.five",
    "bootstrap": "scaling.fitting.resampling",
}
__all__ = sorted(_HOME)


def __getattr__(name):
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'scaling.fitting' has no attribute {name!r}")


def __dir__():
    return __all__
