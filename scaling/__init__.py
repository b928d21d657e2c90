"""isoflop: fit L(N, D) = E + A/N^alpha + B/D^beta and solve the split of a compute budget 6ND = C.

The distribution is called `isoflop`; this import name is generic. Names are loaded on first use, so that
`import scaling` costs nothing and a user who only allocates never loads scipy or pandas.
"""

import importlib

_HOME = {
    "ScalingError": "scaling.errors",
    "ChinchillaLaw": "scaling.laws",
    "published_law": "scaling.laws",
    "read_runs": "scaling.runs",
    "fit_law": "scaling.fitting",
    "allocate": "scaling.allocation",
}
__all__ = sorted(_HOME)


def __getattr__(name):
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'scaling' has no attribute {name!r}")


def __dir__():
    return __all__
