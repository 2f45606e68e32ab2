"""What a process and its workers say to each other, beside the shared rows."""

from typing import NamedTuple

from cleanba.envs.shared_rows import Field

RENDER = 2**31 - 1  # in place of an environment: send an image of the first


class Fds(NamedTuple):
    """What a worker inherits."""

    job: int  # a file in memory with the pickled Job
    rows: int  # another, with the shared rows
    commands: int  # i32 each: an environment to step, -1 - e to reset it, or RENDER
    ready: int  # i32 each: an environment whose row is written; all workers write to the same pipe
    replies: int  # images, and at the end what has failed


class Job(NamedTuple):
    recipe: bytes  # pickled apart, so that a failure of the user's code is reported like any other
    seeds: list[int]  # of all environments
    workers: int
    fields: list[Field]
    eager: bool  # tell of each environment when it is ready, not of all together
    background: bool  # let every other process of the machine go first
    is_vector: bool  # each worker holds one of Gymnasium's vector environments

    def own(self, worker: int) -> range:
        """Its environments: neighbours, as evenly shared out as possible."""
        envs = len(self.seeds)
        return range(worker * envs // self.workers, (worker + 1) * envs // self.workers)
