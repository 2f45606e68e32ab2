"""How fast a run is on this machine, and why: the speed of its parts alone, its bottleneck, faster settings.

Imports training and everything below it.
"""
