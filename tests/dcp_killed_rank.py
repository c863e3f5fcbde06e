"""One of two ranks that save a state, of which one may be killed in the middle of its write.

    python tests/dcp_killed_rank.py MEETING PLACE RANK VALUE [kill]

`kill` sends SIGKILL to this rank when its second tensor is about to be written.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from typing import Any


def run(meeting: str, place: str, rank: int, value: int, *, kill: bool) -> None:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    from tensorglot.bridges.dcp import Writer

    class Killing(dcp.DefaultSavePlanner):
        resolved = 0

        def resolve_data(self, write_item: Any) -> Any:
            self.resolved += 1
            if kill and self.resolved == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().resolve_data(write_item)

    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    state = {f"w{i}": distribute_tensor(torch.full((64, 32), value + i), mesh, [Shard(0)]) for i in range(4)}
    dcp.save(state, storage_writer=Writer(place), planner=Killing())  # type: ignore[arg-type]
    dist.destroy_process_group()


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), kill=sys.argv[5:] == ["kill"])
