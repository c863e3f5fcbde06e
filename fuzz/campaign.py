"""What every target does when it is run: `python fuzz/NAME.py [COUNT] [SEED]`.

Goes through the mutants of a seed, a new one unless it is given, and counts what the
check says of each. The first that breaks the invariant is printed, with what it takes
to make it again, and ends the campaign. A warning is an error.
"""

from __future__ import annotations

import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

M = TypeVar("M")


def campaign(mutants: Callable[[int, int], Iterator[M]], check: Callable[[M], str | Iterable[str]]) -> None:
    given = [int(text) for text in sys.argv[1:]]
    count, seed = given + [200_000, random.SystemRandom().randrange(1 << 32)][len(given) :]
    warnings.simplefilter("error")
    outcomes: Counter[str] = Counter()
    begun = time.perf_counter()
    for number, mutant in enumerate(mutants(count, seed)):
        try:
            outcome = check(mutant)
        except BaseException:
            print(f"mutant {number} of seed {seed}: {mutant!r}", file=sys.stderr)
            raise
        outcomes.update([outcome] if isinstance(outcome, str) else outcome)
    taken = time.perf_counter() - begun
    for outcome, times in outcomes.most_common():
        print(f"{times:9,}  {outcome}")
    print(f"{count:9,} mutants of seed {seed} in {taken:.0f} s, {count / taken:,.0f} a second: the invariant holds")
