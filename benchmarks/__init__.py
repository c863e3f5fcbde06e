"""Speed as ratios: ours and the peers' in turns, each measurement in a process of its own.

`python -m benchmarks` runs everything, prints a table and writes results.json;
`python -m benchmarks W1 W4` runs the cases whose names begin so. A group of cases is
a module with a function `cases()`; GROUPS lists them.
"""

GROUPS = ("containers", "ztensor", "nested", "vectors", "foreign", "verbs", "frameworks")
