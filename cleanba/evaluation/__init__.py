"""Trained models: their file, evaluation, videos, the Hugging Face Hub, human scores of Atari games.

Imports sebulba and everything below it; does not depend on training runs.
"""
