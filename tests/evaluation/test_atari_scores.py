"""The human and random scores against published ones. The table as a whole is tested in test_evaluate.py."""

import pytest

from cleanba.evaluation.atari_scores import ATARI_SCORES, human_normalized

# Random and human scores from the appendix of Wang et al. 2016 (transcribed in seungjaeryanlee/rldb) and from
# google-deepmind/dqn_zoo (atari_data.py), which agree on all 57 games. The appendix of Badia et al. 2020
# ("Agent57") has the same numbers, but 0 for a random agent on VideoPinball.
PUBLISHED = {
    "Alien": (227.8, 7127.7),
    "Asteroids": (719.1, 47388.7),
    "Breakout": (1.7, 30.5),
    "DoubleDunk": (-18.6, -16.4),
    "FishingDerby": (-91.7, -38.7),
    "Freeway": (0.0, 29.6),
    "Jamesbond": (29.0, 302.8),
    "MontezumaRevenge": (0.0, 4753.3),
    "Pitfall": (-229.4, 6463.7),
    "Pong": (-20.7, 14.6),
    "PrivateEye": (24.9, 69571.3),
    "Skiing": (-17098.1, -4336.9),
    "Surround": (-10.0, 6.5),
    "VideoPinball": (16256.9, 17667.9),
    "YarsRevenge": (3092.9, 54576.9),
}


@pytest.mark.parametrize("game", PUBLISHED)
def test_scores_are_the_published_ones(game):
    random, human = PUBLISHED[game]
    assert ATARI_SCORES[game] == (random, human)
    assert human_normalized(f"{game}-v5", random) == 0
    assert human_normalized(f"{game}-v5", human) == 1
    assert human_normalized(f"{game}-v5", 2 * human - random) == pytest.approx(2)
