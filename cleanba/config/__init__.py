"""What a run is asked to do: flags, layouts, and every size that follows from them.

Plain data and checks, without jax and without side effects. Imports nothing else of Cleanba.
"""
