"""Speed as ratios: our times and those of other libraries, measured in turns, each in a process of its own.

`python -m benchmarks` runs everything, prints each row when it is known and writes JSON;
`python -m benchmarks W1 W4` runs the cases whose names begin so, `--quick` the essentials.
A group of cases is a module with a function `cases()`; GROUPS lists them.

| module | what it has |
|---|---|
| `case`, `measure`, `run` | the definition of a case; one measurement; the turns, the printed rows and the JSON |
| `workloads`, `peers` | the tensors of W1 to W4 and checks of results; other libraries that save and load them |
| `containers`, `ztensor`, `foreign`, `frameworks`, `nested`, `vectors`, `verbs` | groups of cases |
| `remote`, `requests`, `startup` | groups of cases: an object store, requests to a server, imports and set-up |
| `claims` | every goal and whether it is met, and where two runs disagree |
| `report`, `svg`, `performance.template.md` | docs/performance.md and its pictures, made of the JSON |
| `reasons` | why a peer is faster in a row, and what was tried |
| `record` | keeps the output of the programs below for the pages |
| `growth` | time and memory of every verb against tensors and bytes, with exponents |
| `compression` | what byte planes before zstd would gain |
| `instructions` | instructions of short paths, counted by callgrind and compared with those that are kept |
| `store` (with `store_tools`), `store_scale`, `vectors_scale`, `dcp`, `recall`, `size_model` | programs of their own |
"""

GROUPS = (
    "containers",
    "ztensor",
    "foreign",
    "frameworks",
    "nested",
    "vectors",
    "verbs",
    "remote",
    "requests",
    "startup",
)
