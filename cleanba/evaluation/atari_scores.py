"""Human-normalised scores: returns of a random agent and of a human on the 57 Atari games.

Both are mean returns after up to 30 no-ops at the start, as collected by Wang et al. 2016 ("Dueling network
architectures") and used since; those of Mnih et al. 2015 differ in places and lack eight of the games. Some
papers use 0 for VideoPinball's random agent, where this table has 16,256.9: their means over games are lower,
by a fifth for the dueling network, while medians and interquartile means hardly change.
"""

import re
from typing import NamedTuple


class Scores(NamedTuple):
    random: float
    human: float


ATARI_SCORES = {
    "Alien": Scores(227.8, 7127.7),
    "Amidar": Scores(5.8, 1719.5),
    "Assault": Scores(222.4, 742.0),
    "Asterix": Scores(210.0, 8503.3),
    "Asteroids": Scores(719.1, 47388.7),
    "Atlantis": Scores(12850.0, 29028.1),
    "BankHeist": Scores(14.2, 753.1),
    "BattleZone": Scores(2360.0, 37187.5),
    "BeamRider": Scores(363.9, 16926.5),
    "Berzerk": Scores(123.7, 2630.4),
    "Bowling": Scores(23.1, 160.7),
    "Boxing": Scores(0.1, 12.1),
    "Breakout": Scores(1.7, 30.5),
    "Centipede": Scores(2090.9, 12017.0),
    "ChopperCommand": Scores(811.0, 7387.8),
    "CrazyClimber": Scores(10780.5, 35829.4),
    "Defender": Scores(2874.5, 18688.9),
    "DemonAttack": Scores(152.1, 1971.0),
    "DoubleDunk": Scores(-18.6, -16.4),
    "Enduro": Scores(0.0, 860.5),
    "FishingDerby": Scores(-91.7, -38.7),
    "Freeway": Scores(0.0, 29.6),
    "Frostbite": Scores(65.2, 4334.7),
    "Gopher": Scores(257.6, 2412.5),
    "Gravitar": Scores(173.0, 3351.4),
    "Hero": Scores(1027.0, 30826.4),
    "IceHockey": Scores(-11.2, 0.9),
    "Jamesbond": Scores(29.0, 302.8),
    "Kangaroo": Scores(52.0, 3035.0),
    "Krull": Scores(1598.0, 2665.5),
    "KungFuMaster": Scores(258.5, 22736.3),
    "MontezumaRevenge": Scores(0.0, 4753.3),
    "MsPacman": Scores(307.3, 6951.6),
    "NameThisGame": Scores(2292.3, 8049.0),
    "Phoenix": Scores(761.4, 7242.6),
    "Pitfall": Scores(-229.4, 6463.7),
    "Pong": Scores(-20.7, 14.6),
    "PrivateEye": Scores(24.9, 69571.3),
    "Qbert": Scores(163.9, 13455.0),
    "Riverraid": Scores(1338.5, 17118.0),
    "RoadRunner": Scores(11.5, 7845.0),
    "Robotank": Scores(2.2, 11.9),
    "Seaquest": Scores(68.4, 42054.7),
    "Skiing": Scores(-17098.1, -4336.9),
    "Solaris": Scores(1236.3, 12326.7),
    "SpaceInvaders": Scores(148.0, 1668.7),
    "StarGunner": Scores(664.0, 10250.0),
    "Surround": Scores(-10.0, 6.5),
    "Tennis": Scores(-23.8, -8.3),
    "TimePilot": Scores(3568.0, 5229.2),
    "Tutankham": Scores(11.4, 167.6),
    "UpNDown": Scores(533.4, 11693.2),
    "Venture": Scores(0.0, 1187.5),
    "VideoPinball": Scores(16256.9, 17667.9),
    "WizardOfWor": Scores(563.5, 4756.5),
    "YarsRevenge": Scores(3092.9, 54576.9),
    "Zaxxon": Scores(32.5, 9173.3),
}


def game_of(env_id: str) -> str | None:
    """Breakout for EnvPool's Breakout-v5, Gymnasium's BreakoutNoFrameskip-v4 and ALE/Breakout-v5, and itself;
    None if it is not one of the 57 games."""
    game = re.sub(r"^ALE/|(NoFrameskip)?-v\d+$", "", env_id)
    return game if game in ATARI_SCORES else None


def human_normalized(env_id: str, score: float) -> float | None:
    """0 is the random agent's score, 1 the human's; None if there is no human score."""
    game = game_of(env_id)
    scores = ATARI_SCORES[game] if game else None
    return scores and (score - scores.random) / (scores.human - scores.random)
