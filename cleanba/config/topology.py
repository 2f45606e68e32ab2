"""Layouts such as a0-l1,2,3-d2: which devices act, which devices learn, and in how many processes.

Device ids count within a process, from 0, whatever ids the runtime gave the devices.
"""

import re
from collections import Counter
from typing import NamedTuple

from cleanba.config.errors import UsageError


class Topology(NamedTuple):
    actor_ids: tuple[int, ...]
    learner_ids: tuple[int, ...]
    processes: int = 1

    def __str__(self) -> str:
        actors, learners = (",".join(map(str, ids)) for ids in (self.actor_ids, self.learner_ids))
        return f"a{actors}-l{learners}-d{self.processes}"

    def in_words(self) -> str:
        """device 0 acts, devices 1, 2, 3 learn"""
        actors, learners = set(self.actor_ids), set(self.learner_ids)
        parts = {"act and learn": actors & learners, "act": actors - learners, "learn": learners - actors}
        words = []
        for verbs, ids in parts.items():
            if len(ids) == 1:
                words.append(f"device {min(ids)} {verbs.replace('act', 'acts').replace('learn', 'learns')}")
            elif ids:
                words.append(f"devices {', '.join(map(str, sorted(ids)))} {verbs}")
        where = f" in each of {self.processes} processes" if self.processes > 1 else ""
        return ", ".join(words) + where

    @staticmethod
    def parse(layout: str) -> "Topology":
        ids = r"(\d{1,6}(?:,\d{1,6})*)"  # layouts also come from files, with any number of digits
        match = re.fullmatch(rf"a{ids}-l{ids}(?:-d([1-9]\d{{,5}}))?", layout)
        if not match:
            raise UsageError(f"layout {layout[:200]!r} is not of the form a0-l1,2,3-d1")
        actors, learners = (tuple(map(int, part.split(","))) for part in match.group(1, 2))
        return Topology(actors, learners, int(match.group(3) or 1)).check_ids()

    @property
    def ids_by_flag(self) -> dict[str, tuple[int, ...]]:
        return {"--actor-device-ids": self.actor_ids, "--learner-device-ids": self.learner_ids}

    def check_ids(self) -> "Topology":
        for flag, ids in self.ids_by_flag.items():
            if not ids:
                raise UsageError(f"{flag} is empty; give at least one device id")
            for device_id, times in Counter(ids).items():
                if times > 1:
                    raise UsageError(f"{flag} names device {device_id} twice; give each device once")
        return self
