"""What a user can get wrong.

ScalingError            caught by the command line alone: one message, exit status 1
├── InputError          a table, a file or a quantity that cannot be read
├── LawError            an unknown law, or constants that are missing or impossible
├── FitError            runs from which no law can be fitted
├── AllocationError     a budget or constraints without a solution
└── SweepError          a grid, a run folder or a worker that cannot be used

A message says what, where (file, line), which value, and what to do.
"""


class ScalingError(Exception):
    """Base of everything that the input, not the program, is at fault for."""


class InputError(ScalingError):
    """A table, file or quantity that cannot be read as what it should be."""


class LawError(ScalingError):
    """An unknown law, or a law whose constants are missing or impossible."""


class FitError(ScalingError):
    """Runs from which no law can be fitted."""


class AllocationError(ScalingError):
    """A budget, or a set of constraints, that has no solution."""


class SweepError(ScalingError):
    """A grid, run folder, checkpoint or worker that cannot be used."""
