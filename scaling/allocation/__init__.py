"""The best split of a budget between parameters and tokens, under real constraints, with how sure it is.

`allocate` is the one entry; the modules beside it hold one idea each: budget, cost, constraints, solver, nearness,
uncertainty, comparison.
"""

from scaling.allocation.budget import Budget, Machine, make_budget, make_machine
from scaling.allocation.plan import allocate
from scaling.allocation.result import Allocation

__all__ = ["Allocation", "Budget", "Machine", "allocate", "make_budget", "make_machine"]
